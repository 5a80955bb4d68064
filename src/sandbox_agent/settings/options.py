"""The options: one table, from which flags, environment variables, keys of config.toml and the reference follow.

A default is written as a user would write it.
"""
# ruff: noqa: RUF009 - option() and derived() declare a field, as dataclasses.field() does

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TypeVar, cast, overload

from sandbox_agent.settings.values import (
    AGENT,
    COUNT,
    DURATION,
    HOST,
    LABEL,
    LOCATION,
    NATS,
    NODE,
    ORIGIN,
    PATH,
    PORT,
    PROXY,
    SIZE,
    SWITCH,
    TOKEN,
    Given,
    ValueKind,
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
    kind: ValueKind[object]
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
def option(group: str, kind: ValueKind[T], default: str, text: str) -> T: ...
@overload
def option(group: str, kind: ValueKind[T], default: None, text: str) -> T | None: ...
def option(group: str, kind: ValueKind[T], default: str | None, text: str) -> T | None:
    """A field of Settings."""
    value = None if default is None else kind.read(Given(default))
    return field(default=value, repr=not kind.secret, metadata={"option": Option(group, kind, default, text)})


def switch(group: str, text: str) -> bool:
    """A field that is off unless you turn it on."""
    return option(group, SWITCH, "false", text)


def repeated(group: str, kind: ValueKind[T], text: str) -> tuple[T, ...]:
    """A field that may be given several times."""
    return field(default=(), metadata={"option": Option(group, many(kind), None, text)})


def derived(group: str, kind: ValueKind[T], default: str, text: str) -> T:
    """A field whose default follows from others: `default` describes it, load() computes it."""
    return field(metadata={"option": Option(group, kind, default, text)})


_LISTEN, _ACCESS, _FILES, _AGENTS = "Listening", "Access", "Files", "Agents"
_HUMAN, _TRAFFIC, _LOG, _OUTPUT = "Permissions", "Requests and streams", "Session log", "Output"
_FLEET = "Fleet"
_LEVEL, _FORMAT = choice("debug", "info", "warning", "error"), choice("text", "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, validated. Durations are in seconds, sizes in bytes; paths are absolute."""

    host: str = option(_LISTEN, HOST, "127.0.0.1", "Address to listen on.")
    port: int = derived(
        _LISTEN, PORT, "2468, or 0 with --embedded", "Port to listen on; 0 picks a free one and prints it."
    )
    embedded: bool = switch(
        _LISTEN,
        "Serve only the program that starts it; stop when its stdin closes. Keep nothing, unless --data-dir is set.",
    )
    idle_exit: float | None = option(
        _LISTEN,
        DURATION,
        None,
        "Stop after this long without a client, a working agent or an install. Commands that start a server in the "
        "background set 30m.",
    )

    token: str | None = option(
        _ACCESS,
        TOKEN,
        None,
        "Token that clients must send; if you set none, one is generated and kept in the data directory.",
    )
    rotate_token: bool = switch(_ACCESS, "Replace the generated token with a new one.")
    token_file: Path | None = option(_ACCESS, PATH, None, "File that contains the token.")
    no_token: bool = switch(_ACCESS, "Serve without a token, on a loopback address only.")
    insecure: bool = switch(_ACCESS, "Allow --no-token on any address.")
    public_health: bool = switch(_ACCESS, "Answer GET /v1/health without a token.")
    allow_host: tuple[str, ...] = repeated(_ACCESS, HOST, "Another name to accept in a request's Host header.")
    cors_origin: tuple[str, ...] = repeated(_ACCESS, ORIGIN, "Origin whose pages may call the server.")
    frame_origin: tuple[str, ...] = repeated(
        _ACCESS, ORIGIN, "Origin whose pages may show a session of the Inspector (/ui/embed/...) in a frame."
    )

    config_dir: Path = derived(_FILES, PATH, "the user's own", "Configuration directory: config.toml and agents.toml.")
    data_dir: Path = derived(_FILES, PATH, "the user's own", "Data directory: the session log and the agents.")
    trust_data_dir: bool = switch(_FILES, "Use a data directory that other users can change.")
    no_persist: bool = switch(_FILES, "Keep the session log in memory only; it is gone when the server stops.")
    fs_root: tuple[Path, ...] = repeated(
        _FILES, PATH, "Directory that the file API, agents' fs/* and attachments may reach; without it, the whole host."
    )
    max_file: int | None = option(_FILES, SIZE, None, "Largest file that may be uploaded.")
    archive_bytes: int = option(_FILES, SIZE, "16GiB", "Largest size that an uploaded archive may unpack to.")
    archive_entries: int = option(_FILES, COUNT, "100000", "Most files and directories in an uploaded archive.")
    archive_ratio: int = option(
        _FILES, COUNT, "200", "Most bytes that an uploaded archive may unpack to, per byte sent."
    )
    archive_depth: int = option(_FILES, COUNT, "256", "Most levels in a path of an archive, sent or received.")
    archives: int = option(_FILES, COUNT, "16", "Most archives sent and received at the same time.")
    searches: int = option(_FILES, COUNT, "8", "Most searches that run at the same time.")
    search_results: int = option(_FILES, COUNT, "1000", "Most results that a search returns.")
    search_bytes: int = option(_FILES, SIZE, "8MiB", "Most text that a search returns.")
    search_time: float = option(_FILES, DURATION, "30s", "Longest time that a search may take.")
    watches: int = option(_FILES, COUNT, "64", "Most directories that clients may watch at the same time.")
    watch_buffer: int = option(
        _FILES, SIZE, "256KiB", "Changes to buffer for a slow reader before it gets an overflow event."
    )
    client_fs: bool = switch(_FILES, "Forward an agent's fs/* and terminal/* requests to a client that offers them.")

    agents_dir: Path = derived(_AGENTS, PATH, "agents in the data directory", "Directory to install agents in.")
    agents_file: Path = derived(
        _AGENTS, PATH, "agents.toml in the configuration directory", "File that lists your own agents."
    )
    acp_registry_url: str = option(_AGENTS, LOCATION, REGISTRY, "ACP registry to use: a URL, or the path of a file.")
    default_agent: str | None = option(_AGENTS, AGENT, None, "Agent for clients that name none.")
    install_timeout: float = option(_AGENTS, DURATION, "10m", "Longest time that installing an agent may take.")
    require_hashes: bool = switch(_AGENTS, "Refuse to install packages and archives that come without a hash.")
    require_preinstall: bool = switch(_AGENTS, "Do not install agents on first use; refuse them instead.")
    prompt_queue: int = option(_AGENTS, COUNT, "16", "Most prompts of a session that may wait for their turn.")
    max_line: int = option(_AGENTS, SIZE, "64MiB", "Longest line that an agent may write.")
    stdin_limit: int = option(
        _AGENTS, SIZE, "64MiB", "Input that an agent may leave unread before requests to it fail."
    )
    attachments: int = option(_AGENTS, COUNT, "100", "Most files that a prompt may attach.")
    attached_images: int = option(
        _AGENTS,
        SIZE,
        "20MiB",
        "Total size of the images in a prompt; the rest are attached like other files.",
    )
    stop_grace: float = option(
        _AGENTS, DURATION, "1s", "Time that an agent, or a command it runs, has to exit before it is killed."
    )
    text_limit: int = option(_AGENTS, SIZE, "8MiB", "Most text that an agent may read from a file at once.")
    text_scan: int = option(
        _AGENTS, SIZE, "256MiB", "How far into a file the server looks for a line that an agent wants."
    )
    terminals: int = option(_AGENTS, COUNT, "32", "Most terminals in a session.")
    terminal_output: int = option(_AGENTS, SIZE, "1MiB", "How much of a terminal's latest output to keep.")

    permission_timeout: float | None = option(
        _HUMAN, DURATION, None, "Time to answer an agent's request before it is rejected."
    )
    permissions_file: Path = derived(
        _HUMAN,
        PATH,
        "permissions.toml in the configuration directory",
        "File with rules that answer permission requests before people are asked.",
    )
    rules_steps: int = option(
        _HUMAN, COUNT, "250000", "Most steps that rules may take for one request; after that it is rejected."
    )
    rules_time: float = option(
        _HUMAN, DURATION, "10s", "Longest time that rules may take for one request; after that it is rejected."
    )

    request_timeout: float = option(
        _TRAFFIC, DURATION, "120s", "Time that an agent has to answer a request, except a prompt."
    )
    turn_idle_timeout: float = option(
        _TRAFFIC, DURATION, "30m", "Longest time in a turn without any sign of life from the agent."
    )
    connection_ttl: float = option(_TRAFFIC, DURATION, "30m", "Time after which an unused connection is closed.")
    max_body: int = option(_TRAFFIC, SIZE, "32MiB", "Largest request body.")
    read_every_head: bool = switch(
        _TRAFFIC,
        "Parse and check the head of every request, even when it repeats the one before it on its socket. Slower; for "
        "finding faults.",
    )
    anonymous_sockets: int = option(
        _TRAFFIC,
        COUNT,
        "512",
        "Most open sockets that have not sent the token yet; beyond that, the oldest are closed. Never more than a "
        "quarter of the process's descriptors.",
    )
    head_timeout: float = option(
        _TRAFFIC, DURATION, "30s", "Longest time for a request line and its headers, from the first byte to the last."
    )
    body_timeout: float = option(
        _TRAFFIC, DURATION, "60s", "Longest time without a byte of a body that the server is reading."
    )
    idle_timeout: float = option(
        _TRAFFIC, DURATION, "75s", "Longest time that a socket may stay open between two requests."
    )
    heartbeat: float = option(_TRAFFIC, DURATION, "15s", "Interval between the comments that keep a stream open.")
    pong_timeout: float = option(
        _TRAFFIC, DURATION, "60s", "Time that a WebSocket's client has to answer a ping before its socket is closed."
    )
    peer_timeout: float = option(
        _TRAFFIC, DURATION, "60s", "Time after which a socket is closed whose other end takes nothing of what was sent."
    )
    session_streams: int = option(
        _TRAFFIC, COUNT, "1000", "Most sessions of a connection that may have a stream of their own on /acp."
    )
    stream_buffer: int = option(
        _TRAFFIC, SIZE, "8MiB", "How far a slow reader may fall behind in memory before it reads from the log."
    )
    opencode_memory: int = option(
        _TRAFFIC,
        SIZE,
        "128MiB",
        "Memory for what OpenCode's programs read of sessions, a quarter for each; more is left out, oldest first.",
    )
    stall_timeout: float = option(
        _TRAFFIC, DURATION, "1s", "Time after which such a reader is disconnected if it reads nothing."
    )

    log_max_bytes: int = derived(
        _LOG, SIZE, "1GiB, or 64MiB with --no-persist", "Largest size of the log; the oldest events are deleted first."
    )
    log_max_age: float = option(_LOG, DURATION, "30d", "Age at which events are deleted from the log.")
    replay_bytes: int = option(_LOG, SIZE, "16MiB", "How much of the latest log to keep in memory.")
    write_backlog: int = option(
        _LOG, SIZE, "32MiB", "How much of the log may wait for the disk before agents are paused."
    )

    join: tuple[str, ...] = repeated(_FLEET, NATS, "NATS server of a fleet to join; give one, or several of a cluster.")
    creds: Path | None = option(_FLEET, PATH, None, "File with the credentials for the fleet's NATS servers.")
    join_proxy: str | None = option(
        _FLEET, PROXY, None, "HTTP proxy on the way to the fleet's NATS servers; ws and wss also use HTTPS_PROXY."
    )
    node: str = derived(_FLEET, NODE, "this machine's name", "Name of this server in the fleet.")
    label: tuple[str, ...] = repeated(_FLEET, LABEL, "Label that describes this server to the fleet.")
    publish_backlog: int = option(
        _FLEET, SIZE, "64MiB", "How much of the log may wait for the fleet before agents are paused."
    )
    flows: int = option(
        _FLEET, COUNT, "4096", "Requests between gateways and nodes under way at once, at this gateway or at this node."
    )
    node_rate: int = option(
        _FLEET, SIZE, "32MiB", "Bytes that a gateway takes of each node in a second; a node with more has to wait."
    )
    replicas: int = option(
        _FLEET, COUNT, "1", "NATS servers on which a gateway keeps each event; 3 for a cluster that may lose one."
    )

    log_level: str = option(_OUTPUT, _LEVEL, "info", "Lowest level that the server logs about itself.")
    quiet: bool = switch(_OUTPUT, "Print no hints at the start: neither the token nor a first call to try.")
    log_format: str = option(_OUTPUT, _FORMAT, "text", "Format of what the server logs about itself.")

    # Not options: what load() found out.
    token_generated: bool = False
    temporary: bool = False
    """The server makes a new data directory and deletes it at the end; `data_dir` is not used."""
    warnings: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()
    """The options that a flag, a variable or config.toml sets."""


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
