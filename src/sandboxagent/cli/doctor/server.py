"""Check the server on the data directory, the server that commands would call, and free ports."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal
from urllib.parse import urlsplit

import httpx
import msgspec
import psutil
from msgspec import Struct

from sandboxagent import __version__
from sandboxagent.cli.doctor import DoctorSubject, Finding
from sandboxagent.core.data_directory import find_lock_owner
from sandboxagent.core.discovery import USUAL_SERVER, Found, find_server, is_named, read_server_record
from sandboxagent.core.settings import OPTIONS
from sandboxagent.core.settings.options import ENDPOINT_VARIABLE, PREFIX
from sandboxagent.core.tls import TlsProblem, find_tls_problem
from sandboxagent.protocol.errors import SettingsError
from sandboxagent.protocol.json_bounds import read_answer

CONNECT_TIMEOUT, ANSWER_TIMEOUT = 1.0, 1.2
"""Seconds to connect to a server, and for the server to answer."""

_START = "Start one with: sandbox-agent daemon start"
_STARTED = "Commands start one when they need it. To run one until you stop it: sandbox-agent daemon start"


class ServerHealth(Struct, rename="camel"):
    """The members of a server's health that the doctor uses."""

    status: str
    version: str
    uptime_ms: int = 0
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class CallResult:
    """The outcome of a call to a server."""

    kind: Literal["ours", "refused", "misdirected", "other", "silent", "tls", "none"]
    health: ServerHealth | None = None
    problem: TlsProblem | None = None


def server(subject: DoctorSubject) -> list[Finding]:
    """Check the server that commands would call, the server on the data directory, and the port for a new one."""
    try:
        environ = _without_unknown_variables(subject.environ)
        target = find_server(subject.arguments.values, environ) or USUAL_SERVER
    except SettingsError as mistake:
        if str(mistake) in subject.mistakes:
            return [Finding("server", "server", "note", "no server was looked for, because the settings are wrong")]
        return [
            Finding("server", "endpoint", "problem", str(mistake), "Correct it: until then, no server can be called.")
        ]
    answer, pid = _ask(target), find_lock_owner(subject.settings.data_dir)
    found = _describe_answer(subject, target, answer, here=pid is not None)
    if pid is not None:
        found.append(_of_this_directory(subject, target, pid))
    return found + _port(subject, target, answer, pid)


def _port(subject: DoctorSubject, target: Found, answer: CallResult, pid: int | None) -> list[Finding]:
    """Check whether a new server could listen on its port."""
    settings = subject.settings
    port, called = settings.port, _port_of(target.url)
    answered = target.local and called == port and answer.kind != "none"
    if port == 0 or answered or (pid and port in _ports(pid)):
        return []
    return [_free_port(settings.host, port)]


def _without_unknown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without unknown variables, which another check reports."""
    known = {option.variable for option in OPTIONS} | {ENDPOINT_VARIABLE}
    return {name: value for name, value in environ.items() if not name.startswith(PREFIX) or name in known}


# --- calling it -------------------------------------------------------------------------------------------------------


def _ask(target: Found) -> CallResult:
    headers = {"Authorization": f"Bearer {target.token}"} if target.token else {}
    # Requests to this machine use no proxy.
    direct = {"http://": None, "https://": None} if target.local else None
    verify = not (target.local and target.url.startswith("http:"))
    timeout = httpx.Timeout(ANSWER_TIMEOUT, connect=CONNECT_TIMEOUT)
    try:
        with httpx.Client(
            base_url=target.url, headers=headers, timeout=timeout, mounts=direct, verify=verify
        ) as client:
            answer = _read(client.get("/v1/health"))
            # The health route may be public. This route always needs the token.
            return (
                answer
                if answer.health is None or client.get("/v1/agents/mock").status_code != HTTPStatus.UNAUTHORIZED
                else _REFUSED
            )
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        problem = find_tls_problem(error)
        return CallResult("none") if problem is None else CallResult("tls", problem=problem)
    except httpx.TimeoutException:
        return CallResult("silent")
    except httpx.HTTPError:
        return CallResult("other")


_REFUSED = CallResult("refused")


def _read(response: httpx.Response) -> CallResult:
    try:
        document = read_answer(response.content, dict[str, object])
        if response.status_code == HTTPStatus.OK:
            return CallResult("ours", msgspec.convert(document, ServerHealth))
    except msgspec.MsgspecError:
        return CallResult("other")
    if "title" in document and response.status_code == HTTPStatus.UNAUTHORIZED:
        return _REFUSED
    if "title" in document and response.status_code == HTTPStatus.MISDIRECTED_REQUEST:
        return CallResult("misdirected")
    return CallResult("other")


def _describe_answer(subject: DoctorSubject, target: Found, answer: CallResult, *, here: bool) -> list[Finding]:
    url = target.url
    match answer.kind:
        case "ours":
            assert answer.health is not None
            return _healthy(target, answer.health)
        case "refused":
            return [_explain_refusal(target)]
        case "misdirected":
            advice = "Start it with --allow-host and the name, or use its address."
            return [_problem(f"the server at {url} does not accept requests for that host name", advice)]
        case "other":
            sentence = f"{_who(target)} answers at {url}, but not like sandbox-agent"
            return [_problem(sentence, "Stop it, or name another address with --endpoint.")]
        case "silent":
            sentence = f"{_who(target)} takes connections at {url}, but did not answer within {ANSWER_TIMEOUT:g} s"
            return [_problem(sentence, "Read its log, then stop it and start it again.")]
        case "tls":
            assert answer.problem is not None
            advice = answer.problem.advice
            return [_problem(f"{url} {answer.problem.cause}", f"{advice[0].upper()}{advice[1:]}.")]
        case "none" if not target.local:
            advice = f"Check the address ({ENDPOINT_VARIABLE} or --endpoint) and the network."
            return [_problem(f"no server can be reached at {url}", advice)]
        case "none" if is_named(subject.arguments.values, subject.environ):
            return [Finding("server", "server", "note", f"no server answers at {url}", None if here else _START)]
        case "none":
            sentence = f"no server that commands could call runs on the data directory {subject.settings.data_dir}"
            return [Finding("server", "server", "note", sentence, None if here else _STARTED)]


def _problem(sentence: str, advice: str) -> Finding:
    return Finding("server", "server", "problem", sentence, advice)


def _healthy(target: Found, health: ServerHealth) -> list[Finding]:
    sentence = f"sandbox-agent {health.version} answers at {target.url}, up for {_time(health.uptime_ms / 1000)}"
    found = [Finding("server", "server", "ok", sentence)]
    if health.version != __version__:
        sentence = f"that server is version {health.version}, and this program is {__version__}"
        found.append(
            Finding("server", "server-version", "warning", sentence, "Restart the server if it is the older one.")
        )
    if health.status != "ok":
        sentence = f"that server is {health.status}: {health.detail or 'it does not say why'}"
        found.append(
            Finding(
                "server",
                "server-health",
                "problem",
                sentence,
                "Check whether its disk is full or read-only, and read its log.",
            )
        )
    told = "accepts the token that was found" if target.token else "needs no token"
    return [*found, Finding("server", "token", "ok", f"that server {told}")]


def _explain_refusal(target: Found) -> Finding:
    if target.token is None:
        sentence = f"the server at {target.url} needs a token, and none was found"
    else:
        sentence = f"the server at {target.url} does not accept the token from {target.token_source}"
    where = "the file token in the data directory of that server, which --data-dir names" if target.local else "a file"
    advice = f"Give its token with SANDBOX_AGENT_TOKEN or --token-file. A server that makes one writes it to {where}."
    if not target.local:
        advice = "Give its token with SANDBOX_AGENT_TOKEN or --token-file: it was started with that, or printed it."
    return Finding("server", "token", "problem", sentence, advice)


def _who(target: Found) -> str:
    return _listener(_port_of(target.url)) if target.local else "something"


# --- on this machine --------------------------------------------------------------------------------------------------


def _of_this_directory(subject: DoctorSubject, target: Found, pid: int) -> Finding:
    directory = subject.settings.data_dir
    told = read_server_record(directory)
    if told is not None and told.embedded:
        sentence = f"process {pid} holds the data directory {directory} for one program alone"
        advice = "Wait until that program ends, or choose another directory with --data-dir."
        return Finding("server", "data-server", "warning", sentence, advice)
    known = [_port_of(told.url)] if told else _ports(pid)
    where = f"a server (process {pid or 'unknown'}) uses the data directory {directory}"
    if not known:
        return Finding("server", "data-server", "ok", where)
    where += f" and listens on port {', '.join(map(str, known))}"
    if _port_of(target.url) in known:
        return Finding("server", "data-server", "ok", where)
    url = told.url if told else f"http://127.0.0.1:{known[0]}"
    advice = f"To call that one: export {ENDPOINT_VARIABLE}={url}"
    return Finding("server", "data-server", "warning", f"{where}, but commands call {target.url}", advice)


def _time(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


# --- ports ------------------------------------------------------------------------------------------------------------


def _free_port(host: str, port: int) -> Finding:
    """Check whether a server could listen on this address and port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # Bind to any port of that address, so that the configured port stays free for others.
            probe.bind((address[0], 0, *address[2:]))
    except OSError as error:
        sentence = f"a server cannot listen on {host}: {error.strerror or error}"
        return Finding("server", "port", "problem", sentence, "Choose an address of this machine with --host.")
    if _is_taken(str(address[0]), port):
        sentence = f"port {port} on {host} is taken by {_listener(port)}"
        advice = "Stop it, or choose another port with --port (SANDBOX_AGENT_PORT, or port in config.toml)."
        return Finding("server", "port", "problem", sentence, advice)
    return Finding("server", "port", "ok", f"port {port} on {host} is free")


def _is_taken(address: str, port: int) -> bool:
    unspecified = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound
    try:
        with socket.create_connection((unspecified.get(address, address), port), CONNECT_TIMEOUT):
            return True
    except TimeoutError:
        return True
    except OSError:
        return False


def _listener(port: int) -> str:
    """Name the program that listens on a local port. Never its arguments, which may contain a token."""
    try:
        found = [
            each.pid for each in psutil.net_connections("tcp") if _listens(each.status) and port in each.laddr[1:2]
        ]
        pid = next((pid for pid in found if pid), None)
        return "a process of another user" if pid is None else f"{psutil.Process(pid).name()} (process {pid})"
    except (psutil.Error, OSError):
        return "a process that cannot be inspected"


def _ports(pid: int) -> list[int]:
    """Return the ports on which a process listens; empty if it cannot be inspected."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except (psutil.Error, OSError):
        return []
    return sorted({number for each in connections if _listens(each.status) for number in each.laddr[1:2]})


def _port_of(url: str) -> int:
    """Return the port of an address."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _listens(status: str) -> bool:
    return status == psutil.CONN_LISTEN
