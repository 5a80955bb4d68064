"""TOML files that people write: reading them, and naming the line on which something is wrong."""

import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from sandbox_agent.errors import SettingsError

_KEY = r"\"[^\"]*\"|'[^']*'|[\w-]+"


def read_toml(path: Path) -> tuple[dict[str, object], str]:
    """A file's content and its text, both empty when there is no file; a SettingsError names what is wrong."""
    try:
        text = path.read_text("utf-8-sig")
        return tomllib.loads(text), text
    except FileNotFoundError:
        return {}, ""
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: is not TOML: {error}") from None


def line_of(text: str, path: Sequence[str]) -> int:
    """The line on which a key stands, or the nearest table around it when it is written inline."""
    table: list[str] = []
    nearest, depth = 1, 0
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[+([^\]]+)\]", line)
        left, equals, _ = line.partition("=")
        if not header and (not equals or left.lstrip().startswith("#")):
            continue
        keys = [key.strip("\"'") for key in re.findall(_KEY, header[1] if header else left)]
        table = keys if header else table
        here = keys if header else table + keys
        if here[: len(path)] == list(path):
            return number
        if len(here) > depth and here == list(path[: len(here)]):
            nearest, depth = number, len(here)
    return nearest


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence that offers the nearest known word; empty when none is near."""
    from difflib import get_close_matches

    near = get_close_matches(word, list(known))
    # Letters in another order are a slip of the fingers: --modle is --model, and not --mode.
    near.sort(key=lambda each: sorted(each) != sorted(word))
    return f"; did you mean {near[0]}?" if near else ""
