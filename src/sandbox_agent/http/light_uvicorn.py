"""uvicorn without its command line, which it imports at once: an eighth of the time that the server takes to start.

Code that asks for it later, as `uvicorn.run`, gets it.
"""

import importlib
import sys
from types import ModuleType

_COMMAND_LINE = "uvicorn.main"


def _import_later(name: str) -> object:
    return getattr(importlib.import_module(_COMMAND_LINE), name)


if "uvicorn" not in sys.modules:
    names = ("Server", "main", "run")
    stand_in = ModuleType(_COMMAND_LINE)
    vars(stand_in).update(dict.fromkeys(names))
    sys.modules[_COMMAND_LINE] = stand_in
    try:
        import uvicorn
    finally:
        del sys.modules[_COMMAND_LINE]
    for name in names:
        delattr(uvicorn, name)
    setattr(uvicorn, "__getattr__", _import_later)  # noqa: B010 - a module has no such attribute by type

from uvicorn.config import Config  # noqa: E402 - only now
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol  # noqa: E402
from uvicorn.server import Server, ServerState  # noqa: E402

__all__ = ["STATUS_LINE", "Config", "HttpToolsProtocol", "Server", "ServerState"]
