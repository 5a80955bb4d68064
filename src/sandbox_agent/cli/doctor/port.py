"""Ports of this machine: which are taken, and by whom."""

import socket
from urllib.parse import urlsplit

import psutil

from sandbox_agent.cli.doctor.finding import Finding, Status

CONNECT = 1.0
"""Seconds to reach one."""


def free_port(host: str, port: int) -> Finding:
    """Whether a server could listen there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # Any port of that address: the one that is meant stays free for others.
            probe.bind((address[0], 0, *address[2:]))
    except OSError as error:
        sentence = f"a server cannot listen on {host}: {error.strerror or error}"
        return _found("problem", sentence, "Choose an address of this machine with --host.")
    if _is_taken(str(address[0]), port):
        sentence = f"port {port} on {host} is taken by {listener(port)}"
        advice = "Stop it, or choose another port with --port (SANDBOX_AGENT_PORT, or port in config.toml)."
        return _found("problem", sentence, advice)
    return _found("ok", f"port {port} on {host} is free")


def _is_taken(address: str, port: int) -> bool:
    unspecified = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound
    try:
        with socket.create_connection((unspecified.get(address, address), port), CONNECT):
            return True
    except TimeoutError:
        return True
    except OSError:
        return False


def listener(port: int) -> str:
    """The program that listens on a port of this machine. Never its arguments: there may be a token among them."""
    try:
        found = [
            each.pid for each in psutil.net_connections("tcp") if _listens(each.status) and port in each.laddr[1:2]
        ]
        pid = next((pid for pid in found if pid), None)
        return "a process of somebody else" if pid is None else f"{psutil.Process(pid).name()} (process {pid})"
    except (psutil.Error, OSError):
        return "a process that cannot be looked at"


def ports(pid: int) -> list[int]:
    """Those that a process listens on, as far as it may be looked at."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except (psutil.Error, OSError):
        return []
    return sorted({number for each in connections if _listens(each.status) for number in each.laddr[1:2]})


def port_of(url: str) -> int:
    """The port of an address."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _listens(status: str) -> bool:
    return status == psutil.CONN_LISTEN


def _found(status: Status, sentence: str, advice: str | None = None) -> Finding:
    return Finding(area="server", name="port", status=status, sentence=sentence, advice=advice)
