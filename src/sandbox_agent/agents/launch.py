"""How an agent's program is started on this machine, once it is there to be started."""

import fcntl
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

IN_USE = ".in-use"


@dataclass(frozen=True, slots=True)
class Launch:
    """A command and what its environment has beyond the agent's own; `folder` is what must stay while it runs."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    folder: Path | None = None

    def program(self, path: str | None) -> str | None:
        """The program that would run, searched for on `path`; None when there is none."""
        return shutil.which(self.command[0], path=path)

    def hold(self) -> "Hold":
        """Keep others from removing the folder, until it is released."""
        return Hold(self.folder)


class Hold:
    """A shared lock on a folder. What cannot be locked may still be run: a folder that only root may write, for one."""

    def __init__(self, folder: Path | None) -> None:
        self._descriptor: int | None = None
        if folder is not None:
            with suppress(OSError):
                self._descriptor = os.open(folder / IN_USE, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def release(self) -> None:
        """Let it go; a second time does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
