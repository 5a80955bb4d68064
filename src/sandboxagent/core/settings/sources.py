"""Read settings from flags, then environment variables, then config.toml.

It also reads the other TOML files that people write. Errors name the line in the file.
"""

import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from sandboxagent.core.settings.options import ENDPOINT_VARIABLE, OPTIONS, PREFIX, Settings
from sandboxagent.core.settings.values import FILE, FLAG, PATH, SWITCH, TOKEN, VARIABLE, Given, is_loopback
from sandboxagent.protocol.errors import SettingsError

_KEY = r"\"[^\"]*\"|'[^']*'|[\w-]+"


def read_toml(path: Path) -> tuple[dict[str, object], str]:
    """Return a file's content and its text, both empty if there is no file.

    Raises SettingsError, which names the problem.
    """
    try:
        text = path.read_text("utf-8-sig")
        content = tomllib.loads(text)
    except FileNotFoundError:
        return {}, ""
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: is not TOML: {error}") from None
    except RecursionError:
        from sandboxagent.protocol.json_bounds import MAX_DEPTH

        raise SettingsError(f"{path}: it is nested deeper than {MAX_DEPTH} levels") from None
    # Most commands read no file, and start faster without msgspec.
    from sandboxagent.protocol.json_bounds import check_depth

    reason = check_depth(content)
    if reason is not None:
        raise SettingsError(f"{path}: {reason}")
    return content, text


def line_of(text: str, path: Sequence[str]) -> int:
    """Return the line of a key, or of the nearest table around it if it is written inline."""
    table: list[str] = []
    nearest, depth = 1, 0
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*+\[++([^\]]++)\]", line)
        left, equals, _ = line.partition("=")
        if not header and (not equals or left.lstrip().startswith("#")):
            continue
        keys = [key.strip("\"'") for key in re.findall(_KEY, header[1] if header else left)]
        table = keys if header else table
        here = keys if header else table + keys
        if here[: len(path)] == list(path):
            return number
        if len(here) > depth and here == list(path[: len(here)]):
            nearest, depth = number, len(here)
    return nearest


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence that suggests the nearest known word; empty if none is near."""
    from difflib import get_close_matches

    near = get_close_matches(word, list(known))
    # Swapped letters are likely a typing mistake: --modle means --model rather than --mode.
    near.sort(key=lambda each: sorted(each) != sorted(word))
    return f"; did you mean {near[0]}?" if near else ""


# Read elsewhere: the mark by which a server finds its leftover processes, and two settings of the command line.
_OTHER_VARIABLES = frozenset({f"{PREFIX}OWNER", ENDPOINT_VARIABLE, f"{PREFIX}COMPLETION_TIMEOUT"})


def load(
    argv_options: Mapping[str, object],
    environ: Mapping[str, str],
    only: Collection[str] | None = None,
    *,
    file: bool = True,
) -> Settings:
    """Read settings from flags, the environment and config.toml; the first one that has an option wins.

    `argv_options` are the flags by option name; None means that a flag is not given. With `only`, all other options
    have their defaults. Without `file`, config.toml is not read: it may be the broken part.

    Raises SettingsError, which names the flag, the variable, or the file, line and key.
    """
    flags = _from_flags(argv_options)
    variables, warnings = _from_environment(environ)
    config_dir = _directory("config", flags.get("config_dir") or variables.get("config_dir"))
    found = (_from_file(config_dir / "config.toml") if file else {}) | variables | flags
    given = {name: value for name, value in found.items() if only is None or name in only}
    data_dir = _directory("data", given.get("data_dir"))
    embedded = "embedded" in given and SWITCH.value(given["embedded"])
    if embedded:
        given = _about_this_server(given)
    values = {each.name: each.kind.value(given[each.name]) for each in OPTIONS if each.name in given}
    defaults = {
        "port": 0 if embedded else 2468,
        "agents_dir": data_dir / "agents",
        "agents_file": config_dir / "agents.toml",
        "permissions_file": config_dir / "permissions.toml",
        "opencode_shell": "off" if values.get("fs_root") else "on",
        "node": _node_name(),
        "log_max_bytes": 64 * 1024**2 if values.get("no_persist") else 1024**3,
    }
    temporary = embedded and "data_dir" not in given
    known = {"config_dir": config_dir, "data_dir": data_dir, "temporary": temporary, "warnings": warnings}
    known |= {"given": frozenset(given)}
    settings = Settings(defaults | values | known)
    _check_files(settings, given)
    _check_fleet(settings, given)
    return _with_token(settings, given)


def _node_name() -> str:
    """Return this machine's name, reduced to the characters that a node's name may have."""
    name = re.sub("[^a-z0-9-]+", "-", os.uname().nodename.lower()).strip("-")
    return name[:40] or "node"


def _about_this_server(given: Mapping[str, Given]) -> dict[str, Given]:
    """Drop the settings about the address and the token of the user's own server, for an embedded server."""
    own: dict[str, int] = dict.fromkeys(("host", "port", "data_dir"), FLAG)
    own |= dict.fromkeys(("token", "token_file", "no_token", "insecure"), VARIABLE)
    return {name: value for name, value in given.items() if value.source <= own.get(name, FILE)}


def _from_flags(argv_options: Mapping[str, object]) -> dict[str, Given]:
    flags = {each.name: each.flag for each in OPTIONS}
    return {name: Given(raw, FLAG, flags[name]) for name, raw in argv_options.items() if raw is not None}


def _from_environment(environ: Mapping[str, str]) -> tuple[dict[str, Given], tuple[str, ...]]:
    """Return the options in the environment, and a warning for each unknown variable. An empty variable is ignored."""
    options = {each.variable: each for each in OPTIONS}
    given: dict[str, Given] = {}
    warnings: list[str] = []
    for variable in sorted(name for name in environ if name.startswith(PREFIX) and name not in _OTHER_VARIABLES):
        text, option = environ[variable], options.get(variable)
        if option is None:
            warnings.append(f"the environment variable {variable} is unknown{did_you_mean(variable, options)}")
        elif text:
            raw = [item.strip() for item in text.split(",") if item.strip()] if option.kind.many else text
            given[option.name] = Given(raw, VARIABLE, variable)
    return given, tuple(warnings)


def _from_file(path: Path) -> dict[str, Given]:
    table, text = read_toml(path)
    known = [each.name for each in OPTIONS if each.name != "config_dir"]
    given: dict[str, Given] = {}
    for key, raw in table.items():
        where = f"{path}, line {line_of(text, [key])}"
        if key not in known:
            hint = did_you_mean(key, known) or "; sandbox-agent server --help lists the settings"
            raise SettingsError(f"{where}: unknown key {key}{hint}")
        given[key] = Given(raw, FILE, f"{where}, {key}", path.parent)
    return given


def _directory(purpose: str, given: Given | None) -> Path:
    if given is not None:
        return PATH.value(given)
    import platformdirs

    find = platformdirs.user_config_path if purpose == "config" else platformdirs.user_data_path
    return find("sandbox-agent", appauthor=False)


def _check_files(settings: Settings, given: Mapping[str, Given]) -> None:
    # A file that the user named must exist, because a typo must not silently drop all permission rules.
    for name, path in (("agents_file", settings.agents_file), ("permissions_file", settings.permissions_file)):
        if name in given and (not os.access(path, os.R_OK) or path.is_dir()):
            raise SettingsError(f"{given[name].where}: no readable file at {path}")


def _check_fleet(settings: Settings, given: Mapping[str, Given]) -> None:
    """Refuse flags of a fleet without --join. In the environment or config.toml they may be meant for another start."""
    for name in () if settings.join else ("creds", "node", "label", "join_proxy"):
        if name in given and given[name].source == FLAG:
            raise SettingsError(
                f"{given[name].where} is about a fleet, and none is joined; name a NATS server of it, such as "
                "--join nats://host:4222"
            )


def _with_token(settings: Settings, given: Mapping[str, Given]) -> Settings:
    ways = sorted((given[name] for name in ("token", "token_file") if name in given), key=lambda way: way.source)
    if settings.no_token:
        _check_no_token(settings, given["no_token"], ways)
        return settings
    if not ways:
        return settings.changed(token=new_token(), token_generated=True)
    if settings.rotate_token and not settings.embedded:
        raise SettingsError(f"{given['rotate_token'].where}: the token is yours ({ways[0].where}); change it there")
    if len(ways) > 1 and ways[0].source == ways[1].source:
        raise SettingsError(f"{ways[0].where} and {ways[1].where} both give a token; give one of them")
    if settings.token_file is not None and ways[0] is given.get("token_file"):
        return settings.changed(token=_token_from(settings.token_file, ways[0].where))
    # The token is not from this file, so nothing may point to it.
    return settings.changed(token_file=None)


def _check_no_token(settings: Settings, given: Given, ways: list[Given]) -> None:
    if ways:
        raise SettingsError(f"{given.where} and {ways[0].where} contradict each other; give one of them")
    if not settings.insecure and not is_loopback(settings.host):
        raise SettingsError(
            f"{given.where}: without a token only a loopback address is served, which {settings.host} is not; "
            "give a token, or --insecure if everyone who can reach the server may use it"
        )


def new_token() -> str:
    """Make a token that a person can paste after `--token`."""
    import secrets

    while (token := secrets.token_urlsafe(32)).startswith("-"):
        pass  # A token that starts with a hyphen would look like a flag.
    return token


def _token_from(path: Path, where: str) -> str:
    try:
        text = path.read_text("utf-8").strip()
    except OSError as error:
        raise SettingsError(f"{where}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{where}: {path} is not text; it must hold the token") from None
    if not text:
        raise SettingsError(f"{where}: {path} is empty; it must hold the token")
    return TOKEN.value(Given(text, where=f"{where}: {path}"))
