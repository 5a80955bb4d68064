"""A gateway in front of one server, so that suites which know nothing of fleets run against a gateway."""

import atexit
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx

from sandboxagent.cli.commands.server import GATEWAY_FLAGS
from sandboxagent.cli.fleet.keys import FleetDirectory
from tests.support.nats import NatsServer, nats_server
from tests.support.running import BOUND, Server

NODE = "n1"
_OF_THE_GATEWAY = ("port", "token", "no_token", "insecure")
"""What is about the address that clients know: the node's own port keeps to itself."""
_OF_THE_NODE = ("data_dir", "config_dir")
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
STAND_IN = (
    "import sys; sys.path.insert(0, sys.argv[1]); from tests.support.fleet_of_one import serve; serve(sys.argv[2:])"
)
"""A program that is `serve`, with the project's directory before the arguments."""


class Front:
    """NATS and a gateway. Both outlive the server, which may be stopped and started; NATS keeps its streams."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self._nats: NatsServer | None = None
        self._gateway: Server | None = None
        self._keys = FleetDirectory(directory / "fleet")

    def flags_of_node(self, flags: Sequence[str]) -> list[str]:
        """What the server gets in place of its flags. A client needs nothing that opens its own port."""
        joining = ("--join", self._nats_url(), "--creds", str(self._keys.node_key(NODE)), "--node", NODE)
        kept = [word for option in _options(flags) if _name(option) not in _OF_THE_GATEWAY for word in option]
        return ["--token", "of-the-node", *kept, *joining]

    def start(self, node: Server) -> str:
        """Start the gateway when the node runs; gives its address when the node has joined."""
        kept = [word for option in _options(node.flags) if _is_of_gateway(_name(option)) for word in option]
        joining = ("--join", self._nats_url(), "--creds", str(self._keys.gateway_key))
        self._gateway = Server(
            *(*kept, *joining),
            token=node.token,
            directory=self._directory / "gateway",
            environment=node.environment,
            command="gateway",
        )
        self._gateway.start()
        self._wait_for_node(self._gateway)
        return self._gateway.url

    def stop(self, number: int) -> None:
        """End the gateway as the server is ended."""
        if self._gateway is None:
            return
        gateway, self._gateway = self._gateway, None
        code = gateway.stop(number)
        if number == signal.SIGTERM:
            assert code == 0, gateway.stderr
        assert "Traceback" not in gateway.stderr, gateway.stderr

    def close(self) -> None:
        """End the NATS server, too."""
        self.stop(signal.SIGTERM)
        self._stack.close()
        self._nats = None
        atexit.unregister(self.close)

    def _nats_url(self) -> str:
        if self._nats is None:
            if not self._keys.path.exists():
                self._keys.init()
                self._keys.invite(NODE)
            rights = self._keys.authorization()
            self._nats = self._stack.enter_context(
                nats_server(self._directory / "nats", keep=True, authorization=rights)
            )
            atexit.register(self.close)
        return self._nats.url

    def _wait_for_node(self, gateway: Server) -> None:
        kept = self._directory / "gateway" / "data" / "token"
        token = gateway.token or (kept.read_text().strip() if kept.exists() else "")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        end = time.monotonic() + BOUND
        while True:
            answer = httpx.get(f"{gateway.url}/v1/nodes", headers=headers, timeout=BOUND, verify=False)
            assert answer.status_code == 200, answer.text
            if answer.json()["nodes"]:
                return
            assert time.monotonic() < end, gateway.stderr
            time.sleep(0.02)


def _is_of_gateway(name: str) -> bool:
    return name in GATEWAY_FLAGS and name not in _OF_THE_NODE


def _options(flags: Sequence[str]) -> list[list[str]]:
    """Flags, each with its value."""
    found: list[list[str]] = []
    for word in flags:
        if word.startswith("--"):
            found.append([word])
        else:
            found[-1].append(word)
    return found


def _name(option: Sequence[str]) -> str:
    return option[0].removeprefix("--").replace("-", "_")


def serve(arguments: Sequence[str]) -> None:
    """Be `sandbox-agent server` for a program that starts it, with a gateway in front; SIGUSR1 is its SIGKILL."""
    options = {_name(each): each for each in _options(arguments[1:])}
    token, data = options.pop("token")[1], Path(options["data_dir"][1])
    flags = [word for option in options.values() for word in option]
    _share_stderr(data.parent / "behind" / "gateway")
    server = Server(*flags, token=token, directory=data.parent / "behind", environment=dict(os.environ), gateway=True)
    server.start()
    # Not before: programs inherit what is blocked.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        sys.stdout.write(f"sandbox-agent listening on {server.url}\n")
        sys.stdout.flush()
        number = signal.sigwait(_ENDING)
        server.stop(signal.SIGKILL if number == signal.SIGUSR1 else number)
    finally:
        server.close()


def _share_stderr(gateway: Path) -> None:
    """Let the gateway write to the file that this program writes to: tests read it."""
    mine = Path("/proc/self/fd/2").readlink()
    if mine.is_file() and not gateway.exists():
        gateway.mkdir(parents=True)
        (gateway / "stderr").symlink_to(mine)
