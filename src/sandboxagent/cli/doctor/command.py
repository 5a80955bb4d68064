"""Run `sandbox-agent doctor`: all checks side by side, and advice about their findings.

A check changes nothing. Of a secret, it shows the name at most.
"""

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, get_args

from sandboxagent.cli.flags import add_endpoint_flags, add_flags
from sandboxagent.cli.output import EXIT_FAILED, fill_lines, is_drawn, one_line, paint, print_json
from sandboxagent.cli.parser import Command, ParsedArguments, Parser

if TYPE_CHECKING:
    from sandboxagent.cli.doctor import Check, DoctorSubject, Finding, Status

CHECKS_TIMEOUT = 10.0
"""Seconds for all checks. A check that takes longer is abandoned, such as one of a disk that hangs."""

DESCRIPTION = """\
Check everything that sandbox-agent needs: the program and its tools, directories, settings, the
server, agents and their credentials, the ACP registry, system limits. Each problem comes with advice.
The command changes nothing and prints no secrets.

A server on another machine or of another user has another environment: run the command there. The
exit code is 1 if there is a problem, else 0.
"""

EPILOG = """\
examples:
  sandbox-agent doctor
  sandbox-agent doctor --offline
      without asking the ACP registry
  sandbox-agent doctor --json | jq '.findings[] | select(.status != "ok")'
"""

_MARKS = {"ok": ("✓", "green"), "note": ("·", "dim"), "warning": ("!", "yellow"), "problem": ("✗", "red")}


def command() -> Command:
    """Make the command `doctor`."""
    from sandboxagent.cli.doctor.machine import FLAGS

    parser = Parser("sandbox-agent doctor", DESCRIPTION, EPILOG)
    parser.add_argument("--offline", action="store_true", help="Do not ask the ACP registry.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    add_endpoint_flags(parser)
    add_flags(parser, {*FLAGS} - {"config_dir", "data_dir"})
    return Command(parser, _run)


def _run(arguments: ParsedArguments) -> int:
    import logging

    logging.getLogger("sandboxagent").addHandler(logging.NullHandler())
    findings, unfinished = examine(arguments, os.environ)
    if arguments.switch("json"):
        _print_json(findings)
    else:
        print_findings(findings)
    code = EXIT_FAILED if any(each.status == "problem" for each in findings) else 0
    if unfinished:
        # A normal exit would wait for threads that hang, such as on a name server or a disk.
        sys.stdout.flush()
        os._exit(code)
    return code


def examine(arguments: ParsedArguments, environ: Mapping[str, str]) -> tuple[list["Finding"], bool]:
    """Run all checks. Return the findings, sorted by area, and whether a check has not finished."""
    from sandboxagent.cli.doctor import Area, DoctorSubject, agents, machine, server

    found_settings, found = machine.read_settings(arguments, environ)
    if found_settings is None:
        return found, False
    checks: list[Check] = [
        *(machine.version, machine.node, machine.uv, machine.ripgrep),
        *(machine.data, machine.agents, machine.config),
        *(machine.agents_file, machine.permissions_file),
        *(machine.secrets, machine.variables),
        *(server.server, agents.agents, agents.registry),
        *(machine.open_files, machine.watches),
    ]
    mistakes = tuple(each.sentence for each in found if each.status == "problem")
    subject = DoctorSubject(found_settings, arguments, environ, arguments.switch("offline"), mistakes)
    told, unfinished = side_by_side(checks, subject, CHECKS_TIMEOUT)
    found += [each for check in checks for each in told.get(check, [])]
    slow = f"took longer than {CHECKS_TIMEOUT:g} s"
    found += [_about(check, "warning", slow, "Look for a disk or a name server that hangs.") for check in unfinished]
    order = get_args(Area)
    return sorted(found, key=lambda each: order.index(each.area)), bool(unfinished)


def side_by_side(
    checks: Sequence["Check"], subject: "DoctorSubject", timeout: float
) -> tuple[dict["Check", list["Finding"]], list["Check"]]:
    """Run checks in threads. Return the findings of each, and the checks not finished within `timeout` seconds."""
    told: dict[Check, list[Finding]] = {}

    def run(check: "Check") -> None:
        try:
            told[check] = check(subject)
        except Exception as bug:  # One check with a bug must not hide the findings of the others.
            told[check] = [_about(check, "problem", f"failed with {type(bug).__name__}", "Report it, please.")]

    threads = {check: threading.Thread(target=run, args=(check,), daemon=True) for check in checks}
    for thread in threads.values():
        thread.start()
    end = time.monotonic() + timeout
    for thread in threads.values():
        thread.join(max(0.0, end - time.monotonic()))
    return told, [check for check in threads if check not in told]


def _about(check: "Check", status: "Status", what: str, advice: str) -> "Finding":
    from sandboxagent.cli.doctor import Finding

    sentence = f"the check {check.__name__} {what}"
    return Finding("program", check.__name__, status, sentence, advice)


# --- printing ---------------------------------------------------------------------------------------------------------


def print_findings(findings: Sequence["Finding"]) -> None:
    """Print all findings by area, and a summary."""
    drawn = is_drawn(sys.stdout) and _has_marks(sys.stdout.encoding)
    area = None
    for each in findings:
        if each.area != area:
            print("" if area is None else "\n", paint(each.area, "bold"), sep="")
            area = each.area
        word, colour = _MARKS[each.status] if drawn else (f"{each.status:<7}", "")
        indent = " " * (len(word) + 4)
        print(f"  {paint(word, colour) if drawn else word}  {fill_lines(one_line(each.sentence), indent)}")
        if each.advice:
            print(indent + ("→ " if drawn else "") + fill_lines(one_line(each.advice), indent + "  " * drawn))
    print(f"\n{_summary(findings)}")


def _has_marks(encoding: str) -> bool:
    try:
        "".join([*(mark for mark, _ in _MARKS.values()), "→"]).encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _summary(findings: Sequence["Finding"]) -> str:
    counts = Counter(each.status for each in findings)
    told = [_count(counts[word], word) for word in ("problem", "warning") if counts[word]]
    return ", ".join(told) if told else "everything is in order"


def _count(count: int, word: str) -> str:
    return f"1 {word}" if count == 1 else f"{count} {word}s"


def _print_json(findings: Sequence["Finding"]) -> None:
    import msgspec

    from sandboxagent import __version__

    counts = Counter(each.status for each in findings)
    worst = next((word for word in ("problem", "warning") if counts[word]), "ok")
    summary = {word: counts[word] for word in _MARKS}
    print_json(msgspec.json.encode({"version": __version__, "status": worst, "counts": summary, "findings": findings}))
