"""Build or serve the site: `python -m tools.site build TO`, `python -m tools.site serve`."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

from tools.site import ROOT, build, clear, lay_out

CACHE = ROOT / ".cache" / "site"
PAUSE = 0.5
"""Seconds between two checks for changed pages."""


def main(command: str, *arguments: str) -> int:
    """Run the command. Return the exit code."""
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
    """Serve the site until interrupted. When a page changes, Zensical builds again and the browser reloads."""
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
