"""The options: one table, from which flags, environment variables, keys of config.toml and the reference follow.

A default is written as a user would write it.
"""
# ruff: noqa: RUF009 - option() and derived() declare a field, as dataclasses.field() does

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TypeVar, cast, overload

from sandbox_agent.settings.values import (
    COUNT,
    DURATION,
    HOST,
    LOCATION,
    ORIGIN,
    PATH,
    PORT,
    SIZE,
    SWITCH,
    TOKEN,
    Given,
    Kind,
    choice,
    many,
)

T = TypeVar("T")

PREFIX = "SANDBOX_AGENT_"
REGISTRY = "https://cdn.agentclientprotocol.com/registry/v1/latest/registry.json"


@dataclass(frozen=True, slots=True)
class Option:
    """One option: what it takes, what it does, and what it is called in each place (its name is its key)."""

    group: str
    kind: Kind[object]
    default: str | None
    text: str
    name: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


@overload
def option(group: str, kind: Kind[T], default: str, text: str) -> T: ...
@overload
def option(group: str, kind: Kind[T], default: None, text: str) -> T | None: ...
def option(group: str, kind: Kind[T], default: str | None, text: str) -> T | None:
    """A field of Settings."""
    value = None if default is None else kind.read(Given(default))
    return field(default=value, repr=not kind.secret, metadata={"option": Option(group, kind, default, text)})


def switch(group: str, text: str) -> bool:
    """A switch that is off by default."""
    return option(group, SWITCH, "false", text)


def repeated(group: str, kind: Kind[T], text: str) -> tuple[T, ...]:
    """A field that may be given several times."""
    return field(default=(), metadata={"option": Option(group, many(kind), None, text)})


def derived(group: str, kind: Kind[T], default: str, text: str) -> T:
    """A field whose default follows from others: `default` describes it, load() computes it."""
    return field(metadata={"option": Option(group, kind, default, text)})


_LISTEN, _ACCESS, _FILES, _AGENTS = "Listening", "Access", "Files", "Agents"
_HUMAN, _TRAFFIC, _LOG, _OUTPUT = "Permissions", "Requests and streams", "Session log", "Output"
_LEVEL, _FORMAT = choice("debug", "info", "warning", "error"), choice("text", "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, checked. Durations are seconds, sizes bytes, paths absolute."""

    host: str = option(_LISTEN, HOST, "127.0.0.1", "Address to listen on.")
    port: int = derived(
        _LISTEN, PORT, "2468, or 0 with --embedded", "Port to listen on; 0 takes any free one and prints it."
    )
    embedded: bool = switch(
        _LISTEN,
        "Serve the one program that starts it: end with its stdin. Unless --data-dir is given, nothing is kept.",
    )

    token: str | None = option(_ACCESS, TOKEN, None, "Token that clients must send; generated when none is given.")
    token_file: Path | None = option(_ACCESS, PATH, None, "File that holds the token.")
    no_token: bool = switch(_ACCESS, "Serve without a token, on a loopback address only.")
    insecure: bool = switch(_ACCESS, "Let --no-token serve on any address.")
    public_health: bool = switch(_ACCESS, "Answer GET /v1/health without a token.")
    allow_host: tuple[str, ...] = repeated(_ACCESS, HOST, "Another name that a request's Host header may carry.")
    cors_origin: tuple[str, ...] = repeated(_ACCESS, ORIGIN, "Origin whose pages may call the server.")

    config_dir: Path = derived(_FILES, PATH, "the user's own", "Configuration directory: config.toml and agents.toml.")
    data_dir: Path = derived(_FILES, PATH, "the user's own", "Data directory: the session log and the agents.")
    trust_data_dir: bool = switch(_FILES, "Use a data directory that other users can change.")
    no_persist: bool = switch(_FILES, "Keep the session log in memory; it ends with the server.")
    fs_root: tuple[Path, ...] = repeated(
        _FILES, PATH, "Directory that limits the file API, agents' fs/* and attachments; the default is the whole host."
    )
    max_file: int | None = option(_FILES, SIZE, None, "Largest file that may be uploaded.")
    archive_bytes: int = option(_FILES, SIZE, "16GiB", "Largest size an uploaded archive may unpack to.")
    archive_entries: int = option(_FILES, COUNT, "100000", "Most files and folders in an uploaded archive.")
    archive_ratio: int = option(
        _FILES, COUNT, "200", "Highest compression ratio of an uploaded archive: unpacked bytes per byte sent."
    )
    archive_depth: int = option(_FILES, COUNT, "256", "Most levels of a path in an archive, uploaded or downloaded.")
    archives: int = option(_FILES, COUNT, "16", "Archives that may be uploaded and downloaded at once.")
    searches: int = option(_FILES, COUNT, "8", "Searches that may run at once.")
    search_results: int = option(_FILES, COUNT, "1000", "Most results of a search.")
    search_bytes: int = option(_FILES, SIZE, "8MiB", "Most text in the results of a search.")
    search_time: float = option(_FILES, DURATION, "30s", "Time that a search may take.")
    watches: int = option(_FILES, COUNT, "64", "Directories that clients may watch at once.")
    watch_buffer: int = option(_FILES, SIZE, "256KiB", "Changes kept for a slow reader before it gets an `overflow`.")
    client_fs: bool = switch(_FILES, "Ask a client that offers it, not the server, for an agent's fs/* and terminal/*.")

    agents_dir: Path = derived(_AGENTS, PATH, "agents in the data directory", "Directory where agents are installed.")
    agents_file: Path = derived(
        _AGENTS, PATH, "agents.toml in the configuration directory", "File that names your own agents."
    )
    acp_registry_url: str = option(
        _AGENTS, LOCATION, REGISTRY, "Where the ACP registry is: an address, or a path to a file."
    )
    install_timeout: float = option(_AGENTS, DURATION, "10m", "Time that installing an agent may take.")
    require_hashes: bool = switch(_AGENTS, "Refuse to install anything that has no hash to check it against.")
    require_preinstall: bool = switch(_AGENTS, "Never install an agent on first use; refuse it instead.")
    prompt_queue: int = option(_AGENTS, COUNT, "16", "Prompts of one session that may wait for their turn.")
    max_line: int = option(_AGENTS, SIZE, "64MiB", "Longest line an agent may write.")
    stdin_limit: int = option(_AGENTS, SIZE, "64MiB", "Input an agent may leave unread before requests to it fail.")
    attachments: int = option(_AGENTS, COUNT, "100", "Files that one prompt may attach.")
    attached_images: int = option(
        _AGENTS,
        SIZE,
        "20MiB",
        "Size of all images that are put into one prompt; further ones are attached like other files.",
    )
    stop_grace: float = option(
        _AGENTS, DURATION, "1s", "Time an agent, or a command it runs, has to exit before it is killed."
    )
    text_limit: int = option(_AGENTS, SIZE, "8MiB", "Most an agent may read from a file at once.")
    text_scan: int = option(_AGENTS, SIZE, "256MiB", "Most of a file that is gone through to find a line for an agent.")
    terminals: int = option(_AGENTS, COUNT, "32", "Terminals that one session may have.")
    terminal_output: int = option(_AGENTS, SIZE, "1MiB", "How much of a terminal's newest output is kept.")

    permission_timeout: float | None = option(
        _HUMAN, DURATION, None, "Time to answer an agent's request; then it is rejected."
    )
    permissions_file: Path = derived(
        _HUMAN,
        PATH,
        "permissions.toml in the configuration directory",
        "File of permission rules, applied before a client is asked.",
    )
    rules_steps: int = option(
        _HUMAN, COUNT, "250000", "Steps that rules may take to decide one request; beyond, it is rejected."
    )
    rules_time: float = option(
        _HUMAN, DURATION, "10s", "Time that rules may take to decide one request; then it is rejected."
    )

    request_timeout: float = option(_TRAFFIC, DURATION, "120s", "Time an agent has to answer, prompts excepted.")
    turn_idle_timeout: float = option(
        _TRAFFIC, DURATION, "30m", "Time a turn may run without any message from the agent."
    )
    connection_ttl: float = option(_TRAFFIC, DURATION, "30m", "Time an unused connection is kept.")
    max_body: int = option(_TRAFFIC, SIZE, "32MiB", "Largest request body.")
    anonymous_sockets: int = option(
        _TRAFFIC,
        COUNT,
        "512",
        "Sockets that may be open without having shown the token, the oldest closed first; at most a quarter of the "
        "descriptors that the process may have.",
    )
    head_timeout: float = option(
        _TRAFFIC, DURATION, "30s", "Time a request line and its headers may take from their first byte to their last."
    )
    body_timeout: float = option(
        _TRAFFIC, DURATION, "60s", "Time that may pass without a byte of a body that the server waits for."
    )
    idle_timeout: float = option(_TRAFFIC, DURATION, "75s", "Time a socket may stay open between two requests.")
    heartbeat: float = option(_TRAFFIC, DURATION, "15s", "Interval of the comments that keep a stream open.")
    stream_buffer: int = option(
        _TRAFFIC, SIZE, "8MiB", "Data buffered in memory for a slow reader before it reads from the log."
    )
    stall_timeout: float = option(
        _TRAFFIC, DURATION, "1s", "Time a slow reader may read nothing before it is disconnected."
    )

    log_max_bytes: int = derived(
        _LOG, SIZE, "1GiB, or 64MiB with --no-persist", "Size of the log; the oldest events go first."
    )
    log_max_age: float = option(_LOG, DURATION, "30d", "Age at which events leave the log.")
    replay_bytes: int = option(_LOG, SIZE, "32MiB", "How much of the newest log is kept in memory.")
    write_backlog: int = option(
        _LOG, SIZE, "64MiB", "Part of the log that may wait for the disk before agents are paused."
    )

    log_level: str = option(_OUTPUT, _LEVEL, "info", "Lowest level of log messages to write.")
    quiet: bool = switch(_OUTPUT, "Print no hints for people at the start: neither the token nor a first call to try.")
    log_format: str = option(_OUTPUT, _FORMAT, "text", "Format of log messages.")

    # Not options: what load() found out.
    token_generated: bool = False
    temporary: bool = False
    """The data directory is to be a new one that ends with the server; `data_dir` is not the one."""
    warnings: tuple[str, ...] = ()


OPTIONS: tuple[Option, ...] = tuple(
    replace(cast("Option", each.metadata["option"]), name=each.name) for each in fields(Settings) if each.metadata
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the reference."""

    group: str
    flag: str
    variable: str
    key: str
    default: str
    text: str


def options_table() -> list[Row]:
    """Every option as the reference shows it, in its order."""
    return [
        Row(
            group=each.group,
            flag=f"{each.flag} {each.kind.metavar}".strip(),
            variable=each.variable,
            # It says where config.toml is, so it cannot be in there.
            key="" if each.name == "config_dir" else each.name,
            default=each.default or "none",
            text=f"{each.text} May be repeated." if each.kind.many else each.text,
        )
        for each in OPTIONS
    ]
