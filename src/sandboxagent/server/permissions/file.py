"""Read the file of permission rules, and name the line of a mistake.

A mistake in the file keeps the server from starting.
"""

import re
from pathlib import Path

from sandboxagent.core.settings.sources import did_you_mean, line_of, read_toml
from sandboxagent.protocol.errors import SettingsError
from sandboxagent.server.permissions.rules import Mistake, Rule, read_rules

_HEADER = r"\s*\[\[\s*rules\s*\]\]"


def load_rules(path: Path) -> tuple[Rule, ...]:
    """Return the rules of a file, none if there is no file.

    Raises SettingsError, which names the file, line and rule.
    """
    content, text = read_toml(path)
    for key in content:
        if key != "rules":
            hint = did_you_mean(key, ["rules"]) or "; a rule is a table [[rules]]"
            raise SettingsError(f"{path}, line {line_of(text, [key])}: unknown key {key}{hint}")
    try:
        return read_rules(content.get("rules", []), "server")
    except Mistake as mistake:
        rule = "" if mistake.index is None else f", rule {mistake.index + 1}"
        raise SettingsError(f"{path}, line {_line(text, mistake)}{rule}: {mistake}") from None


def read_starter() -> str:
    """Return the text of the file with starter rules that ships with the server."""
    return Path(__file__).with_name("starter.toml").read_text("utf-8")


def _line(text: str, mistake: Mistake) -> int:
    """Return the line of the wrong key, or of its rule."""
    lines = text.splitlines()
    headers = [number for number, line in enumerate(lines) if re.match(_HEADER, line)]
    if mistake.index is None or mistake.index >= len(headers):
        return line_of(text, ["rules"])
    start = headers[mistake.index]
    end = headers[mistake.index + 1] if mistake.index + 1 < len(headers) else len(lines)
    if mistake.key is not None:
        key = re.compile(rf"\s*(?:\[\s*rules\s*\.\s*)?[\"']?{re.escape(mistake.key)}\b")
        start = next((number for number in range(start, end) if key.match(lines[number])), start)
    return start + 1
