"""Announce the server's address to people and programs."""

import shlex
import socket
import sys

from sandboxagent.core.settings import Settings
from sandboxagent.server.listen import find_addresses


def announce(settings: Settings, listener: socket.socket, gateway: str = "") -> None:
    """Print one line to stdout that a program can wait for, and hints for people to stderr."""
    url, reachable = find_addresses(listener)
    kept = f"  (also in {settings.token_file})" if settings.token_file else "  (another one each time it starts)"
    hints = [f"token: {settings.token}{kept}"] if settings.token_generated else []
    other = f" --endpoint {reachable}" if gateway else ""
    hints += [f"open:  {_write_link(settings, reachable, other)}", f"try:   {_write_first_call(settings, reachable)}"]
    if settings.quiet:
        hints = []
    if url != reachable and settings.token is None:
        hints.append("warning: anyone who can reach this machine can run commands on it")
    if url != reachable and not settings.allow_host:
        hints.append("note:  clients that use a name for this machine are refused until --allow-host gives that name")
    if hints:
        print("\n".join(hints), file=sys.stderr, flush=True)
    print(f"sandbox-agent {f'gateway {gateway} ' if gateway else ''}listening on {url}", flush=True)


def _write_link(settings: Settings, url: str, other: str) -> str:
    """Return the Inspector's address, with the token in its fragment if the token was generated."""
    if settings.token is None:
        return f"{url}/ui/"
    if settings.token_generated:
        return f"{url}/ui/#token={settings.token}"
    return f"{url}/ui/  (or: sandbox-agent ui{other})"


def _write_first_call(settings: Settings, url: str) -> str:
    bearer = settings.token if settings.token_generated else "$TOKEN"
    if settings.token_file is not None and not settings.token_generated:
        bearer = f"$(cat {shlex.quote(str(settings.token_file))})"
    authorization = f'-H "Authorization: Bearer {bearer}" ' if settings.token else ""
    hint = "  # with TOKEN set to the token you gave" if bearer == "$TOKEN" and settings.token else ""
    body = (
        '{"jsonrpc":"2.0","id":1,"method":"initialize","params":'
        '{"protocolVersion":1,"_meta":{"sandboxagent.dev":{"agent":"mock"}}}}'
    )
    return f"curl -i {url}/v1/rpc {authorization}-H 'Content-Type: application/json' -d '{body}'{hint}"
