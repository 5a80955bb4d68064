"""Keep a fleet's directory: keys of gateways and nodes, and the NATS servers' configuration."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sandboxagent.fleet.bus import subjects
from sandboxagent.protocol.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

GATEWAY = "gateway.nk"
NODES = "nodes"


@dataclass(frozen=True, slots=True)
class NatsAddress:
    """The name and ports of one NATS server of a cluster: `port` for clients, `route` for the other servers."""

    name: str
    port: int
    route: int


class FleetDirectory:
    """A fleet's directory, made once by `init`. Only its owner can read the keys."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def gateway_key(self) -> Path:
        return self.path / GATEWAY

    def node_key(self, node: str) -> Path:
        return self.path / NODES / f"{node}.nk"

    def init(self) -> None:
        """Make the directory and the gateways' key. Raises SettingsError if a fleet is there already."""
        try:
            (self.path / NODES).mkdir(mode=0o700, parents=True)
            _write_key(self.gateway_key)
        except FileExistsError:
            raise SettingsError(f"{self.path} has a fleet already; choose another directory") from None
        except OSError as error:
            raise SettingsError(f"{self.path}: {error.strerror}") from error

    def invite(self, node: str) -> Path:
        """Make a key for a node, which can publish as this node and do nothing else. Raises SettingsError."""
        if not subjects.is_name(node):
            raise SettingsError(f"{node!r} is no name for a node: use 1 to 40 small letters, digits and hyphens")
        path = self.node_key(node)
        try:
            _write_key(path)
        except FileExistsError:
            raise SettingsError(f"{node} has been invited already: its key is {path}") from None
        except FileNotFoundError:
            raise SettingsError(f"{self.path} is not a fleet's directory; make one with: fleet init") from None
        return path

    def forget(self, node: str) -> None:
        """Delete a node's key. Raises SettingsError if there is none."""
        try:
            self.node_key(node).unlink()
        except FileNotFoundError:
            invited = ", ".join(path.stem for path in sorted((self.path / NODES).glob("*.nk")))
            raise SettingsError(f"{node} has not been invited; invited are: {invited or 'none'}") from None

    def authorization(self) -> dict[str, object]:
        """Return the users and their rights, in the form of a NATS server's configuration."""
        nodes = sorted((self.path / NODES).glob("*.nk"))
        users = [{"nkey": _public_key(path), "permissions": subjects.rights_of_node(path.stem)} for path in nodes]
        return {"users": [{"nkey": _public_key(self.gateway_key)}, *users]}

    def write_rights(self) -> Path:
        """Write the file that NATS servers include. They must read it again when it has changed."""
        path = self.path / "authorization.conf"
        path.write_text(f"authorization: {json.dumps(self.authorization(), indent=2)}\n")
        return path

    def write_server(self, place: NatsAddress, others: list[NatsAddress], **cluster: object) -> Path:
        """Write the configuration of one server of a local cluster. `cluster` is added to its member `cluster`."""
        directory = self.path / place.name
        directory.mkdir(mode=0o700, exist_ok=True)
        configuration: dict[str, object] = {
            "server_name": place.name,
            "host": "127.0.0.1",
            "port": place.port,
            "ping_interval": "10s",
            "jetstream": {"store_dir": str(directory / "streams"), "sync_interval": "always"},
        }
        if others:
            configuration["cluster"] = {
                "name": "fleet",
                "host": "127.0.0.1",
                "port": place.route,
                "routes": [f"nats://127.0.0.1:{other.route}" for other in others],
                # The other servers ask a frozen server for pages until they notice that it does not answer.
                "ping_interval": "2s",
                "ping_max": 2,
                **cluster,
            }
        path = directory / "server.conf"
        # NATS reads JSON as configuration, but `include` is not JSON.
        path.write_text(f"include ../authorization.conf\n{json.dumps(configuration, indent=2)[1:-1]}\n")
        return path


def _write_key(path: Path) -> None:
    import nkeys  # pyright: ignore[reportMissingTypeStubs] - it has none

    encode = cast("Callable[[bytes, int], bytes]", nkeys.encode_seed)
    seed = encode(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(seed)


def _public_key(path: Path) -> str:
    import nkeys  # pyright: ignore[reportMissingTypeStubs] - it has none

    read = cast("Callable[[bytearray], nkeys.KeyPair]", nkeys.from_seed)
    return bytes(read(bytearray(path.read_bytes().strip())).public_key).decode()
