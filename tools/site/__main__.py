"""Build the site, or serve it while you write: `python -m tools.site build TO` or `python -m tools.site serve`."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

from tools.site import ROOT, build, clear, lay_out

CACHE = ROOT / ".cache" / "site"
PAUSE = 0.5
"""Seconds between two looks at whether a page has changed."""


def main(command: str, *arguments: str) -> int:
    """Do what the command line says; the result is the exit code."""
    if command == "serve":
        return _serve(*arguments)
    return _build(Path(*arguments))


def _build(to: Path) -> int:
    clear(CACHE)
    lay_out(CACHE)
    done = build(CACHE)
    if done.returncode:
        print(done.stdout)
        return done.returncode
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(CACHE / "site", to)
    print(f"the docs: {to}/index.html")
    return 0


def _serve(address: str = "127.0.0.1:8000") -> int:
    """Serve until you interrupt it. Zensical builds again whenever a laid-out page changes, and so does the browser."""
    clear(CACHE)
    lay_out(CACHE)
    with subprocess.Popen([sys.executable, "-m", "zensical", "serve", "--dev-addr", address], cwd=CACHE) as server:
        try:
            while server.poll() is None:
                time.sleep(PAUSE)
                lay_out(CACHE)
        except KeyboardInterrupt:
            server.terminate()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
