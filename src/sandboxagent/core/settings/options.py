"""Define all options in one table, from which flags, variables, keys and the reference follow.

A default is written as a user would write it.
"""

from collections.abc import Mapping
from typing import Generic, NoReturn, TypeVar, cast, overload

from sandboxagent.core.settings.values import (
    AGENT,
    COUNT,
    DURATION,
    DURATION_OR_NONE,
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
T_co = TypeVar("T_co", covariant=True)

PREFIX = "SANDBOX_AGENT_"
ENDPOINT_VARIABLE = f"{PREFIX}ENDPOINT"
"""The environment variable with the address of the server that commands call."""
REGISTRY = "https://cdn.agentclientprotocol.com/registry/v1/latest/registry.json"


class Option(Generic[T_co]):
    """One option: its kind, its description, and its name in each place. Its key is `name`.

    It is an attribute of Settings: on the class it is the option, on an instance the value.
    """

    __slots__ = ("default", "group", "initial", "kind", "name", "text")

    def __init__(self, group: str, kind: ValueKind[object], default: str | None, text: str, initial: object) -> None:
        self.group, self.kind, self.default, self.text = group, kind, default, text
        self.initial = initial
        """The value if none is given. A text is read on access."""
        self.name = ""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, settings: None, owner: type) -> "Option[T_co]": ...
    @overload
    def __get__(self, settings: "Settings", owner: type) -> T_co: ...
    def __get__(self, settings: "Settings | None", owner: type) -> "Option[T_co] | T_co":
        """Return a value that is not given. Python calls this if the instance has no attribute of that name."""
        if settings is None:
            return self
        return cast("T_co", self.kind.read(Given(self.initial)) if isinstance(self.initial, str) else self.initial)


@overload
def option(group: str, kind: ValueKind[T], default: str, text: str) -> Option[T]: ...
@overload
def option(group: str, kind: ValueKind[T], default: None, text: str) -> Option[T | None]: ...
def option(group: str, kind: ValueKind[T], default: str | None, text: str) -> Option[T] | Option[T | None]:
    """Make an option with a default, or with None for no value."""
    return Option(group, kind, default, text, default)


def switch(group: str, text: str) -> Option[bool]:
    """Make an option that is off by default."""
    return Option(group, SWITCH, "false", text, initial=False)


def repeated(group: str, kind: ValueKind[T], text: str) -> Option[tuple[T, ...]]:
    """Make an option that may be given several times."""
    return Option(group, many(kind), None, text, ())


def derived(group: str, kind: ValueKind[T], default: str, text: str) -> Option[T]:
    """Make an option whose default depends on other options: `default` describes it, and load() computes it."""
    return Option(group, kind, default, text, None)


_LISTEN, _ACCESS, _FILES, _AGENTS = "Listening", "Access", "Files", "Agents"
_HUMAN, _TRAFFIC, _LOG, _OUTPUT = "Permissions", "Requests and streams", "Session log", "Output"
_FLEET = "Fleet"
_LEVEL, _FORMAT = choice("debug", "info", "warning", "error"), choice("text", "json")


class Settings:
    """All settings, validated. Durations are in seconds, sizes in bytes; paths are absolute."""

    host = option(_LISTEN, HOST, "127.0.0.1", "Address to listen on.")
    port = derived(_LISTEN, PORT, "2468, or 0 with --embedded", "Port to listen on; 0 picks a free one and prints it.")
    embedded = switch(
        _LISTEN,
        "Serve only the program that starts it; stop when its stdin closes. Keep nothing, unless --data-dir is set.",
    )
    idle_exit = option(
        _LISTEN,
        DURATION,
        None,
        "Stop after this long without a client, a working agent or an install. Commands that start a server in the "
        "background set 30m.",
    )

    token = option(
        _ACCESS,
        TOKEN,
        None,
        "Token that clients must send; if you set none, one is generated and kept in the data directory.",
    )
    rotate_token = switch(_ACCESS, "Replace the generated token with a new one.")
    token_file = option(_ACCESS, PATH, None, "File that contains the token.")
    no_token = switch(_ACCESS, "Serve without a token, on a loopback address only.")
    insecure = switch(_ACCESS, "Allow --no-token on any address.")
    public_health = switch(_ACCESS, "Answer GET /v1/health without a token.")
    allow_host = repeated(_ACCESS, HOST, "Another name to accept in a request's Host header.")
    cors_origin = repeated(_ACCESS, ORIGIN, "Origin whose pages may call the server.")
    frame_origin = repeated(
        _ACCESS, ORIGIN, "Origin whose pages may show a session of the Inspector (/ui/embed/...) in a frame."
    )

    config_dir = derived(_FILES, PATH, "the user's own", "Configuration directory: config.toml and agents.toml.")
    data_dir = derived(_FILES, PATH, "the user's own", "Data directory: the session log and the agents.")
    trust_data_dir = switch(_FILES, "Use a data directory that other users can change.")
    no_persist = switch(_FILES, "Keep the session log in memory only; it is gone when the server stops.")
    fs_root = repeated(
        _FILES, PATH, "Directory that the file API, agents' fs/* and attachments may reach; without it, the whole host."
    )
    max_file = option(_FILES, SIZE, None, "Largest file that may be uploaded.")
    archive_bytes = option(_FILES, SIZE, "16GiB", "Largest size that an uploaded archive may unpack to.")
    archive_entries = option(_FILES, COUNT, "100000", "Most files and directories in an uploaded archive.")
    archive_ratio = option(_FILES, COUNT, "200", "Most bytes that an uploaded archive may unpack to, per byte sent.")
    archive_depth = option(_FILES, COUNT, "256", "Most levels in a path of an archive, sent or received.")
    archives = option(_FILES, COUNT, "16", "Most archives sent and received at the same time.")
    searches = option(_FILES, COUNT, "8", "Most searches that run at the same time.")
    search_results = option(_FILES, COUNT, "1000", "Most results that a search returns.")
    search_bytes = option(_FILES, SIZE, "8MiB", "Most text that a search returns.")
    search_time = option(_FILES, DURATION, "30s", "Longest time that a search may take.")
    watches = option(_FILES, COUNT, "64", "Most directories that clients may watch at the same time.")
    watched_directories = option(
        _FILES, COUNT, "65536", "Most directories in all that clients watch together; each counts once."
    )
    watch_buffer = option(
        _FILES, SIZE, "256KiB", "Changes to buffer for a slow reader before it gets an overflow event."
    )
    client_fs = switch(_FILES, "Forward an agent's fs/* and terminal/* requests to a client that offers them.")

    agents_dir = derived(_AGENTS, PATH, "agents in the data directory", "Directory to install agents in.")
    agents_file = derived(
        _AGENTS, PATH, "agents.toml in the configuration directory", "File that lists your own agents."
    )
    acp_registry_url = option(_AGENTS, LOCATION, REGISTRY, "ACP registry to use: a URL, or the path of a file.")
    default_agent = option(_AGENTS, AGENT, None, "Agent for clients that name none.")
    install_timeout = option(_AGENTS, DURATION, "10m", "Longest time that installing an agent may take.")
    require_hashes = switch(_AGENTS, "Refuse to install packages and archives that come without a hash.")
    require_preinstall = switch(_AGENTS, "Do not install agents on first use; refuse them instead.")
    prompt_queue = option(_AGENTS, COUNT, "16", "Most prompts of a session that may wait for their turn.")
    max_line = option(_AGENTS, SIZE, "64MiB", "Longest line that an agent may write.")
    stdin_limit = option(_AGENTS, SIZE, "64MiB", "Input that an agent may leave unread before requests to it fail.")
    agent_memory = option(
        _AGENTS,
        SIZE,
        "256MiB",
        "Memory for the data that the server keeps for an agent process: waiting requests, and held-back updates. "
        "Beyond that its requests are rejected.",
    )
    attachments = option(_AGENTS, COUNT, "100", "Most files that a prompt may attach.")
    attached_images = option(
        _AGENTS,
        SIZE,
        "20MiB",
        "Total size of the images in a prompt; the rest are attached like other files.",
    )
    stop_grace = option(
        _AGENTS, DURATION, "1s", "Time that an agent, or a command it runs, has to exit before it is killed."
    )
    text_limit = option(_AGENTS, SIZE, "8MiB", "Most text that an agent may read from a file at once.")
    text_scan = option(_AGENTS, SIZE, "256MiB", "How far into a file the server looks for a line that an agent wants.")
    terminals = option(_AGENTS, COUNT, "32", "Most terminals in a session.")
    terminal_output = option(_AGENTS, SIZE, "1MiB", "How much of a terminal's latest output to keep.")

    permission_timeout = option(
        _HUMAN,
        DURATION_OR_NONE,
        "24h",
        "Time to answer an agent's request before it is rejected; none: it waits for as long as its agent does.",
    )
    pending_requests = option(
        _HUMAN, COUNT, "10000", "Most requests of an agent process that wait for people; one more is rejected."
    )
    permissions_file = derived(
        _HUMAN,
        PATH,
        "permissions.toml in the configuration directory",
        "File with rules that answer permission requests before people are asked.",
    )
    opencode_shell = derived(
        _HUMAN,
        choice("on", "off"),
        "on, or off with --fs-root",
        "Whether people may run commands on this machine from OpenCode's programs (!command).",
    )
    rules_steps = option(
        _HUMAN, COUNT, "250000", "Most steps that rules may take for one request; after that it is rejected."
    )
    rules_time = option(
        _HUMAN, DURATION, "10s", "Longest time that rules may take for one request; after that it is rejected."
    )

    request_timeout = option(_TRAFFIC, DURATION, "120s", "Time that an agent has to answer a request, except a prompt.")
    turn_idle_timeout = option(
        _TRAFFIC, DURATION, "30m", "Longest time in a turn without any sign of life from the agent."
    )
    connection_ttl = option(_TRAFFIC, DURATION, "30m", "Time after which an unused connection is closed.")
    max_body = option(_TRAFFIC, SIZE, "32MiB", "Largest request body.")
    anonymous_sockets = option(
        _TRAFFIC,
        COUNT,
        "512",
        "Most open sockets that have not sent the token yet; beyond that, the oldest are closed. Never more than a "
        "quarter of the process's descriptors.",
    )
    head_timeout = option(
        _TRAFFIC, DURATION, "30s", "Longest time for a request line and its headers, from the first byte to the last."
    )
    body_timeout = option(
        _TRAFFIC, DURATION, "60s", "Longest time without a byte of a body that the server is reading."
    )
    idle_timeout = option(_TRAFFIC, DURATION, "75s", "Longest time that a socket may stay open between two requests.")
    heartbeat = option(_TRAFFIC, DURATION, "15s", "Interval between the comments that keep a stream open.")
    pong_timeout = option(
        _TRAFFIC, DURATION, "60s", "Time that a WebSocket's client has to answer a ping before its socket is closed."
    )
    peer_timeout = option(
        _TRAFFIC,
        DURATION,
        "60s",
        "Time after which a socket is closed if its other end accepts none of the sent bytes.",
    )
    session_streams = option(
        _TRAFFIC, COUNT, "1000", "Most sessions of a connection that may have a stream of their own on /acp."
    )
    stream_requests = option(
        _TRAFFIC, COUNT, "4096", "Most requests of a connection that may wait for their answers on its stream."
    )
    stream_buffer = option(
        _TRAFFIC, SIZE, "8MiB", "How far a slow reader may fall behind in memory before it reads from the log."
    )
    opencode_memory = option(
        _TRAFFIC,
        SIZE,
        "128MiB",
        "Memory for the sessions that OpenCode's programs read, at most a quarter for each. The oldest messages are "
        "left out.",
    )
    stall_timeout = option(
        _TRAFFIC, DURATION, "1s", "Time after which a slow reader is disconnected if it reads nothing."
    )

    log_max_bytes = derived(
        _LOG, SIZE, "1GiB, or 64MiB with --no-persist", "Largest size of the log; the oldest events are deleted first."
    )
    log_max_age = option(_LOG, DURATION, "30d", "Age at which events are deleted from the log.")
    replay_bytes = option(_LOG, SIZE, "16MiB", "How much of the latest log to keep in memory.")
    write_backlog = option(_LOG, SIZE, "32MiB", "How much of the log may wait for the disk before agents are paused.")

    join = repeated(_FLEET, NATS, "NATS server of a fleet to join; give one, or several of a cluster.")
    creds = option(_FLEET, PATH, None, "File with the credentials for the fleet's NATS servers.")
    join_proxy = option(
        _FLEET, PROXY, None, "HTTP proxy on the way to the fleet's NATS servers; ws and wss also use HTTPS_PROXY."
    )
    node = derived(_FLEET, NODE, "this machine's name", "Name of this server in the fleet.")
    label = repeated(_FLEET, LABEL, "Label that describes this server to the fleet.")
    publish_backlog = option(
        _FLEET, SIZE, "64MiB", "How much of the log may wait for the fleet before agents are paused."
    )
    flows = option(
        _FLEET,
        COUNT,
        "4096",
        "Most requests between gateways and nodes at the same time, at this gateway or this node.",
    )
    node_rate = option(
        _FLEET, SIZE, "32MiB", "Bytes that a gateway accepts from each node in a second; a node with more has to wait."
    )
    node_sessions = option(_FLEET, COUNT, "20000", "Most sessions of each node that gateways list.")
    node_views = option(_FLEET, SIZE, "32MiB", "Most bytes that gateways list for all sessions of a node.")
    session_view = option(
        _FLEET, SIZE, "256KiB", "Most bytes that gateways list for one session, including its metadata."
    )
    node_line = option(
        _FLEET,
        SIZE,
        "64MiB",
        "Longest line that gateways accept from a node; as long as the node's own --max-line, or longer.",
    )
    require_pins = switch(_FLEET, "Open no new sessions at nodes that no operator has pinned with fleet pin.")
    replicas = option(
        _FLEET, COUNT, "1", "NATS servers on which a gateway keeps each event; 3 for a cluster that may lose one."
    )

    log_level = option(_OUTPUT, _LEVEL, "info", "Lowest level of the server's own log messages.")
    quiet = switch(_OUTPUT, "Print no hints at the start: neither the token nor a first call to try.")
    server_log_bytes = option(
        _OUTPUT,
        SIZE,
        "8MiB",
        "Size at which the log of a server in the background begins anew; one older file is kept.",
    )
    log_format = option(_OUTPUT, _FORMAT, "text", "Format of the server's own log messages.")

    # These are not options: load() sets them.
    token_generated: bool = False
    temporary: bool = False
    """Whether the server makes a new data directory and deletes it at the end. `data_dir` is not used then."""
    warnings: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()
    """The names of the options that a flag, a variable or config.toml sets."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"settings do not change: {name}")

    def __repr__(self) -> str:
        secret = {each.name for each in OPTIONS if each.kind.secret}
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in vars(self).items() if name not in secret)})"

    def changed(self, **values: object) -> "Settings":
        """Return a copy of the settings with other values."""
        return Settings(vars(self) | values)


OPTIONS: tuple[Option[object], ...] = tuple(each for each in vars(Settings).values() if isinstance(each, Option))
