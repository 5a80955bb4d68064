"""What a real agent needs to run offline against the model server, and how it then behaves.

One module `recipe_<agent>.py` for each; `recipes.py` lists them. What the rows of the matrix cannot say by a field
here is a test in `test_real_<agent>.py`.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandboxagent.server.agents import manifest
from tests.support.client import Json
from tests.support.model.script import Call


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One agent."""

    agent: str
    environment: Callable[[Path, str], Mapping[str, str]]
    """Given a home that is its own and the model's address: writes its files, and gives its variables."""
    write: Callable[[Path, str], Call]
    """The call of its tool that writes a text to a file."""
    session_methods: frozenset[str]
    """Of load, resume, list, fork, close, delete: what it offers."""
    contents: frozenset[str]
    """Of image, audio, embeddedContext: what a prompt may hold besides text and links."""
    asks: bool
    """Whether it asks before it writes a file."""
    streams: bool = True
    """Whether it tells a message piece by piece; else when the model has said all of it."""
    reject_ends: str = "end_turn"
    """The stop reason of a turn in which it was not allowed to write."""
    reject_asks_model: bool = True
    """Whether the model learns of that in the same turn."""
    failure_code: int | None = -32603
    """The code with which a prompt fails when the model's API does; None: the turn ends as if nothing had been."""
    failure_told: bool = True
    """Whether the client gets what the API said then."""
    reads_links: bool = False
    """Whether it reads the file of a link itself; else the model is only told of the link."""
    decodes_links: bool = True
    """Whether it does so when the file's name had to be encoded; else nothing comes of the link."""
    age: Callable[[Path], None] | None = None
    """Given its home: make its sessions as old as they must be to be loaded; None: they may be new."""
    modes: tuple[str, str] | None = None
    """The mode that a session begins in, and another."""
    models: tuple[str, str] | None = None
    """The model that a session begins with, and another."""
    wire_models: tuple[str, str] | None = None
    """A part of how these are called when they are asked; None: they are called so."""
    option: tuple[str, str, str] | None = None
    """A further option of a session: its id, the value it begins with, and another."""

    @property
    def manifest(self) -> Json:
        """What the manifest says of it."""
        content = tomllib.loads(Path(manifest.__file__).with_name("manifest.toml").read_text())
        return content["agents"][self.agent]

    @property
    def version(self) -> str:
        """The version that the manifest pins of the program that speaks ACP."""
        return self.manifest["packages"][0]["version"]


def isolated(home: Path, model: str) -> dict[str, str]:
    """The variables that every agent gets: nothing of the user's own is seen, and nothing leaves the machine.

    Whatever is not on loopback would go through a proxy, which is the model server: it keeps all that it was asked.
    """
    folders = {name: home / name for name in ("config", "data", "state", "cache")}
    return {
        "HOME": str(home),
        **{f"XDG_{name.upper()}_HOME": str(folder) for name, folder in folders.items()},
        **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"), model),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
        "NODE_USE_ENV_PROXY": "1",
    }
