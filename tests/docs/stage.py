"""Where snippets run: a server of their own on loopback, a directory, and the files that a page speaks of."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.fork_server import fork_server
from tests.support.running import TOKEN, Server

LONGEST = 240.0
"""Seconds that the snippets of a page may take on a machine that is busy."""
SERVER = "http://127.0.0.1:2468"
"""What the pages call the server."""

# As a reader would fill them in.
_TOKENS = {"TOKEN=...": f"TOKEN={TOKEN}", 'TOKEN = "..."': f'TOKEN = "{TOKEN}"'}


class Stage:
    """A server, a directory to be in, and words of the pages that stand for something of this machine."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.project = directory / "app"
        self.project.mkdir(parents=True)
        self.variables: dict[str, str] = {}
        """What a reader would have set by then."""
        self.here = directory / "here"
        self.here.mkdir()

    def filled_in(self, code: str) -> str:
        """The code with the address and the token of this server in it."""
        words = {SERVER: self.server.url, **_TOKENS}
        for word, meaning in words.items():
            code = code.replace(word, meaning)
        return code

    @property
    def environment(self) -> dict[str, str]:
        """What a snippet sees: the programs of the project, a home of its own, and which server is meant."""
        programs = Path(sys.executable).parent
        return {
            "PATH": f"{fork_server().programs}:{programs}:{os.environ['PATH']}",
            "HOME": str(self.here),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "URL": self.server.url,
            "TOKEN": TOKEN,
            "SANDBOX_AGENT_ENDPOINT": self.server.url,
            "SANDBOX_AGENT_TOKEN": TOKEN,
            "SANDBOX_AGENT_DATA_DIR": str(self.directory / "data-of-commands"),
            "SANDBOX_AGENT_CONFIG_DIR": str(self.server.directory / "config"),
            "SANDBOX_AGENT_ACP_REGISTRY_URL": str(self.server.directory / "registry.json"),
            **self.variables,
        }

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run something to its end, and end what it leaves in the background, such as a page's open stream."""
        out, err = self.directory / "out", self.directory / "err"
        # Files and not pipes: what is left in the background would hold those open.
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen(
                command,
                cwd=self.here,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            try:
                code = process.wait(LONGEST)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"it did not end\n{err.read_text()}\n{out.read_text()}") from None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return subprocess.CompletedProcess(command, code, out.read_text(), err.read_text())

    def put(self, name: str, text: str) -> Path:
        """A file to be run."""
        path = self.directory / name
        path.write_text(text)
        return path


@contextmanager
def stage(*flags: str) -> Generator[Stage]:
    """A stage, gone with the block. Its server reaches no file elsewhere."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as directory, Server("--fs-root", directory, *flags) as server:
        yield Stage(server, Path(directory))


def has(program: str) -> bool:
    """Whether this machine has a program."""
    return shutil.which(program) is not None
