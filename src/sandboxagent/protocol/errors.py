"""Define every failure that has a name, as one tree.

SandboxAgentError
│
│ Requests
├── NotAnEnvelope             400  the body is not one JSON-RPC object
├── BatchNotSupported         501  several envelopes in one body, on /acp
├── BadRequest                400  a header, a parameter or the HTTP itself is wrong
├── Unauthorized              401  the bearer token is missing or wrong
├── ForbiddenOrigin           403  the request comes from a browser page of another origin
├── NotFound                  404  no such route
├── MethodNotAllowed          405  the route exists, the method does not
├── NotAcceptable             406  Accept excludes the type that the route sends
├── RequestTimeout            408  the rest of a request did not arrive in time
├── IdempotencyMismatch       409  the Idempotency-Key was used with another body
├── Removed                   410  a route of an older API
├── BodyTooLarge              413  the body is over --max-body
├── UnsupportedMediaType      415  the route does not accept the Content-Type
├── Misdirected               421  Host is not a name of this server
├── TooMany                   429  the limit of concurrent requests of this kind is reached
├── HeadersTooLarge           431  a request line and headers over 64 KiB, or over 200 headers
├── NotImplementedYet         501  in the contract, but not in this version
│
│ Connections, sessions and answers
├── MissingConnection         400  X-ACP-Connection-Id is required here
├── UnknownConnection         404  no such connection, or it was closed
├── SessionNotFound           404  the HTTP view of an unknown session
├── NobodyAsked               404  a response to an id under which no agent asked
├── AlreadyAnswered           409  a response to a request that is answered or withdrawn
├── WrongAnswer               422  an answer that does not fit the agent's request
├── CheckFailed               503  a part of the server failed to check the request, so it is refused
│
│ Agents
├── MissingAgent              400  initialize names no agent
├── UnknownAgent              404  no agent has that name
├── AgentNotInstalled         404  the agent is known, but not installed on this machine
├── AgentBootFailed           502  the agent process did not start, or failed the handshake
├── OffersUnknown             502  the agent opened no session, so its models and modes are unknown
├── AgentTimeout              504  the agent did not answer in time
│
│ Installs
├── UnsupportedAgent          422  the agent is known, but there is no program for it
├── UnsupportedPlatform       422  the agent has no build for this machine
├── UnknownVersion            422  the agent has no such version
├── HashMissing               422  --require-hashes is set, and no hash is known for a download
├── RegistryUnavailable       502  the ACP registry cannot be read, and there is no copy of it
├── DownloadFailed            502  a package or an archive could not be fetched
├── ChecksumMismatch          502  the hash of a download is not the expected one
├── UnsafeArchive             502  an archive that writes outside its folder, or is too large
├── InstallFailed             502  the agent was downloaded, but does not work
├── DiskFull                  507  the disk has no space for an install
│
│ Files
├── FileProblem               500  the file system fails, and the request is not the cause
│   ├── BadPath               400  not a valid file name
│   ├── OutsideRoots          403  the path leads out of --fs-root
│   ├── FileForbidden         403  the file system denies the access
│   ├── FileNotFound          404  no such file or directory
│   ├── FileConflict          409  an existing file or directory is in the way, or has the wrong kind
│   ├── RootReplaced          409  a directory of --fs-root was replaced since the server started
│   ├── FileChanged           412  the file does not match If-Match or If-None-Match
│   ├── FileTooLarge          413  the file is over a limit
│   ├── RangeNotSatisfiable   416  the range begins after the end of the file
│   └── NoRoom                507  the disk or a quota is full
├── BadArchive                400  an uploaded archive is not valid, or breaks a rule
├── ArchiveTooLarge           413  an uploaded archive unpacks to more than is allowed
├── WatchesExhausted          503  the server or the kernel allows no more watches
│
│ Fleets
├── MissingNode               400  a gateway has several nodes, and the request names none
├── NoNode                    503  no node of the fleet can take the request
├── NodeUnreachable           503  the node that the request needs is away, or does not answer
├── NodeRefused        (status)  a node's own problem, passed on by a gateway
├── FleetUnreachable          503  the gateway is cut off from NATS, and so from every node
│
│ The server
├── ShuttingDown              503  the server is stopping
├── LogUnavailable            507  the log cannot be written
├── SessionDamaged            500  the stored record of a session has changed on disk
├── InternalError             500  a bug in the server
├── SettingsError          exit 2  a wrong flag, variable or configuration file
│
│ Errors of JSON-RPC
└── RpcError                (200)  a JSON-RPC error with its own code and data
    ├── UnknownSession     -32002  no such session
    ├── UnknownTerminal    -32002  no such terminal
    ├── NoSuchFile         -32002  an agent asked for a file that does not exist
    ├── InvalidParams      -32602  a parameter is missing or wrong
    ├── MethodNotFound     -32601  the agent does not offer the method
    ├── InvalidRequest     -32600  the method is not allowed in this state
    ├── Unparsable         -32700  a frame of a WebSocket is not JSON
    ├── QueueFull          -32000  too many prompts of the session wait
    ├── RequestCancelled   -32800  the request was cancelled
    ├── FileFailed         -32603  the file system refused an agent's request
    ├── OutcomeUnknown     -32603  the server stopped while a request with this key ran
    ├── AgentExited        -32603  the agent process died while a request waited for it
    ├── AgentAnswerTooLong -32603  the agent's answer is longer than the server reads
    ├── NodeLost           -32603  the node that ran the turn is gone
    └── AgentNotReading    -32603  the agent process does not read its input

Two branches are defined where they are raised:

SandboxAgentError
├── ClientError         client/errors.py and cli/failures.py: errors of the SDK and of the command line
└── BridgeError         adapters/opencode/errors.py: an answer to OpenCode's programs, in their own shapes
"""

from collections.abc import Mapping, Sequence

URN = "urn:sandbox-agent:error:"
"""Prefix of the `type` of a problem document. The slug follows it."""


class SandboxAgentError(Exception):
    """Base class of every named failure of the server, and of every exception that the SDK raises."""

    slug: str
    """The error's stable name for programs, such as `file-not-found`."""
    title: str
    """The error's name for people."""
    status: int = 500
    """The HTTP status of the server's answer."""
    rpc_code: int = -32603
    """The code of the error as a JSON-RPC error."""

    def __init__(self, detail: str, /, **fields: object) -> None:
        super().__init__(detail)
        self.fields: dict[str, object] = fields
        """Facts for programs, such as the `path` of a file."""

    @property
    def message(self) -> str:
        """A text for people that says what is wrong and what to do."""
        return str(self)


# --- requests --------------------------------------------------------------------------------------------------------


class NotAnEnvelope(SandboxAgentError):
    slug, title, status = "not-an-envelope", "Not a JSON-RPC Envelope", 400


class BatchNotSupported(SandboxAgentError):
    slug, title, status = "batch-not-supported", "Batches Are Not Supported", 501

    def __init__(self) -> None:
        super().__init__("ACP has no batches; send each envelope by itself")


class BadRequest(SandboxAgentError):
    slug, title, status = "bad-request", "Bad Request", 400


class Unauthorized(SandboxAgentError):
    slug, title, status = "unauthorized", "Unauthorized", 401

    def __init__(self) -> None:
        super().__init__("send the server's token as: Authorization: Bearer <token>")


class ForbiddenOrigin(SandboxAgentError):
    slug, title, status = "forbidden-origin", "Forbidden Origin", 403

    def __init__(self, origin: str) -> None:
        super().__init__(
            "pages of this origin may not call this server; start it with --cors-origin to allow it", origin=origin
        )


class NotFound(SandboxAgentError):
    slug, title, status = "not-found", "Not Found", 404

    def __init__(self, path: str) -> None:
        super().__init__("no such route; GET /openapi.json lists them", path=path)


class MethodNotAllowed(SandboxAgentError):
    slug, title, status = "method-not-allowed", "Method Not Allowed", 405

    def __init__(self, method: str, path: str, allow: str) -> None:
        super().__init__(f"{path} does not take {method}; it takes {allow}", method=method, path=path, allow=allow)


class NotAcceptable(SandboxAgentError):
    slug, title, status = "not-acceptable", "Not Acceptable", 406

    def __init__(self, offered: str) -> None:
        super().__init__(f"Accept excludes {offered}, and this route sends nothing else", offered=offered)


class RequestTimeout(SandboxAgentError):
    slug, title, status = "request-timeout", "Request Timeout", 408

    def __init__(self, missing: str, seconds: float) -> None:
        super().__init__(f"{missing} did not come within {seconds:g} s; send the request again", timeout=seconds)


class IdempotencyMismatch(SandboxAgentError):
    slug, title, status = "idempotency-mismatch", "Idempotency Key Reused", 409

    def __init__(self, key: str) -> None:
        super().__init__(
            "this Idempotency-Key came before with another body; use a new key for a new request", idempotencyKey=key
        )


class Removed(SandboxAgentError):
    slug, title, status = "removed", "Gone", 410

    def __init__(self, replacement: str | None = None) -> None:
        fields: dict[str, object] = {} if replacement is None else {"replacement": replacement}
        super().__init__("v1 API removed; use /v1", **fields)


class BodyTooLarge(SandboxAgentError):
    slug, title, status = "body-too-large", "Body Too Large", 413

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes; --max-body sets the limit", limit=limit)


class UnsupportedMediaType(SandboxAgentError):
    slug, title, status = "unsupported-media-type", "Unsupported Media Type", 415

    def __init__(self, got: str, wanted: str = "Content-Type: application/json") -> None:
        super().__init__(f"send {wanted}", contentType=got)


class Misdirected(SandboxAgentError):
    slug, title, status = "misdirected", "Misdirected Request", 421

    def __init__(self, host: str) -> None:
        super().__init__("this server does not answer to that Host; --allow-host adds a name", host=host)


class TooMany(SandboxAgentError):
    slug, title, status = "too-many", "Too Many", 429

    def __init__(self, what: str, limit: int, flag: str) -> None:
        super().__init__(
            f"there are {limit} {what} already; wait for one to end, or start the server with a higher {flag}",
            limit=limit,
        )


class HeadersTooLarge(SandboxAgentError):
    slug, title, status = "headers-too-large", "Request Header Fields Too Large", 431

    def __init__(self, limit: int) -> None:
        super().__init__(f"the request line and headers are larger than {limit} bytes, or too many", limit=limit)


class NotImplementedYet(SandboxAgentError):
    slug, title, status = "not-implemented", "Not Implemented", 501


# --- connections, sessions and answers -------------------------------------------------------------------------------


class MissingConnection(SandboxAgentError):
    slug, title, status = "missing-connection", "Missing Connection Id", 400

    def __init__(self) -> None:
        super().__init__(
            "the header X-ACP-Connection-Id (on /acp, Acp-Connection-Id) is missing; "
            "POST initialize without it to open a connection, "
            "then send the id that came back"
        )


class UnknownConnection(SandboxAgentError):
    slug, title, status = "unknown-connection", "Unknown Connection", 404

    def __init__(self) -> None:
        super().__init__("no such connection, or it was closed; POST initialize to open a new one")


class SessionNotFound(SandboxAgentError):
    slug, title, status = "session-not-found", "Session Not Found", 404

    def __init__(self, session_id: str) -> None:
        super().__init__("no such session; GET /v1/sessions lists them", sessionId=session_id)


class NobodyAsked(SandboxAgentError):
    slug, title, status = "nobody-asked", "Nobody Asked", 404
    rpc_code = -32600

    def __init__(self, id: str) -> None:
        super().__init__(f"no agent asked this connection anything under id {id}", id=id)


class AlreadyAnswered(SandboxAgentError):
    slug, title, status = "already-answered", "Already Answered", 409

    def __init__(self, id: str, outcome: str) -> None:
        super().__init__(f"the request under id {id} is settled: {outcome}", id=id, outcome=outcome)


class WrongAnswer(SandboxAgentError):
    slug, title, status = "wrong-answer", "Wrong Answer", 422
    rpc_code = -32602

    def __init__(self, complaint: str) -> None:
        super().__init__(f"{complaint}; the request is still open")


# --- agents ----------------------------------------------------------------------------------------------------------


class MissingAgent(SandboxAgentError):
    slug, title, status = "missing-agent", "Missing Agent", 400

    def __init__(self) -> None:
        super().__init__(
            'initialize must name an agent in params._meta["sandboxagent.dev"].agent; '
            "on /acp the URL may name it (/acp/claude), and --default-agent is for clients that name none"
        )


class UnknownAgent(SandboxAgentError):
    slug, title, status, rpc_code = "unknown-agent", "Unknown Agent", 404, -32602

    def __init__(self, agent: str, known: list[str]) -> None:
        super().__init__(f"no agent is called {agent!r}; known agents: {', '.join(known)}", agent=agent, known=known)


class AgentNotInstalled(SandboxAgentError):
    slug, title, status = "agent-not-installed", "Agent Not Installed", 404

    def __init__(self, agent: str, instructions: str) -> None:
        super().__init__(f"agent {agent} is not installed; {instructions}", agent=agent, instructions=instructions)


class AgentBootFailed(SandboxAgentError):
    slug, title, status = "agent-boot-failed", "Agent Failed To Start", 502


class OffersUnknown(SandboxAgentError):
    slug, title, status = "offers-unknown", "Offers Unknown", 502


class AgentTimeout(SandboxAgentError):
    slug, title, status = "agent-timeout", "Agent Timeout", 504

    late: object | None = None
    """The `Reply` that gets the answer if it comes late; None if no answer can come."""


# --- installs --------------------------------------------------------------------------------------------------------


class UnsupportedAgent(SandboxAgentError):
    slug, title, status = "unsupported-agent", "Unsupported Agent", 422

    def __init__(self, agent: str, reason: str) -> None:
        super().__init__(f"agent {agent} is not supported: {reason}", agent=agent)


class UnsupportedPlatform(SandboxAgentError):
    slug, title, status = "unsupported-platform", "Unsupported Platform", 422

    def __init__(self, agent: str, platform: str, offered: list[str]) -> None:
        builds = f"; it has: {', '.join(offered)}" if offered else ""
        super().__init__(
            f"agent {agent} has no build for {platform}{builds}", agent=agent, platform=platform, offered=offered
        )


class UnknownVersion(SandboxAgentError):
    slug, title, status, rpc_code = "unknown-version", "Unknown Version", 422, -32602


class HashMissing(SandboxAgentError):
    slug, title, status = "hash-missing", "Hash Missing", 422

    def __init__(self, agent: str, without: Sequence[str]) -> None:
        names = ", ".join(without[:5]) + (", …" if len(without) > 5 else "")
        super().__init__(
            f"agent {agent} is not installed, because no hash is known for {names} and --require-hashes is set; "
            "choose another version or agent, or allow it by leaving out --require-hashes",
            agent=agent,
            names=list(without[:100]),
        )


class RegistryUnavailable(SandboxAgentError):
    slug, title, status = "registry-unavailable", "Registry Unavailable", 502


class DownloadFailed(SandboxAgentError):
    slug, title, status = "download-failed", "Download Failed", 502


class ChecksumMismatch(SandboxAgentError):
    slug, title, status = "checksum-mismatch", "Checksum Mismatch", 502

    def __init__(self, name: str, expected: str, actual: str) -> None:
        super().__init__(
            f"the hash of {name} is wrong: expected {expected}, got {actual}; nothing was installed",
            name=name,
            expected=expected,
            actual=actual,
        )


class UnsafeArchive(SandboxAgentError):
    slug, title, status = "unsafe-archive", "Unsafe Archive", 502


class InstallFailed(SandboxAgentError):
    slug, title, status = "install-failed", "Install Failed", 502


class DiskFull(SandboxAgentError):
    slug, title, status = "disk-full", "Disk Full", 507

    def __init__(self, directory: str) -> None:
        super().__init__(
            f"no room left in {directory}; free some, or choose another with --agents-dir", directory=directory
        )


# --- files -----------------------------------------------------------------------------------------------------------


class FileProblem(SandboxAgentError):
    """A failure at a path. `meaning` describes it, and the field `errno` has the file system's name for it."""

    slug, title, status = "file-problem", "File Problem", 500

    def __init__(self, path: str, meaning: str, **fields: object) -> None:
        super().__init__(f"{path}: {meaning}", path=path, **fields)


class BadPath(FileProblem):
    slug, title, status, rpc_code = "bad-path", "Bad Path", 400, -32602


class OutsideRoots(FileProblem):
    slug, title, status, rpc_code = "outside-roots", "Outside The Roots", 403, -32602


class FileForbidden(FileProblem):
    slug, title, status, rpc_code = "file-forbidden", "File Forbidden", 403, -32603


class FileNotFound(FileProblem):
    slug, title, status, rpc_code = "file-not-found", "File Not Found", 404, -32002


class FileConflict(FileProblem):
    slug, title, status, rpc_code = "file-conflict", "File Conflict", 409, -32602


class RootReplaced(FileProblem):
    slug, title, status, rpc_code = "root-replaced", "Root Replaced", 409, -32602


class FileChanged(FileProblem):
    slug, title, status, rpc_code = "file-changed", "File Changed", 412, -32602


class FileTooLarge(FileProblem):
    slug, title, status, rpc_code = "file-too-large", "File Too Large", 413, -32602


class RangeNotSatisfiable(FileProblem):
    slug, title, status, rpc_code = "range-not-satisfiable", "Range Not Satisfiable", 416, -32602


class NoRoom(FileProblem):
    slug, title, status = "no-room", "No Room", 507


class BadArchive(SandboxAgentError):
    slug, title, status, rpc_code = "bad-archive", "Bad Archive", 400, -32602


class ArchiveTooLarge(SandboxAgentError):
    slug, title, status, rpc_code = "archive-too-large", "Archive Too Large", 413, -32602


class WatchesExhausted(SandboxAgentError):
    slug, title, status = "watches-exhausted", "Watches Exhausted", 503

    def __init__(self, path: str, setting: str, limit: int | None = None) -> None:
        """Take `limit` if the server's own limit is reached. None means the kernel's limit."""
        if limit is None:
            why, fields = f"the kernel gives no more watches; raise {setting}, or watch less", dict[str, object]()
        else:
            why = (
                f"the server watches at most {limit} directories; start it with a higher {setting} (and raise "
                "fs.inotify.max_user_watches where the kernel gives fewer), or watch less"
            )
            fields = {"limit": limit}
        super().__init__(f"{path} cannot be watched: {why}", path=path, setting=setting, **fields)


# --- fleets ----------------------------------------------------------------------------------------------------------


class MissingNode(SandboxAgentError):
    slug, title, status, rpc_code = "missing-node", "Missing Node", 400, -32602

    def __init__(self, nodes: int) -> None:
        super().__init__(f"the fleet has {nodes} nodes; say which one: `node`, or the `sessionId` of a session there")


class NoNode(SandboxAgentError):
    slug, title, status = "no-node", "No Node", 503

    def __init__(self, wanted: str) -> None:
        super().__init__(f"{wanted}; GET /v1/nodes lists the nodes that are there")


class NodeUnreachable(SandboxAgentError):
    slug, title, status = "node-unreachable", "Node Unreachable", 503

    def __init__(self, node: str, reason: str) -> None:
        again = "repeat the request when it is back; GET /v1/nodes lists the nodes that are there"
        super().__init__(f"the node {node} {reason}; {again}", node=node)


class NodeRefused(SandboxAgentError):
    """A problem of a node, which a gateway passes on unchanged."""

    def __init__(self, slug: str, title: str, status: int, detail: str, facts: Mapping[str, object]) -> None:
        super().__init__(detail, **facts)
        self.slug, self.title, self.status = slug, title, status


class FleetUnreachable(SandboxAgentError):
    slug, title, status = "fleet-unreachable", "Fleet Unreachable", 503

    def __init__(self) -> None:
        super().__init__(
            "this gateway cannot reach the NATS servers, and so no node; use another gateway, "
            "or check that the servers in --join run and can be reached: then this gateway works again by itself"
        )


# --- the server ------------------------------------------------------------------------------------------------------


class ShuttingDown(SandboxAgentError):
    slug, title, status = "shutting-down", "Shutting Down", 503

    def __init__(self) -> None:
        super().__init__("the server is stopping; the session's log is kept, connect again when it is back")


class LogUnavailable(SandboxAgentError):
    slug, title, status = "log-unavailable", "Log Unavailable", 507

    def __init__(self, reason: str) -> None:
        """Take a reason that also says what to do about it."""
        super().__init__(f"the session log cannot be used: {reason}")

    @classmethod
    def of_fleet(cls, reason: object) -> "LogUnavailable":
        """Make the error of a gateway, whose log is the fleet's stream."""
        return cls(f"{reason}; repeat the request, here or at another gateway")


class SessionDamaged(SandboxAgentError):
    slug, title, status = "session-damaged", "Session Damaged", 500

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id} cannot be read: its record was damaged on disk; GET /v1/health says more",
            sessionId=session_id,
        )


class CheckFailed(SandboxAgentError):
    slug, title, status = "check-failed", "Check Failed", 503

    def __init__(self, what: str, by: str) -> None:
        super().__init__(
            f"{by} could not check {what}, so nothing was done; repeat the request, or see the server's log", by=by
        )


class InternalError(SandboxAgentError):
    slug, title, status = "internal-error", "Internal Server Error", 500

    def __init__(self) -> None:
        super().__init__("something went wrong inside the server; its log has the details")


class SettingsError(SandboxAgentError):
    """A wrong flag, environment variable or configuration file; the message names it."""

    slug, title = "settings", "Wrong Settings"


# --- errors of JSON-RPC ----------------------------------------------------------------------------------------------


class RpcError(SandboxAgentError):
    """A failure of a method, sent as a JSON-RPC error inside HTTP 200, with `fields` as its `data`."""

    slug, title, status = "rpc-error", "JSON-RPC Error", 200


class UnknownSession(RpcError):
    slug, title, rpc_code = "unknown-session", "Unknown Session", -32002

    def __init__(self, session_id: str) -> None:
        super().__init__(f"unknown session: {session_id}; session/list lists them", sessionId=session_id)


class UnknownTerminal(RpcError):
    slug, title, rpc_code = "unknown-terminal", "Unknown Terminal", -32002

    def __init__(self, terminal_id: str) -> None:
        super().__init__(
            f"this session has no terminal {terminal_id}; it was never created, or has been released",
            terminalId=terminal_id,
        )


class NoSuchFile(RpcError):
    slug, title, rpc_code = "no-such-file", "No Such File", -32002


class InvalidParams(RpcError):
    slug, title, rpc_code = "invalid-params", "Invalid Params", -32602


class MethodNotFound(RpcError):
    slug, title, rpc_code = "method-not-found", "Method Not Found", -32601


class InvalidRequest(RpcError):
    slug, title, rpc_code = "invalid-request", "Invalid Request", -32600


class Unparsable(RpcError):
    slug, title, rpc_code = "unparsable", "Parse Error", -32700


class QueueFull(RpcError):
    slug, title, rpc_code = "prompt-queue-full", "Prompt Queue Full", -32000


class RequestCancelled(RpcError):
    slug, title, rpc_code = "request-cancelled", "Request Cancelled", -32800


class FileFailed(RpcError):
    slug, title = "file-failed", "File Failed"


class OutcomeUnknown(RpcError):
    slug, title = "outcome-unknown", "Outcome Unknown"

    def __init__(self) -> None:
        super().__init__(
            "the server stopped while this request ran; _sandboxagent/session/events tells how far it came"
        )


class AgentExited(RpcError):
    slug, title = "agent-exited", "Agent Exited"


class AgentAnswerTooLong(RpcError):
    slug, title = "agent-answer-too-long", "Agent Answer Too Long"

    def __init__(self, agent: str, method: str, limit: int) -> None:
        super().__init__(
            f"agent {agent} answered {method} with more than {limit} bytes, which the server does not read",
            agent=agent,
            method=method,
            limit=limit,
        )


class NodeLost(RpcError):
    slug, title = "node-lost", "Node Lost"

    def __init__(self, node: str) -> None:
        super().__init__(f"the node {node}, which had this request, is gone; send it again when it is back", node=node)


class AgentNotReading(RpcError):
    slug, title = "agent-not-reading", "Agent Not Reading"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"agent {agent} does not read its input; cancel the turn or terminate the session", agent=agent
        )
