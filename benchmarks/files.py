"""Measure uploads and downloads, beside programs that do the same without our server."""

import io
import os
import shutil
import statistics
import subprocess
import tarfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from build import CACHE
from report import number, spread
from servers import Failed, Program, Running, free_port, peak
from transfer import download, upload

MIB = 1 << 20
MAX_RESIDENT = 64
"""Limit in MiB of the server's peak memory."""

_TAR = {"Content-Type": "application/x-tar"}
_NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr;
events {{ worker_connections 64; }}
http {{
  access_log off; sendfile on; default_type application/octet-stream;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


@dataclass(slots=True)
class Figures:
    """The figures of one task for each program, round by round, or the reason why there are none."""

    title: str
    unit: str
    expected: dict[str, str]
    values: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    missing: dict[str, str] = field(default_factory=dict[str, str])
    peaks: list[float] = field(default_factory=list[float])

    def take(self, who: str, measure: Callable[[], float]) -> None:
        try:
            self.values.setdefault(who, []).append(measure())
        except (Failed, OSError, subprocess.SubprocessError) as error:
            self.missing[who] = str(error)

    def rows(self) -> list[list[str]]:
        """Return a row for each other program: our figure, its figure, the ratio, and the expected ratio."""
        ours = self.values.get("ours", [])
        mine = f"{number(statistics.median(ours))} {self.unit}" if ours else self.missing.get("ours", "–")
        peak = f"{number(max(self.peaks))} MiB" if self.peaks else "–"
        rows: list[list[str]] = []
        for other, expected in self.expected.items():
            theirs = self.values.get(other, [])
            figure = f"{number(statistics.median(theirs))} {self.unit}" if theirs else self.missing.get(other, "–")
            ratios = [a / b for a, b in zip(ours, theirs, strict=False)]
            rows.append([self.title, mine, f"{other}: {figure}", spread(ratios) if ratios else "–", expected, peak])
        return rows

    def is_clean(self) -> bool:
        return "ours" not in self.missing and all(peak < MAX_RESIDENT for peak in self.peaks)


HEADER = ["files", "ours", "other", "ours/other, median (min–max)", "expected", "peak of ours"]


def measure(ours: Program, peer: Program | None, rounds: int, *, quick: bool) -> list[Figures]:
    """Measure all tasks round by round, with all programs in turn."""
    size, count = (64 * MIB, 1_000) if quick else (1024 * MIB, 10_000)
    down = Figures(f"{_size(size)} down", "MiB/s", {"nginx": "≥ 0.5", "peer": "–"})
    up = Figures(f"{_size(size)} up", "MiB/s", {"dd": "≥ 0.4", "peer": "–"})
    tar_up = Figures(f"{count:,} small files up, as tar", "files/s", {"tar": "–", "peer": "–"})
    tar_down = Figures(f"{count:,} small files down, as tar", "files/s", {"tar": "–"})
    if peer is None:
        for figures in (down, up, tar_up):
            figures.missing["peer"] = "n/a: peer not available"
    with _place() as place:
        large, packed = place / "large", place / "small.tar"
        _make_large(large, size)
        _make_small(packed, count)
        for _ in range(rounds):
            for program in (ours, peer):
                if program is not None:
                    _large(program, large, size, down, up)
                    _small(program, packed, count, tar_up, tar_down)
            down.take("nginx", lambda: _by_nginx(place, large, size))
            up.take("dd", lambda: _by_dd(large, place / "copy", size))
            tar_up.take("tar", lambda: _by_tar(packed, place / "unpacked", count))
            tar_down.take("tar", lambda: _to_tar(place / "unpacked", place / "again.tar", count))
            shutil.rmtree(place / "unpacked", ignore_errors=True)
    return [down, up, tar_up, tar_down]


def _large(program: Program, large: Path, size: int, down: Figures, up: Figures) -> None:
    """Measure both directions on one fresh server, so that its peak memory covers both."""
    with program.start() as running:
        headers = program.health_headers()
        copy = large.with_name("uploaded")

        def get() -> float:
            got = download(running.port, _target("file", large), headers)
            if got.received < size:
                raise Failed(f"only {got.received} of {size} bytes came")
            return size / MIB / got.seconds

        def put() -> float:
            sent = upload(running.port, "PUT", _target("file", copy), headers, large)
            if copy.stat().st_size != size:
                raise Failed(f"only {copy.stat().st_size} of {size} bytes are there")
            return size / MIB / sent.seconds

        _warm_up(program, running)
        down.take(program.name, get)
        down.peaks += _peak(program, running)
        up.take(program.name, put)
        up.peaks += _peak(program, running)
        copy.unlink(missing_ok=True)


def _small(program: Program, packed: Path, count: int, up: Figures, down: Figures) -> None:
    with program.start() as running:
        headers = program.health_headers()
        into = packed.with_name("uploaded-small")
        into.mkdir()

        def post() -> float:
            sent = upload(running.port, "POST", _target("upload-batch", into), headers | _TAR, packed)
            return count / sent.seconds

        _warm_up(program, running)
        up.take(program.name, post)
        up.peaks += _peak(program, running)
        if program.name == "ours":
            down.take("ours", lambda: count / download(running.port, _target("archive", into), headers).seconds)
            down.peaks += _peak(program, running)
        shutil.rmtree(into)


def _warm_up(program: Program, running: Running) -> None:
    """Send one request, so that the server imports its file routes before the measurement."""
    download(running.port, _target("stat", Path("/")), program.health_headers())


def _peak(program: Program, running: Running) -> list[float]:
    """Return our server's peak memory so far, in MiB; empty for the peer."""
    if program.name != "ours":
        return []
    return [peak(running.process.pid) / MIB]


def _by_nginx(place: Path, large: Path, size: int) -> float:
    binary = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if binary is None:
        raise Failed("skipped: no nginx")
    folder = place / "nginx"
    folder.mkdir(exist_ok=True)
    port = free_port()
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, port=port, root=place))
    # Its worker gives up root's rights, and must be able to read the file.
    for each in (place, folder):
        each.chmod(0o755)
    command = [binary, "-p", str(folder), "-c", str(folder / "nginx.conf")]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _await(port, server)
        got = download(port, f"/{large.name}", {})
        if got.received < size:
            raise Failed(f"only {got.received} of {size} bytes came")
        return size / MIB / got.seconds
    finally:
        server.terminate()
        server.wait()


def _by_dd(source: Path, copy: Path, size: int) -> float:
    seconds = _timed(["dd", f"if={source}", f"of={copy}", "bs=1M"])
    copy.unlink()
    return size / MIB / seconds


def _by_tar(packed: Path, into: Path, count: int) -> float:
    into.mkdir()
    return count / _timed(["tar", "-x", "-f", str(packed), "-C", str(into)])


def _to_tar(source: Path, packed: Path, count: int) -> float:
    return count / _timed(["tar", "-c", "-f", str(packed), "-C", str(source), "."])


def _timed(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - began


def _await(port: int, server: subprocess.Popen[bytes]) -> None:
    until = time.perf_counter() + 5
    while time.perf_counter() < until and server.poll() is None:
        try:
            download(port, "/small.tar", {})
        except (Failed, OSError):
            time.sleep(0.01)
        else:
            return
    raise Failed("nginx did not start")


def _target(route: str, path: Path) -> str:
    return f"/v1/fs/{route}?path={quote(str(path))}"


def _make_large(path: Path, size: int) -> None:
    piece = os.urandom(MIB)
    with path.open("wb") as file:
        for _ in range(size // MIB):
            file.write(piece)


def _make_small(path: Path, count: int) -> None:
    content = os.urandom(1024)
    with tarfile.open(path, "w") as archive:
        for index in range(count):
            info = tarfile.TarInfo(f"d{index // 100}/file{index}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@contextmanager
def _place() -> Generator[Path]:
    """Make a folder in the project, which is on a real disk: /tmp may be in memory."""
    place = CACHE / f"files-{os.getpid()}"
    place.mkdir(parents=True)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _size(size: int) -> str:
    return f"{size >> 30} GiB" if size >= 1 << 30 else f"{size >> 20} MiB"
