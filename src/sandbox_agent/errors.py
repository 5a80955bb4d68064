"""Every failure the server can name. Those of the file API, of installs and of fleets are in modules beside this.

SandboxAgentError
├── NotAnEnvelope           400  the body is not one JSON-RPC object
├── BadRequest              400  a header, a parameter or the HTTP itself is wrong
├── MissingConnection       400  X-ACP-Connection-Id is required here
├── MissingAgent            400  initialize names no agent
├── MissingNode             400  a gateway has several nodes, and the request names none
├── BadArchive              400  an uploaded archive that makes no sense, or breaks a rule
├── Unauthorized            401  no bearer token, or another one
├── ForbiddenOrigin         403  a browser page of another origin
├── NotFound                404  no such route
├── UnknownConnection       404  no such connection, or it was closed
├── UnknownAgent            404  no agent of that name
├── AgentNotInstalled       404  known, but not on this machine
├── SessionNotFound         404  the HTTP view of an unknown session
├── NobodyAsked             404  a response to an id that no agent asked
├── MethodNotAllowed        405  the route exists, the method does not
├── NotAcceptable           406  Accept excludes what we send
├── RequestTimeout          408  a request that does not come to its end
├── AlreadyAnswered         409  a response to an id that is settled
├── IdempotencyMismatch     409  the same Idempotency-Key with another body
├── Removed                 410  a legacy route
├── BodyTooLarge            413  over --max-body
├── ArchiveTooLarge         413  an uploaded archive that unfolds into more than is allowed
├── UnsupportedMediaType    415  a body of a type that the route does not take
├── Misdirected             421  a Host that is not ours
├── WrongAnswer             422  an answer that does not fit what the agent asked
├── UnsupportedAgent        422  known, and cannot be had
├── UnsupportedPlatform     422  the agent has no build for this machine
├── UnknownVersion          422  no such version of the agent
├── TooMany                 429  as many of these at once as are allowed
├── HeadersTooLarge         431  a request line and headers over 64 KiB, or over 200 headers
├── NotImplementedYet       501  in the contract, not in this version
├── BatchNotSupported       501  several envelopes in one body, on /acp
├── AgentBootFailed         502  the agent process did not start or did not shake hands
├── OffersUnknown           502  the agent opened no session to tell its models and modes
├── RegistryUnavailable     502  the ACP registry cannot be read, and there is no copy of it
├── DownloadFailed          502  a package or an archive could not be fetched
├── ChecksumMismatch        502  what was fetched is not what was pinned
├── HashMissing             422  --require-hashes is set, and no hash is known for it
├── UnsafeArchive           502  an archive that reaches outside its folder, or is too large
├── InstallFailed           502  the agent was fetched and is not usable
├── ShuttingDown            503  the server is stopping
├── WatchesExhausted        503  the kernel gives no more watches
├── NoNode                  503  no node of the fleet can do it
├── NodeUnreachable         503  the node that it is about is not there, or does not answer
├── FleetUnreachable        503  the gateway is cut off from NATS, and so from every node
├── AgentTimeout            504  no answer in time
├── LogUnavailable          507  the log cannot be written
├── DiskFull                507  no room to install
├── InternalError           500  our bug
├── SessionDamaged          500  the disk has changed what was kept of a session
├── FileProblem             500  the file system fails unexpectedly
│   ├── BadPath             400  not a valid file name
│   ├── OutsideRoots        403  a path that leads out of --fs-root
│   ├── FileForbidden       403  the file system does not let the server do it
│   ├── FileNotFound        404  no such file or directory
│   ├── FileConflict        409  what is there is in the way, or of another kind
│   ├── RootReplaced        409  a directory of --fs-root is not the one it was when the server started
│   ├── FileChanged         412  the file is not the one that If-Match or If-None-Match speaks of
│   ├── FileTooLarge        413  over a limit
│   ├── RangeNotSatisfiable 416  the file has no such bytes
│   └── NoRoom              507  the disk or a quota is full
├── RpcError               (200)  a JSON-RPC error with its own code and data
│   ├── UnknownSession   -32002  no such session
│   ├── UnknownTerminal  -32002  no such terminal
│   ├── NoSuchFile       -32002  an agent asked for a file that is not there
│   ├── InvalidParams    -32602  a parameter is missing or wrong
│   ├── MethodNotFound   -32601  the agent does not offer it
│   ├── InvalidRequest   -32600  not allowed in this state
│   ├── Unparsable       -32700  a frame of a WebSocket that is not JSON
│   ├── QueueFull        -32000  too many prompts wait
│   ├── RequestCancelled -32800  the request was taken back
│   ├── FileFailed       -32603  the file system does not let an agent have its way
│   ├── OutcomeUnknown   -32603  the server stopped while a request under this key ran
│   ├── AgentExited      -32603  the agent process died while we waited on it
│   ├── NodeLost         -32603  the node that ran a turn is gone
│   └── AgentNotReading  -32603  the agent process does not take its input
└── SettingsError         exit 2  a wrong flag, variable or configuration file
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass

URN = "urn:sandbox-agent:error:"
"""What the `type` of a problem document begins with; its slug follows."""


class SandboxAgentError(Exception):
    """Base of everything that the server can name, and of everything that the SDK raises."""

    slug: str
    """Its name, such as `file-not-found`: stable, for programs."""
    title: str
    """The same for people."""
    status: int = 500
    """The HTTP status that the server answers with."""
    rpc_code: int = -32603
    """JSON-RPC's code, where it travels as an error of JSON-RPC."""

    def __init__(self, detail: str, /, **fields: object) -> None:
        super().__init__(detail)
        self.fields: dict[str, object] = fields
        """Facts for programs, such as the `path` of a file."""

    @property
    def message(self) -> str:
        """What is wrong, and what to do: for people."""
        return str(self)


class NotAnEnvelope(SandboxAgentError):
    slug, title, status = "not-an-envelope", "Not a JSON-RPC Envelope", 400


class BadRequest(SandboxAgentError):
    slug, title, status = "bad-request", "Bad Request", 400


class MissingConnection(SandboxAgentError):
    slug, title, status = "missing-connection", "Missing Connection Id", 400

    def __init__(self) -> None:
        super().__init__(
            "the header X-ACP-Connection-Id (on /acp, Acp-Connection-Id) is missing; "
            "POST initialize without it to open a connection, "
            "then send the id that came back"
        )


class MissingAgent(SandboxAgentError):
    slug, title, status = "missing-agent", "Missing Agent", 400

    def __init__(self) -> None:
        super().__init__(
            'initialize must name an agent in params._meta["sandboxagent.dev"].agent; '
            "on /acp the URL may name it (/acp/claude), and --default-agent is for clients that name none"
        )


class BadArchive(SandboxAgentError):
    slug, title, status = "bad-archive", "Bad Archive", 400


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


class UnknownConnection(SandboxAgentError):
    slug, title, status = "unknown-connection", "Unknown Connection", 404

    def __init__(self) -> None:
        super().__init__("no such connection, or it was closed; POST initialize to open a new one")


class UnknownAgent(SandboxAgentError):
    slug, title, status, rpc_code = "unknown-agent", "Unknown Agent", 404, -32602

    def __init__(self, agent: str, known: list[str]) -> None:
        super().__init__(f"no agent is called {agent!r}; known agents: {', '.join(known)}", agent=agent, known=known)


class AgentNotInstalled(SandboxAgentError):
    slug, title, status = "agent-not-installed", "Agent Not Installed", 404

    def __init__(self, agent: str, instructions: str) -> None:
        super().__init__(f"agent {agent} is not installed; {instructions}", agent=agent, instructions=instructions)


class SessionNotFound(SandboxAgentError):
    slug, title, status = "session-not-found", "Session Not Found", 404

    def __init__(self, session_id: str) -> None:
        super().__init__("no such session; GET /v1/sessions lists them", sessionId=session_id)


class NobodyAsked(SandboxAgentError):
    slug, title, status = "nobody-asked", "Nobody Asked", 404
    rpc_code = -32600

    def __init__(self, id: str) -> None:
        super().__init__(f"no agent asked this connection anything under id {id}", id=id)


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


class AlreadyAnswered(SandboxAgentError):
    slug, title, status = "already-answered", "Already Answered", 409

    def __init__(self, id: str, outcome: str) -> None:
        super().__init__(f"the request under id {id} is settled: {outcome}", id=id, outcome=outcome)


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


class ArchiveTooLarge(SandboxAgentError):
    slug, title, status = "archive-too-large", "Archive Too Large", 413


class UnsupportedMediaType(SandboxAgentError):
    slug, title, status = "unsupported-media-type", "Unsupported Media Type", 415

    def __init__(self, got: str, wanted: str = "Content-Type: application/json") -> None:
        super().__init__(f"send {wanted}", contentType=got)


class Misdirected(SandboxAgentError):
    slug, title, status = "misdirected", "Misdirected Request", 421

    def __init__(self, host: str) -> None:
        super().__init__("this server does not answer to that Host; --allow-host adds a name", host=host)


class WrongAnswer(SandboxAgentError):
    slug, title, status = "wrong-answer", "Wrong Answer", 422
    rpc_code = -32602

    def __init__(self, complaint: str) -> None:
        super().__init__(f"{complaint}; the request is still open")


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


class BatchNotSupported(SandboxAgentError):
    slug, title, status = "batch-not-supported", "Batches Are Not Supported", 501

    def __init__(self) -> None:
        super().__init__("ACP has no batches; send each envelope by itself")


class AgentBootFailed(SandboxAgentError):
    slug, title, status = "agent-boot-failed", "Agent Failed To Start", 502


class OffersUnknown(SandboxAgentError):
    slug, title, status = "offers-unknown", "Offers Unknown", 502


class ShuttingDown(SandboxAgentError):
    slug, title, status = "shutting-down", "Shutting Down", 503

    def __init__(self) -> None:
        super().__init__("the server is stopping; the session's log is kept, connect again when it is back")


class WatchesExhausted(SandboxAgentError):
    slug, title, status = "watches-exhausted", "Watches Exhausted", 503

    def __init__(self, path: str, setting: str, limit: int | None = None) -> None:
        """`limit` is the server's; without it, the kernel's is reached."""
        if limit is None:
            why, fields = f"the kernel gives no more watches; raise {setting}, or watch less", dict[str, object]()
        else:
            why = (
                f"the server watches at most {limit} directories; start it with a higher {setting} (and raise "
                "fs.inotify.max_user_watches where the kernel gives fewer), or watch less"
            )
            fields = {"limit": limit}
        super().__init__(f"{path} cannot be watched: {why}", path=path, setting=setting, **fields)


class AgentTimeout(SandboxAgentError):
    slug, title, status = "agent-timeout", "Agent Timeout", 504

    late: object | None = None
    """The `Reply` with the answer, should it come after all; None when none can come."""


class LogUnavailable(SandboxAgentError):
    slug, title, status = "log-unavailable", "Log Unavailable", 507

    def __init__(self, reason: str, advice: str = "free space in the data directory and retry") -> None:
        super().__init__(f"the session log cannot be used: {reason}; {advice}")

    @classmethod
    def of_fleet(cls, reason: object) -> "LogUnavailable":
        """At a gateway, whose log is the fleet's stream."""
        return cls(str(reason), "repeat the request, here or at another gateway")


class SessionDamaged(SandboxAgentError):
    slug, title, status = "session-damaged", "Session Damaged", 500

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id} cannot be read: its record was damaged on disk; GET /v1/health says more",
            sessionId=session_id,
        )


class DiskFull(SandboxAgentError):
    slug, title, status = "disk-full", "Disk Full", 507

    def __init__(self, directory: str) -> None:
        super().__init__(
            f"no room left in {directory}; free some, or choose another with --agents-dir", directory=directory
        )


class InternalError(SandboxAgentError):
    slug, title, status = "internal-error", "Internal Server Error", 500

    def __init__(self) -> None:
        super().__init__("something went wrong inside the server; its log has the details")


class RpcError(SandboxAgentError):
    """A failure of a method: travels as a JSON-RPC error inside HTTP 200, `fields` as its `data`."""

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


class AgentNotReading(RpcError):
    slug, title = "agent-not-reading", "Agent Not Reading"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"agent {agent} does not read its input; cancel the turn or terminate the session", agent=agent
        )


class SettingsError(SandboxAgentError):
    """A wrong flag, environment variable or configuration file; the message names it."""

    slug, title = "settings", "Wrong Settings"
