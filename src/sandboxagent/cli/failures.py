"""Turn failures of calls into sentences for people, JSON for programs, and exit codes.

ClientError
└── ServerFailed        a server of this machine does not start, answer or end
    └── TokenMissing    the server answers, but needs a token that was not found
"""

import os

from sandboxagent.cli.output import EXIT_FAILED, describe, one_line
from sandboxagent.client.errors import (
    ClientError,
    ConnectionLost,
    ForeignAnswer,
    RequestError,
    ServerProblem,
    StartFailed,
)
from sandboxagent.core.settings.sources import did_you_mean
from sandboxagent.protocol.envelope import META, Object, at, list_at, object_at, text_at

AUTH_REQUIRED = -32000
"""ACP's error code of an agent that needs a login."""
EXIT_LIMIT, EXIT_REFUSED, EXIT_CANCELLED = 3, 4, 130
CODES = {
    "end_turn": 0,
    "max_tokens": EXIT_LIMIT,
    "max_turn_requests": EXIT_LIMIT,
    "refusal": EXIT_REFUSED,
    "cancelled": EXIT_CANCELLED,
}


class ServerFailed(ClientError):
    """A server of this machine does not start, answer or end. The field `stderr` has the end of its output."""

    slug, title = "server-failed", "Server Failed"

    def __init__(self, sentence: str, stderr: str = "", *, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(sentence, stderr=stderr)
        self.exit_code = exit_code
        """The exit code of the command that fails."""


class TokenMissing(ServerFailed):
    """The server answers, but needs a token that was not found."""

    slug, title = "token-missing", "Token Missing"


Failure = ClientError | ValueError
"""An exception of an SDK call. A ValueError comes from an answer that does not follow ACP."""
_OURS = "sandbox-agent: "
_INTERNAL = "Internal error"
_MORE_TOKEN = "; on the command line: --token, --token-file or SANDBOX_AGENT_TOKEN"  # noqa: S105 - how to give one


def exit_code(stop_reason: str | None) -> int:
    """Return the exit code for the stop reason of a turn."""
    return CODES.get(stop_reason or "", EXIT_FAILED)


def tell(failure: Failure, about: str = "") -> None:
    """Print a failure and the end of a program's stderr to stderr. `about` comes before the sentence."""
    describe(about + sentence(failure), stderr(failure))


def sentence(failure: Failure) -> str:
    """Describe a failure in one sentence."""
    match failure:
        case ForeignAnswer():
            url = text_at(failure.fields, "url") or "the server"
            return f"{url} does not answer like sandbox-agent (status {failure.status}); name another with --endpoint"
        case ServerProblem(status=401):
            return f"{failure}{_MORE_TOKEN}"
        case ServerProblem(slug="missing-node"):
            return f"{failure}; on the command line: --node"
        case ServerProblem(slug="unknown-agent"):
            known = [str(name) for name in list_at(failure.fields, "known")]
            return f"{failure}{did_you_mean(text_at(failure.fields, 'agent') or '', known)}"
        case StartFailed():
            return _own_words(failure) or failure.sentence
        case RequestError():
            return _of_request(failure)
        case ClientError():
            # For an embedded server that died, the lines below the first are its stderr.
            return str(failure).partition("\n")[0]
        case ValueError():
            return f"the agent's answer is invalid: {one_line(str(failure))[:200]}"


def stderr(failure: Failure) -> str | None:
    """Return the end of the failed program's stderr; None when there is none."""
    match failure:
        case StartFailed():
            return None if _own_words(failure) else failure.stderr
        case ConnectionLost():
            return str(failure).partition("\n")[2] or None
        case RequestError():
            return _lines(at(failure.data, "stderr"))
        case ClientError():
            return _lines(failure.fields.get("stderr"))
        case ValueError():
            return None


def document(failure: Failure) -> Object:
    """Return a failure as a JSON object, for programs."""
    told: Object = {"message": sentence(failure)}
    match failure:
        case ServerProblem():
            return told | {"type": failure.slug, "data": failure.fields}
        case ConnectionLost():
            return told | {"type": failure.slug}
        case RequestError():
            return told | {"code": failure.code, "type": text_at(failure.data, "type"), "data": failure.data}
        case ClientError() | ValueError():
            return told


def _of_request(failure: RequestError) -> str:
    # Agents put the reason of an error into different members.
    further = text_at(failure.data, "details") or text_at(failure.data, "message") or ""
    said = str(failure) or "the agent answered with an error"
    names = [str(name) for name in list_at(failure.data, META, "credentials")]
    if mine := [name for name in names if os.environ.get(name)]:
        flags = " ".join(f"--env {name}" for name in mine)
        hint = f"; your shell has {', '.join(mine)}: pass it on with {flags}, or run: sandbox-agent daemon restart"
    elif names or (failure.code == AUTH_REQUIRED and _is_login(said)):
        hint = "; see: sandbox-agent credentials check"
    else:
        hint = ""
    # "Internal error" says only that something failed. The details say more.
    said = said.removeprefix(f"{_INTERNAL}: ") or said
    if further and said == _INTERNAL:
        said = further
    return (f"{said}: {further}" if further and further not in said else said) + hint


def is_mentioned_in(failure: Failure, words: str) -> bool:
    """Whether the agent's own text already contains this failure."""
    return isinstance(failure, RequestError) and _squeeze(_of_request(failure)) in _squeeze(words)


def _squeeze(text: str) -> str:
    return " ".join(text.split())


def _is_login(said: str) -> bool:
    # Agents use the code for other errors, too.
    return any(word in said.lower() for word in ("auth", "login", "log in", "credential"))


def _own_words(failure: StartFailed) -> str:
    """Return the message of a server that ended because of a user's mistake; empty when it ended otherwise."""
    last = (failure.stderr.strip().splitlines() or [""])[-1]
    return last.removeprefix(_OURS) if last.startswith(_OURS) else ""


def _lines(told: object) -> str | None:
    if isinstance(told, str):
        return told
    parts = object_at(told)
    head, tail = ([str(line) for line in list_at(parts, name)] for name in ("head", "tail"))
    between = ["…"] if parts.get("truncated") and head and tail else []
    return "\n".join([*head, *between, *tail]) or None
