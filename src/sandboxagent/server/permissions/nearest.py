"""Find the rule that nearly allows a request, and the reason why it does not.

`sandbox-agent permissions` shows both to people. No decision depends on this module.
"""

import posixpath
import shlex

from msgspec import Struct
from msgspec.structs import replace

from sandboxagent.server.permissions.budget import StepBudget, TooMuch
from sandboxagent.server.permissions.commands import Simple
from sandboxagent.server.permissions.conditions import (
    CommandIs,
    Condition,
    FactIs,
    FolderIs,
    KindIs,
    PathIs,
    Subject,
    Words,
    stands_for,
)
from sandboxagent.server.permissions.patterns import PathGlob
from sandboxagent.server.permissions.request import Asked, read_request
from sandboxagent.server.permissions.rules import Policy, Rule


class NearMiss(Struct, frozen=True):
    """A rule that allows, of whose conditions one alone is not met."""

    rule: Rule
    part: str
    """The part of a command that the rule does not allow; empty for a request without a command."""
    why: str
    """Why the rule does not allow it, and what to write instead if that is known."""


def find_nearest(policy: Policy, asked: Asked) -> tuple[NearMiss, ...]:
    """Return the rule that nearly allows the request; for a command, one for each part that has such a rule.

    Only rules of the server count.
    """
    work = StepBudget(policy.steps, policy.resolve)
    try:
        request = read_request(asked, work)
        subjects = [Subject(request, part, policy.home, work) for part in request.parts or (None,)]
        found = [_nearest(policy.rules, subject) for subject in subjects]
    except TooMuch:
        return ()
    return tuple(miss for miss in found if miss is not None)


def find_glued_stars(rule: Rule) -> list[str]:
    """Return the commands of a rule that allows whose last word ends in a star, such as `git status*`.

    Such a star is a part of its word, so the rule allows no further words.
    """
    commands = [condition for condition in rule.conditions if isinstance(condition, CommandIs)]
    patterns = [pattern for command in commands for pattern in command.patterns if isinstance(pattern, Words)]
    return [_written(pattern) for pattern in patterns if rule.action == "allow" and _has_glued_star(pattern)]


def _nearest(rules: tuple[Rule, ...], subject: Subject) -> NearMiss | None:
    misses: list[tuple[int, NearMiss]] = []
    for rule in rules:
        if rule.action != "allow":
            continue
        unmet = [condition for condition in rule.conditions if not condition.surely(subject)]
        if not unmet:
            return None
        if any(isinstance(condition, CommandIs) for condition in unmet):
            # A rule's folder is a condition of its own, and a part of its condition about the command.
            unmet = [condition for condition in unmet if not isinstance(condition, FolderIs)]
        if len(unmet) > 1:
            continue
        rank, why = _explain(unmet[0], subject, alone=len(rule.conditions) == 1)
        if why is not None:
            part = "" if subject.part is None else subject.part.text
            misses.append((rank, NearMiss(rule, part, why)))
    # The first of the best: rules are tried in their order.
    return min(misses, key=lambda miss: miss[0])[1] if misses else None


def _explain(condition: Condition, subject: Subject, *, alone: bool) -> tuple[int, str | None]:
    """Return how far a condition is from being met, and why it is not; no reason if it is not near at all."""
    match condition:
        case CommandIs():
            return 0, _explain_command(condition, subject)
        case PathIs():
            return 1, _explain_path(condition, subject)
        case FolderIs():
            return 2, "it allows this in another folder (`cwd`)"
        case KindIs(kind=fact) | (FactIs() as fact) if not alone:
            value = fact.fact(subject.request)
            wanted = " or ".join(f"`{pattern}`" for pattern in fact.patterns)
            return 3, f"it wants {wanted}; the request has {f'`{value}`' if value else 'none'}"
        case _:
            return 4, None


def _explain_command(condition: CommandIs, subject: Subject) -> str | None:
    part = subject.part
    if not isinstance(part, Simple):
        return None
    known = [word for word in part.words if word is not None]
    for pattern in condition.patterns:
        if not isinstance(pattern, Words) or not _begins(pattern, known):
            continue
        written = _written(pattern)
        if part.literal is None or not part.bare:
            return f"it allows `{written}` as plain words only: no redirection, no variable, no expansion"
        if not subject.request.only_command:
            return f"it allows `{written}` only in a request for nothing else"
        if pattern.is_open or len(known) == len(pattern.globs):
            # The condition noted the word that the star does not allow.
            return subject.notes[-1] if subject.notes else None
        if _has_glued_star(pattern):
            return (
                f"the star in `{written}` is a part of its last word and allows no further words; write a blank "
                f"before it: `{written.rstrip('*')} *`"
            )
        return f"it allows exactly `{written}`; `{written} *` also allows further words, if they can do no harm"
    return None


def _explain_path(condition: PathIs, subject: Subject) -> str | None:
    if subject.request.parts or not subject.request.paths_known:
        return None
    paths = [*subject.request.paths, *subject.request.perhaps_paths]
    for glob in condition.globs:
        if not isinstance(glob, PathGlob):
            continue
        for wider, because in _wider(glob.text):
            widened = replace(condition, globs=(*condition.globs, PathGlob(wider)))
            if paths and widened.surely(subject):
                return f"`{glob.text}` {because}; write `{wider}`"
    return None


def _wider(glob: str) -> list[tuple[str, str]]:
    """Return globs that match more than one glob, each with the reason why the one does not match that."""
    folder, name = posixpath.split(glob)
    found = [(posixpath.join(glob, "**"), "is the folder itself")]
    if name == "*":
        found.insert(0, (posixpath.join(folder, "**"), "stays within one folder"))
    elif "*" in name and "**" not in glob:
        found.append((posixpath.join(folder, "**", name), "stays within one folder"))
    if not glob.startswith(("/", "~", "**")):
        found.append((posixpath.join("**", glob), "is beneath the session's directory"))
    return found


def _begins(pattern: Words, words: list[str]) -> bool:
    return len(words) >= len(pattern.globs) and all(map(stands_for, pattern.globs, words))


def _has_glued_star(pattern: Words) -> bool:
    last = pattern.globs[-1].text
    return not pattern.is_open and last.endswith("*") and bool(last.strip("*"))


def _written(pattern: Words) -> str:
    """Return the pattern as a person would write it."""
    words = [glob.text if glob.wild else shlex.quote(glob.text) for glob in pattern.globs]
    return " ".join([*words, "*"] if pattern.is_open else words)
