"""What the docs say is not there: it is not there, and a reader who looks for it finds the page that says so."""

import re
import tomllib
from collections.abc import Callable

import pytest

from sandboxagent import __version__
from sandboxagent.core.settings import OPTIONS
from tests.docs.pages import DOCS, REFERENCE, ROOT
from tools.reference.methods import methods
from tools.release import CHANGELOG, UNDATED, read_notes

PAGE = DOCS / "what-this-is-not.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ABSENT = {
    "a sandbox": r"sandboxed|jail|container",
    "a provider of sandboxes": r"machines|containers|sandboxes",
    "a user database": r"users?|accounts?|roles?|login|organizations?",
    "a wall between tenants": r"tenants?",
    "a job scheduler": r"cron|schedules?|priority|retry|retries",
    "a workspace manager": r"clone|branch|worktrees?|snapshots?|undo|revert|checkpoints?",
    "an editor or a review tool": r"reviews?|pulls?",
    "a terminal for people": r"pty|ssh",
    "a model gateway": r"completions|chat|cache|models-url",
    "No TLS.": r"tls|ssl|cert|certificate|https",
    "No metrics, no traces.": r"metrics?|prometheus|traces?|tracing|otel|telemetry",
    "No webhooks.": r"webhooks?|callbacks?",
    "No high availability of a session.": r"migrate|failover|standby",
    "No quotas.": r"quotas?|budget|spend|max-cost",
    "No encryption of the log.": r"encrypt|encryption|passphrase",
    "No rate limit per client.": r"rate-limit|throttle|quota",
}
"""Words that no flag, route or method may have as long as the page says so."""
OTHERWISE: dict[str, Callable[[], bool]] = {
    "an agent": lambda: not any("anthropic" in each or "openai" in each for each in PROJECT["dependencies"]),
    "No Windows, no macOS, no Alpine.": lambda: (
        [each for each in PROJECT["classifiers"] if each.startswith("Operating System")]
        == ["Operating System :: POSIX :: Linux"]
    ),
    "No stable 1.0.": lambda: __version__.startswith("0."),
    "No packages at an index yet.": lambda: read_notes(CHANGELOG.read_text(), __version__)[0] == UNDATED,
}


def said() -> list[str]:
    """What the page says is not there: the bold words of its table and of its list."""
    return re.findall(r"^(?:\| |- )\*\*(.+?)\*\*", PAGE.read_text(), re.MULTILINE)


def offered() -> set[str]:
    """The words that flags, routes and methods are made of, and what they are called as a whole."""
    routes = re.findall(r"^## (?:GET|POST|PUT|DELETE) (\S+)", (REFERENCE / "http.md").read_text(), re.MULTILINE)
    names = [*(option.name.replace("_", "-") for option in OPTIONS), *routes, *methods()]
    return {word.lower() for name in names for word in [name, *re.split(r"[^a-zA-Z]+", name)]}


def test_everything_that_is_said_not_to_be_there_is_looked_for() -> None:
    assert set(said()) == set(ABSENT) | set(OTHERWISE)


@pytest.mark.parametrize("what", ABSENT)
def test_it_is_not_there(what: str) -> None:
    found = {word for word in offered() if re.fullmatch(ABSENT[what], word)}

    assert found == set()


@pytest.mark.parametrize("what", OTHERWISE)
def test_it_is_as_the_page_says(what: str) -> None:
    assert OTHERWISE[what]()


def test_words_that_are_there_would_be_found() -> None:
    assert {"token", "permissions", "health", "file", "steer"} - offered() == {"steer"}
