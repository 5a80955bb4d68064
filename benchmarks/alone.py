"""Measure our own server alone: the cost of the durable log, and the imports at start."""

import statistics
from dataclasses import dataclass
from pathlib import Path

from build import Tools
from report import number, samples, spread
from scenarios import Run, burst, turns
from servers import Failed, Ours

HEAVIEST = 8


@dataclass(frozen=True, slots=True)
class Import:
    module: str
    own_us: int
    total_us: int


def persistence(tools: Tools, rounds: int, *, quick: bool) -> list[tuple[str, str]]:
    """Compare the durable log with --no-persist, in interleaved rounds."""
    rows: list[tuple[str, str]] = []
    small, large = burst(1, 20_000 if quick else 200_000, 120), burst(1, 5_000 if quick else 20_000, 4096)
    for case in (small, large, turns(32, 40 if quick else 500, "bare")):
        durable: list[Run] = []
        in_memory: list[Run] = []
        for _ in range(rounds):
            durable.append(case.run(Ours(tools.agent), tools))
            in_memory.append(case.run(Ours(tools.agent, persist=False), tools))
        values = [[sample.value for sample in samples(runs)] for runs in (durable, in_memory)]
        if all(values):
            middles = [number(statistics.median(side)) for side in values]
            ratio = spread([a / b for a, b in zip(*values, strict=False)])
            rows.append((f"{case.title}: durable / --no-persist", f"{' / '.join(middles)} {case.unit}, ratio {ratio}"))
        rows += [(f"{case.title}: failed", str(run)) for run in (*durable, *in_memory) if isinstance(run, Failed)]
    return rows


def imports(agent: Path) -> list[tuple[str, str]]:
    """List what `python -X importtime` counts from the start of the server to its first answer to a health request."""
    try:
        with Ours(agent, python_options=("-X", "importtime")).start() as running:
            found = _parse((running.folder / "server.log").read_text(errors="replace"))
    except Failed as failure:
        return [("imports at start: failed", str(failure))]
    total = sum(each.own_us for each in found) / 1000
    rows = [("imports at start (`-X importtime`, which slows them down)", f"{len(found)} modules, {number(total)} ms")]
    for package, own_us in sorted(_by_package(found).items(), key=lambda item: -item[1])[:HEAVIEST]:
        rows += [(f"of which modules of `{package}` themselves", f"{number(own_us / 1000)} ms")]
    return rows


def _parse(log: str) -> list[Import]:
    """Parse lines such as `import time:       120 |        340 |   package.module`, and skip all others."""
    found: list[Import] = []
    for line in log.splitlines():
        fields = line.removeprefix("import time:").split("|")
        if line.startswith("import time:") and len(fields) == 3 and fields[0].strip().isdigit():
            found.append(Import(fields[2].strip(), int(fields[0]), int(fields[1])))
    return found


def _by_package(found: list[Import]) -> dict[str, int]:
    packages: dict[str, int] = {}
    for each in found:
        package = each.module.partition(".")[0]
        packages[package] = packages.get(package, 0) + each.own_us
    return packages
