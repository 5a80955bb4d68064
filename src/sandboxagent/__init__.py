"""Run and control coding agents inside a sandbox, over HTTP.

You can import the client and its errors from here. They are loaded on first use.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandboxagent.client import (
        ClientError,
        ConnectionLost,
        ForeignAnswer,
        InvalidCall,
        LocalFileFailed,
        RequestError,
        SandboxAgent,
        SandboxAgentError,
        ServerProblem,
        StartFailed,
        TlsFailed,
    )

__version__ = "0.1.0"

__all__ = [
    "ClientError",
    "ConnectionLost",
    "ForeignAnswer",
    "InvalidCall",
    "LocalFileFailed",
    "RequestError",
    "SandboxAgent",
    "SandboxAgentError",
    "ServerProblem",
    "StartFailed",
    "TlsFailed",
    "__version__",
]

if not TYPE_CHECKING:
    # Hidden from type checkers, so that they report an unknown name.

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from sandboxagent import client

        value = globals()[name] = getattr(client, name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
