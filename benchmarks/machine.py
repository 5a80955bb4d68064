"""Describe the machine and the time of a run, and how busy the machine was with other processes."""

import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

from build import PEER_PACKAGE, PEER_VERSION, ROOT


def describe() -> list[str]:
    """Describe the machine. Call it before the first run, so that the load average does not include the benchmarks."""
    one, five, _ = os.getloadavg()
    cpu = _field("/proc/cpuinfo", "model name", ":") or "unknown CPU"
    memory = int(_field("/proc/meminfo", "MemTotal", ":").removesuffix(" kB") or 0) >> 20
    return [
        f"date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        f"machine: {os.cpu_count()} cores, {cpu}, {memory} GiB, {platform.system()} {platform.release()}",
        f"load average before: {one:.2f} (1 min), {five:.2f} (5 min)",
        f"ours: {_our_version()}, {_python()}, default settings (durable log, token)",
        f"peer: {PEER_PACKAGE} {PEER_VERSION}, RUST_LOG=error, no token, no telemetry",
    ]


def _python() -> str:
    """Return Python's version, and the time of a call of a function.

    Builds of one version with and without profile-guided optimization differ by more than half.
    """
    seconds: list[float] = []
    for _ in range(5):
        began = time.process_time()
        for number in range(100_000):
            _probe(number)
        seconds.append(time.process_time() - began)
    return f"Python {platform.python_version()} ({min(seconds) / 100_000 * 1e9:.0f} ns for a call of a function)"


def _probe(number: int) -> int:
    return number & 1


def source_stamp() -> int:
    """Return a value that changes with any source file of our server or SDKs, to notice edits during a run."""
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "sdks" / "typescript" / "src").rglob("*.ts")]
    return hash(frozenset((file, file.stat().st_mtime_ns) for file in files))


class Pace:
    """The steadiness of the machine's speed: the time of a fixed piece of work, measured between runs."""

    def __init__(self) -> None:
        self._seconds: list[float] = []

    def take(self) -> None:
        began = time.perf_counter()
        total = 0
        for number in range(400_000):
            total += number
        self._seconds.append(time.perf_counter() - began)

    def text(self) -> str:
        fastest, slowest = min(self._seconds), max(self._seconds)
        return f"{slowest / fastest:.1f}× between the fastest and the slowest of {len(self._seconds)} probes"


class Bystanders:
    """The CPU time of other processes since its creation. Our own processes count as ours once they have ended."""

    def __init__(self) -> None:
        self._busy, self._total = _machine_ticks()
        self._own = _own_seconds()

    def share(self) -> float:
        """Return the share of the whole machine, from 0 to 1."""
        busy, total = _machine_ticks()
        own = (_own_seconds() - self._own) * os.sysconf("SC_CLK_TCK")
        return max(0.0, busy - self._busy - own) / max(1, total - self._total)


def _machine_ticks() -> tuple[int, int]:
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _our_version() -> str:
    version = _field(ROOT / "src" / "sandboxagent" / "__init__.py", "__version__", "=").strip('"') or "unknown"
    command = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return f"sandbox-agent {version} ({commit.stdout.strip() or 'no commit'})"


def _field(path: str | Path, name: str, separator: str) -> str:
    """Return the text after the separator on the first line that starts with the name; empty if there is none."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(separator)[2].strip() for line in lines if line.startswith(name)), "")
