"""Check files with credentials for NATS, and explain why a server refused them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import cast

import nkeys  # pyright: ignore[reportMissingTypeStubs] - it has none

from sandboxagent.fleet.bus.interface import BusRefused

_SEED = re.compile(rb"\s*(SU[A-Z2-7]+=*)\s*")
_CREDS = re.compile(
    rb"\s*-+BEGIN NATS USER JWT-+\s*[\w.-]+\s*-+END NATS USER JWT-+"
    rb".*?-+BEGIN USER NKEY SEED-+\s*(SU[A-Z2-7]+=*)\s*-+",
    re.DOTALL,
)


def holds_seed(path: Path) -> bool:
    """Return whether a file has only the seed of a key. Otherwise it is a `.creds` file of NATS. Raises BusRefused."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BusRefused(f"the credentials cannot be read: {path}: {error.strerror}") from error
    if (alone := _SEED.fullmatch(content)) is not None and _is_key(alone[1]):
        return True
    if (creds := _CREDS.match(content)) is not None and _is_key(creds[1]):
        return False
    raise BusRefused(
        f"there are no credentials in {path}; give a key of sandbox-agent fleet invite, or a .creds file of NATS"
    )


def _is_key(seed: bytes) -> bool:
    read = cast("Callable[[bytearray], nkeys.KeyPair]", nkeys.from_seed)
    try:
        read(bytearray(seed))
    except (nkeys.NkeysError, ValueError, IndexError):
        return False
    return True


def is_refusal(error: Exception) -> bool:
    """Return whether an error says that the server does not accept the credentials, or not any more."""
    text = str(error).lower()
    return any(word in text for word in ("authorization", "authentication expired", "authentication revoked", "nkey"))


def is_denial(error: Exception) -> bool:
    """Return whether an error says that the credentials do not allow an operation."""
    return "permissions violation" in str(error).lower()


def explain_denial(path: Path | None, node: str | None) -> str:
    """Explain credentials that do not allow a member to be this node; without `node`, a gateway."""
    if path is None:
        return "the NATS servers allow too little without credentials; name a file with --creds"
    if node is None:
        return (
            f"the credentials in {path} are not those of a gateway; "
            "give gateway.nk of the directory that sandbox-agent fleet init has made"
        )
    return (
        f"the credentials in {path} are not those of the node {node}; "
        f"give the key that sandbox-agent fleet invite has made for {node}, or the --node that the key is for"
    )


def explain_refusal(path: Path | None) -> str:
    """Explain why the NATS servers refuse the credentials, and what to do."""
    if path is None:
        return "the NATS servers want credentials; name a file with --creds"
    return (
        f"the NATS servers do not accept the credentials in {path}: they are wrong, have expired, or were taken "
        "away; make new ones: sandbox-agent fleet invite for a node, sandbox-agent fleet init for a gateway"
    )
