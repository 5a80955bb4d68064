"""Measure this server and its Rust peer side by side (`./dev bench`), and print the ratios."""

import argparse
import resource
import signal
import subprocess
import sys
from types import FrameType

import alone
import browser
import files
import flame
import fleet
import floors
import growth
import machine
import sdk
import soak
from build import HERE, ROOT, Tools, Unavailable, check_out, compile_tools, install_peer
from report import Outcome, Report, table
from scenarios import SCENARIOS, Run, Sample, Scenario
from servers import Earlier, Failed, Ours, Peer, Program

ROUNDS = 3
RESULTS = HERE / "RESULTS.md"
ALONE, FILES, SDK, SOAK, FLAME = "alone", "files", "sdk", "soak", "flame"
GROWTH, FLOORS, INSPECTOR, FLEET = "growth", "floors", "inspector", "fleet"
ISOLATION = "isolation"
SESSIONS = 10_000
"""Number of sessions of a soak; a twentieth of it with `--quick`."""


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, _leave)
    _raise_descriptor_limit()
    facts, stamp = machine.describe(), machine.source_stamp()
    if arguments.names == [ISOLATION]:
        return _isolation(facts, write=arguments.write)
    try:
        tools = compile_tools()
        ours = Ours(tools.agent)
        _warm_up(ours)
    except (Unavailable, Failed) as reason:
        _say(f"cannot measure: {reason}")
        return 1
    if arguments.names == [SOAK]:
        return _soak(tools, facts, quick=arguments.quick, write=arguments.write)
    if arguments.names == [FLAME]:
        return _flame(tools, facts, quick=arguments.quick, write=arguments.write)
    if arguments.names == [GROWTH]:
        return _growth(tools, facts, quick=arguments.quick, write=arguments.write)
    if arguments.names == [FLOORS]:
        print("\n".join(table(["what", "CPU time"], floors.measure())))
        return 0
    if arguments.names == [FLEET]:
        return _fleet(tools, facts, quick=arguments.quick, write=arguments.write)
    if arguments.names == [INSPECTOR]:
        return _inspector(tools, facts, quick=arguments.quick, write=arguments.write)
    programs: list[Program] = [ours]
    missing = None
    try:
        programs.append(_other(tools, arguments.against))
        _warm_up(programs[-1])
    except (Unavailable, Failed) as reason:
        if arguments.against is not None:
            _say(f"cannot measure: {reason}")
            return 1
        programs = [ours]
        missing = str(reason)
        _say(f"peer not available, measuring ours alone: {missing}")
    rounds = arguments.rounds or (1 if arguments.quick else ROUNDS)
    facts.append(f"rounds: {rounds}, interleaved" + (", small numbers (`--quick`)" if arguments.quick else ""))
    if arguments.against is not None:
        facts = [fact for fact in facts if not fact.startswith("peer")]
        facts.append(f"earlier: the sources of {arguments.against}, with the libraries of today")
    report = Report(facts, "peer" if arguments.against is None else "earlier", missing)
    bystanders, pace = machine.Bystanders(), machine.Pace()
    for scenario in SCENARIOS:
        if not arguments.names or scenario.name in arguments.names:
            report.outcomes.append(_compare(scenario, programs, tools, rounds, pace, quick=arguments.quick))
    if not arguments.names or FILES in arguments.names:
        _say("files")
        figures = files.measure(ours, programs[1] if len(programs) > 1 else None, rounds, quick=arguments.quick)
        report.files = [files.HEADER, *(row for each in figures for row in each.rows())]
        report.files_clean = all(each.is_clean() for each in figures)
    if not arguments.names or SDK in arguments.names:
        sdks = sdk.measure(ours, programs[1] if len(programs) > 1 else None, rounds, pace, quick=arguments.quick)
        report.sdk, report.sdk_remarks, report.sdk_clean = sdks.table, sdks.remarks, sdks.is_clean
    if not arguments.names or ALONE in arguments.names:
        _say("ours alone")
        report.alone += alone.persistence(tools, rounds, quick=arguments.quick)
        report.alone += alone.imports(tools.agent)
    pace.take()
    facts.append(f"CPU used by anything else meanwhile: {bystanders.share():.0%} of the machine")
    facts.append(f"pace of the machine, same work between runs: {pace.text()}")
    if machine.source_stamp() != stamp:
        facts.append("the source of ours was edited during the run: its figures belong to no single version")
    print(report.text())
    if arguments.write:
        RESULTS.write_text(browser.replaced(report.text(), browser.kept(RESULTS.read_text())))
        _say(f"written to {RESULTS}")
    return 0 if report.is_clean() else 1


def _isolation(facts: list[str], *, write: bool) -> int:
    """Measure real agents, which only the tests can run offline."""
    flags = ["--write"] * write + [f"--fact={fact}" for fact in facts if not fact.startswith("peer")]
    return subprocess.run([sys.executable, "-m", "tests.agents.isolation", *flags], cwd=ROOT, check=False).returncode


def _soak(tools: Tools, facts: list[str], *, quick: bool, write: bool) -> int:
    """Run the soak by itself: it takes minutes and compares nothing."""
    done = soak.measure(tools.agent, SESSIONS // 20 if quick else SESSIONS)
    print(soak.page(done, facts))
    if write:
        (HERE / "SOAK.md").write_text(soak.page(done, facts))
        (HERE / "SOAK.svg").write_text(soak.plot(done))
    for failure in done.failures:
        _say(failure)
    return 1 if done.failures else 0


def _flame(tools: Tools, facts: list[str], *, quick: bool, write: bool) -> int:
    """Run the sampling by itself: it slows the server down, and compares nothing."""
    profile = flame.measure(tools, 40 if quick else 200)
    print(flame.page(profile, facts))
    if write:
        (HERE / "FLAME.svg").write_text(flame.plot(profile))
    return 0


def _fleet(tools: Tools, facts: list[str], *, quick: bool, write: bool) -> int:
    """Run the fleet by itself: it compares a fleet with a single server of ours."""
    figures = fleet.measure(tools, fleet.QUICK if quick else fleet.Sizes(), _say)
    page = fleet.page(figures, [fact for fact in facts if not fact.startswith("peer")])
    print(page)
    if write:
        (HERE / "FLEET.md").write_text(page)
        (HERE / "FLEET.svg").write_text(fleet.plot(figures))
    for failure in figures.failures:
        _say(failure)
    return 1 if figures.failures else 0


def _growth(tools: Tools, facts: list[str], *, quick: bool, write: bool) -> int:
    """Run the growth by itself: it compares our server with itself."""
    curves = growth.measure(tools, growth.QUICK if quick else growth.Sizes(), _say)
    print(growth.page(curves, facts))
    if write:
        (HERE / "GROWTH.md").write_text(growth.page(curves, facts))
        (HERE / "GROWTH.svg").write_text(growth.plot(curves))
    return 0


def _inspector(tools: Tools, facts: list[str], *, quick: bool, write: bool) -> int:
    """Run the Inspector by itself: a browser needs the whole machine."""
    try:
        peer = install_peer()
    except Unavailable as reason:
        peer = None
        _say(f"peer not available: {reason}")
    bystanders = machine.Bystanders()
    try:
        found = browser.measure(tools.agent, peer, quick=quick)
    except Failed as reason:
        _say(f"cannot measure: {reason}")
        return 1
    facts.append(f"CPU used by anything but this run meanwhile, as far as it can be told: {bystanders.share():.0%}")
    part = browser.section(found, facts)
    print(part)
    if write:
        RESULTS.write_text(browser.replaced(RESULTS.read_text(), part))
    return 0


def _warm_up(program: Program) -> None:
    """Start a program once unmeasured. This fills the caches of byte code and pages, and shows whether it can start."""
    with program.start():
        pass


def _compare(
    scenario: Scenario, programs: list[Program], tools: Tools, rounds: int, pace: machine.Pace, *, quick: bool
) -> Outcome:
    """Run both programs in turn, round after round, so that a change of the machine's speed affects both."""
    runs: list[list[Run]] = [[], []]
    case = scenario.quick if quick else scenario.full
    for round_number in range(1, rounds + 1):
        for program, its_runs in zip(programs, runs, strict=False):
            pace.take()
            run = case.run(program, tools)
            its_runs.append(run)
            figure = f"{run.value:,.2f} {case.unit}" if isinstance(run, Sample) else f"failed: {run}"
            _say(f"{scenario.name} round {round_number}/{rounds} {program.name}: {figure}")
    expected = "–" if any(isinstance(program, Earlier) for program in programs) else scenario.expected
    return Outcome(scenario.name, expected, case, *runs)


def _other(tools: Tools, revision: str | None) -> Program:
    return Peer(install_peer(), tools.agent) if revision is None else Earlier(tools.agent, check_out(revision))


class Arguments(argparse.Namespace):
    names: list[str]
    against: str | None
    quick: bool
    rounds: int | None
    write: bool


def _arguments() -> Arguments:
    known = [*(scenario.name for scenario in SCENARIOS), FILES, SDK, ALONE, SOAK, FLAME, GROWTH, FLOORS, INSPECTOR]
    known += [FLEET, ISOLATION]
    parser = argparse.ArgumentParser(prog="./dev bench", description="Ratios against the Rust peer; takes minutes.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"only these: {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="one round with small numbers")
    parser.add_argument("--rounds", type=int, help=f"rounds per scenario (default {ROUNDS}; 1 with --quick)")
    parser.add_argument("--write", action="store_true", help=f"also write {RESULTS.name}")
    parser.add_argument("--against", metavar="REVISION", help="beside an earlier revision of ours, not the peer")
    arguments = parser.parse_args(namespace=Arguments())
    if arguments.against is not None:
        if arguments.write:
            parser.error(f"{RESULTS.name} has the ratios to the peer: leave out --write or --against")
        arguments.names = arguments.names or [scenario.name for scenario in SCENARIOS]
        if unfit := [name for name in arguments.names if name not in {scenario.name for scenario in SCENARIOS}]:
            parser.error(f"--against compares no {', '.join(unfit)}")
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        parser.error(f"unknown scenario {', '.join(unknown)}; there are {', '.join(known)}")
    for name in (SOAK, FLAME, GROWTH, FLOORS, INSPECTOR, FLEET, ISOLATION):
        if name in arguments.names and arguments.names != [name]:
            parser.error(f"{name} runs by itself")
    return arguments


def _raise_descriptor_limit() -> None:
    """Raise the limit of open files, because a thousand streams need more than 1,024. Child processes inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _leave(signum: int, frame: FrameType | None) -> None:
    """Exit by an exception, so that running servers are stopped."""
    del frame
    sys.exit(128 + signum)


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
