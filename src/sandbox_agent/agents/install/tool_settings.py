"""What npm and uv get of the user's own settings: where the index is, how to reach it, and how to sign in there.

Everything else stays behind: settings can name programs to run. Knows neither npm nor uv as programs.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from sandbox_agent.agents.manifest import allowed_environment

_NPM_KEYS = frozenset(
    {
        *("registry", "replace-registry-host", "before", "min-release-age"),
        *("ca", "cafile", "cert", "key", "strict-ssl"),
        *("proxy", "https-proxy", "http-proxy", "noproxy", "local-address", "maxsockets"),
        *("fetch-retries", "fetch-retry-factor", "fetch-retry-mintimeout", "fetch-retry-maxtimeout", "fetch-timeout"),
        *("cache", "offline", "prefer-offline", "prefer-online"),
    }
)
_NPM_SCOPED = re.compile(r"@[^\s:/=]+:registry|//[^\s=]+:(_authToken|_auth|username|_password|certfile|keyfile)")
_NPM_VARIABLE = re.compile("npm_config_", re.IGNORECASE)
_UV_VARIABLES = (
    *("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_*_USERNAME", "UV_INDEX_*_PASSWORD", "UV_INDEX_STRATEGY"),
    *("UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_EXCLUDE_NEWER"),
    *("UV_INSECURE_HOST", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS", "UV_HTTP_PROXY", "UV_HTTPS_PROXY", "UV_NO_PROXY"),
    *("UV_HTTP_*TIMEOUT", "UV_REQUEST_TIMEOUT", "UV_HTTP_RETRIES", "UV_CONCURRENT_*"),
    *("UV_CACHE_DIR", "UV_NO_CACHE", "UV_OFFLINE", "UV_LINK_MODE"),
)
_VARIABLES = ("npm_config_*", "NPM_*", "NODE_AUTH_TOKEN", "PIP_CERT", *_UV_VARIABLES)
_UV_INDEX_VARIABLES = {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL"}


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """The environment of npm and uv, and the file that npm takes for the user's."""

    environment: dict[str, str]
    npmrc: str = ""


def tool_settings(environ: Mapping[str, str]) -> ToolSettings:
    """What the server's environment, and the files that it names or that are in its home, say of indexes."""
    environment = {
        name: value for name, value in allowed_environment(environ, _VARIABLES).items() if _is_for_tools(name)
    }
    if not environment.keys() & _UV_INDEX_VARIABLES:
        environment |= _uv_indexes(environ)
    return ToolSettings(environment, _npmrc(environ))


def _is_for_tools(name: str) -> bool:
    prefix = _NPM_VARIABLE.match(name)
    if prefix is None:
        return True
    key = name[prefix.end() :]
    # As npm reads it.
    return _is_npm_key(key if key.startswith("//") else re.sub("(?!^)_", "-", key).lower())


def _is_npm_key(key: str) -> bool:
    return key in _NPM_KEYS or _NPM_SCOPED.fullmatch(key) is not None


def _npmrc(environ: Mapping[str, str]) -> str:
    """What is taken of the global and the user's .npmrc, the latter last because it wins."""
    home = environ.get("HOME")
    files = [_variable(environ, "globalconfig"), _variable(environ, "userconfig") or (home and f"{home}/.npmrc")]
    lines = [line for file in files if file for line in _npm_lines(_text(file))]
    return "".join(f"{line}\n" for line in lines)


def _variable(environ: Mapping[str, str], key: str) -> str | None:
    return environ.get(f"npm_config_{key}") or environ.get(f"NPM_CONFIG_{key.upper()}")


def _npm_lines(text: str) -> Iterable[str]:
    for line in text.splitlines():
        if line.lstrip().startswith("["):  # A section: what follows has other names.
            return
        key, equals, value = line.partition("=")
        key = key.strip().strip("\"'")
        if equals and _is_npm_key(key.removesuffix("[]")):
            yield f"{key}={value.strip()}"


def _uv_indexes(environ: Mapping[str, str]) -> dict[str, str]:
    """The indexes of the system's and the user's uv.toml, as the variables that say the same."""
    home = environ.get("HOME", "")
    user = environ.get("UV_CONFIG_FILE") or f"{environ.get('XDG_CONFIG_HOME') or f'{home}/.config'}/uv/uv.toml"
    found: dict[str, str] = {}
    for file in ("/etc/uv/uv.toml", user):
        try:
            settings = tomllib.loads(_text(file))
        except tomllib.TOMLDecodeError:
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


def _text(path: str) -> str:
    try:
        return Path(path).expanduser().read_text("utf-8", "replace")
    except (OSError, RuntimeError):  # There is no such file, or no home.
        return ""
