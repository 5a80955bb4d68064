"""What the SDK raises: sentences for people, facts for programs."""

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxagent.client import errors
from sandboxagent.client.errors import (
    ClientError,
    ConnectionLost,
    ForeignAnswer,
    InvalidCall,
    LocalFileFailed,
    RequestError,
    ServerProblem,
    StartFailed,
    foreign,
    problem,
)
from sandboxagent.protocol.errors import FileNotFound, SandboxAgentError, Unauthorized, UnknownAgent
from sandboxagent.server.http.asgi import problem_document


@pytest.mark.parametrize(
    "error", [Unauthorized(), UnknownAgent("x", ["mock"]), FileNotFound("/a", "no such file", errno="ENOENT")]
)
def test_a_problem_document_is_read_as_it_was_written(error: SandboxAgentError) -> None:
    read = problem(problem_document(error))

    assert read is not None
    assert (read.slug, read.title, read.status, read.detail) == (error.slug, error.title, error.status, str(error))
    assert read.fields == error.fields
    assert str(read) == f"{error.title}: {error}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>Bad Gateway</html>",
        b"[]",
        b"null",
        b"{}",
        b'{"error": "no"}',
        b'{"type": "about:blank", "title": "Not Found", "status": 404}',
        b'{"type": "urn:sandbox-agent:error:x", "title": "X", "status": "404"}',
        b'{"type": "urn:sandbox-agent:error:x", "status": 404}',
        b"\xff\xfe",
        b'{"type": "urn:sandbox-agent:error:x\x80"}',
    ],
)
def test_what_is_no_problem_of_the_server_is_not_taken_for_one(body: bytes) -> None:
    assert problem(body) is None


@given(st.binary())
def test_no_body_makes_reading_a_problem_fail(body: bytes) -> None:
    problem(body)
    foreign("http://127.0.0.1:1", 502, "text/html", body)


def test_a_problem_without_detail_is_its_title() -> None:
    read = problem(b'{"type": "urn:sandbox-agent:error:new-one", "title": "New One", "status": 418}')

    assert str(read) == "New One"


def test_a_foreign_answer_says_what_answered() -> None:
    error = foreign("http://h:1", 502, "text/html", b"<html>\n  <h1>Bad   Gateway</h1>" + b"x" * 10_000)

    assert isinstance(error, ServerProblem)
    assert error.status == 502
    assert "http://h:1 does not answer like sandbox-agent: status 502, text/html, '<html> <h1>Bad Gateway" in str(error)
    assert len(str(error)) < 500


def test_a_start_that_failed_shows_what_the_server_said() -> None:
    assert str(StartFailed("the server ended", "one\ntwo\n")) == "the server ended\none\ntwo"
    assert str(StartFailed("the server ended")) == "the server ended"


@pytest.mark.parametrize(
    "error",
    [
        ServerProblem("slug", "Title", 404, "detail", {"path": "/a"}),
        ForeignAnswer("foreign-answer", "Foreign Answer", 502, "detail", {"url": "http://h"}),
        ConnectionLost("gone", outcome_unknown=True),
        StartFailed("no", "stderr"),
        RequestError(-32002, "unknown session", {"type": "unknown-session", "sessionId": "s"}),
        LocalFileFailed(FileNotFoundError(2, "No such file or directory", "/a")),
        InvalidCall("which agent?"),
    ],
)
def test_errors_go_from_one_process_to_another(error: ClientError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))


@pytest.mark.parametrize(
    ("error", "slug", "fields"),
    [
        (ServerProblem("unknown-agent", "Title", 404, "detail", {"agent": "x"}), "unknown-agent", {"agent": "x"}),
        (RequestError(-32002, "no", {"type": "unknown-session", "id": 1}), "unknown-session", {"id": 1}),
        (RequestError(-32000, "no", "text"), "request-failed", {}),
        (ConnectionLost("gone", outcome_unknown=True), "connection-lost", {"outcomeUnknown": True}),
        (StartFailed("no", "said"), "start-failed", {"stderr": "said"}),
        (LocalFileFailed(OSError(13, "Permission denied", "/a")), "local-file-failed", {"path": "/a", "errno": 13}),
        (InvalidCall("which agent?"), "invalid-call", {}),
        (ClientError("no"), "client-error", {}),
    ],
)
def test_every_error_is_of_one_family_with_a_name_a_message_and_facts(
    error: SandboxAgentError, slug: str, fields: dict[str, object]
) -> None:
    assert isinstance(error, SandboxAgentError)
    assert (error.slug, error.message, error.fields) == (slug, str(error), fields)


def test_every_error_is_drawn_in_the_tree() -> None:
    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    named = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, ClientError)]

    assert sorted(drawn) == sorted(each.__name__ for each in named)
