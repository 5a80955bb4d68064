"""Rules that decide permissions before people are asked, and what clients learn of decisions.

Contract, section 7 and 12.
"""

import asyncio
from collections.abc import Generator
from contextlib import aclosing
from typing import Any

import pytest

from tests.support.asking import (
    ALLOW,
    CANCEL,
    CANCELLED,
    DECISION,
    ELICITATION,
    ELICITATION_PARAMS,
    PERMISSION,
    PERMISSION_PARAMS,
    QUESTION,
    QUESTION_PARAMS,
    REJECT,
    answer_line,
    ask_outright,
    everything,
    methods,
    permission,
    texts,
)
from tests.support.client import Client, Event, Json, run
from tests.support.history import events_of, view_of
from tests.support.running import BOUND, Server

ATTACH = "_sandboxagent/session/attach"
SET = "_sandboxagent/session/set_metadata"
OPTIONS = PERMISSION_PARAMS["options"]

RULES = """
[[rules]]
name = "no pushing"
command = "git push"
action = "reject"
reason = "People push."

[[rules]]
command = ["git status *", "git log *"]
action = "allow"

[[rules]]
kind = "edit"
path = "src/**"
action = "allow"
remember = true

[[rules]]
tool = "Forbidden"
kind = "other"
action = "reject"
"""


@pytest.fixture(scope="module", params=["persist", "no-persist"])
def ruled(request: pytest.FixtureRequest) -> Generator[Server]:
    server = Server(*(["--no-persist"] if request.param == "no-persist" else []))
    (server.directory / "config").mkdir()
    (server.directory / "config" / "permissions.toml").write_text(RULES)
    with server:
        yield server


def asking(call: Json, options: list[Json] | None = None) -> list[Any]:
    """A step that asks for permission to do this."""
    params = {"toolCall": {"toolCallId": "call-1", **call}, "options": OPTIONS if options is None else options}
    return ["ask", PERMISSION, params]


def running(command: str) -> Json:
    return {"name": "Bash", "kind": "execute", "rawInput": {"command": command}}


def decided(events: list[Event]) -> list[Json]:
    return [event.data["params"] for event in events if event.method == DECISION]


async def turn(client: Client, *steps: list[Any], **meta: Any) -> tuple[str, list[Event]]:
    """A turn in a new session, and all that came of it."""
    async with client.stream() as events:
        session = await client.new_session(**meta)
        await client.prompt(session, list(steps))
        return session, await everything(client, events)


@pytest.mark.requirement("7.rules-decide", "7.decision-told")
def test_what_a_rule_allows_is_allowed_once_without_asking(ruled: Server) -> None:
    async def main() -> None:
        async with Client(ruled) as client:
            session, events = await turn(client, asking(running("git status")), ["echo_answer"])

        assert PERMISSION not in methods(events)
        answer = answer_line(texts(events)[0])
        assert answer["result"] == ALLOW
        (decision,) = decided(events)
        why = decision.pop("reason")
        assert decision == {
            "sessionId": session,
            "requestId": decision["requestId"],
            "agentRequestId": answer["id"],
            "toolCallId": "call-1",
            "kind": "permission",
            "outcome": "answered",
            "optionId": "yes",
            "optionKind": "allow_once",
            "by": {"kind": "rule", "rule": 2, "source": "server"},
        }
        assert why == "rule 2 of the server is about `git status`"

    run(main())


@pytest.mark.requirement("7.rules-decide", "7.decision-told")
def test_what_a_rule_rejects_is_rejected_with_its_reason(ruled: Server) -> None:
    async def main() -> None:
        async with Client(ruled) as client:
            session, events = await turn(client, asking(running("git push")), ["echo_answer"])

        assert PERMISSION not in methods(events)
        assert answer_line(texts(events)[0])["result"] == REJECT
        (decision,) = decided(events)
        assert decision["by"] == {"kind": "rule", "rule": 1, "source": "server", "name": "no pushing"}
        assert (decision["outcome"], decision["optionKind"]) == ("rejected", "reject_once")
        assert (decision["sessionId"], decision["reason"]) == (session, "People push.")

    run(main())


@pytest.mark.requirement("7.compound")
@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("git status && git log", ALLOW),
        ("bash -lc 'git status; git log --oneline'", ALLOW),
        ("git status; git push --force", REJECT),
        ("git log $(git push)", REJECT),
        ("git status; rm x", None),
        ("git status > file", None),
        ("git status `x`", None),
        ("git $x", None),
    ],
)
def test_a_compound_command_is_judged_by_its_worst_part(ruled: Server, command: str, told: Json | None) -> None:
    async def main() -> None:
        async with Client(ruled) as client, client.stream() as events:
            session = await client.new_session()
            await ask_outright(client, session, asking(running(command)), ["echo_answer"])
            if told is None:
                asked = await events.method(PERMISSION)
                assert (await client.answer(asked.data["id"], CANCELLED)).status_code == 202
            await events.turn_ended()
            assert answer_line(texts(events.seen)[0])["result"] == (told or CANCELLED)

    run(main())


@pytest.mark.requirement("7.paths")
def test_links_are_followed_before_a_path_is_compared(ruled: Server) -> None:
    from pathlib import Path

    folder = Path(ruled.work)
    (folder / "src").mkdir(exist_ok=True)
    if not (folder / "src" / "out").is_symlink():
        (folder / "src" / "out").symlink_to(folder)

    def writing(path: str) -> Json:
        return {"kind": "edit", "rawInput": {"file_path": path, "content": "x"}, "locations": [{"path": path}]}

    async def main() -> None:
        async with Client(ruled) as client, client.stream() as events:
            _, inside = await turn(client, asking(writing(f"{folder}/src/a")), ["echo_answer"])
            always = {"outcome": {"outcome": "selected", "optionId": "always"}}
            assert answer_line(texts(inside)[0])["result"] == always, "the rule says that it may be remembered"
        async with Client(ruled) as client, client.stream() as events:
            session = await client.new_session()
            for path in ("src/out/a", "src/../a", "a"):
                await ask_outright(client, session, asking(writing(path)), ["wait_answer"])
                asked = await events.method(PERMISSION)
                assert (await client.answer(asked.data["id"], REJECT)).status_code == 202
                await events.turn_ended()

    run(main())


@pytest.mark.requirement("7.options")
def test_without_a_fitting_option_a_rejection_is_cancelled_and_an_allowance_is_asked(ruled: Server) -> None:
    async def main() -> None:
        async with Client(ruled) as client, client.stream() as events:
            _, rejected = await turn(client, asking(running("git push"), OPTIONS[:2]), ["echo_answer"])
            assert answer_line(texts(rejected)[0])["result"] == CANCELLED
            assert decided(rejected)[0]["outcome"] == "rejected"
        async with Client(ruled) as client, client.stream() as events:
            session = await client.new_session()
            await ask_outright(client, session, asking(running("git status"), OPTIONS[1:]), ["wait_answer"])
            asked = await events.method(PERMISSION)
            assert (await client.answer(asked.data["id"], REJECT)).status_code == 202

    run(main())


@pytest.mark.requirement("7.rules-decide")
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"toolCall": {}},
        {"toolCall": {"name": "Forbidden"}},
        {"toolCall": {"kind": "execute", "title": "git status"}},
        {"toolCall": {"kind": 5, "rawInput": {"command": "git status"}}},
        {"toolCall": {"rawInput": "git status"}},
    ],
)
def test_what_cannot_be_read_or_is_not_told_is_asked(ruled: Server, params: Json) -> None:
    async def main() -> None:
        async with Client(ruled) as client, client.stream() as events:
            session = await client.new_session()
            await ask_outright(client, session, ["ask", PERMISSION, {"options": OPTIONS, **params}], ["wait_answer"])
            asked = await events.method(PERMISSION)
            assert (await client.answer(asked.data["id"], REJECT)).status_code == 202
            await events.turn_ended()

    run(main())


@pytest.mark.requirement("7.rules-decide", "7.decision-kept")
def test_rules_decide_with_no_client_attached_and_the_log_says_so(ruled: Server) -> None:
    async def main() -> None:
        async with Client(ruled) as client, Client(ruled) as other:
            session = await client.new_session()
            gate = ["ask", "x/gate", {"sessionId": None}]
            async with client.stream() as events:
                await ask_outright(client, session, gate, ["wait_answer"], asking(running("git push")), ["wait_answer"])
                opened = await events.method("x/gate")
                await client.result("_sandboxagent/session/detach", {"sessionId": session})
                await client.answer(opened.data["id"], {})
            kept: list[Json] = []
            async with asyncio.timeout(BOUND):
                while not any(event["envelope"].get("method") == DECISION for event in kept):
                    kept = await events_of(other, session)
            at = [event["envelope"].get("method") for event in kept].index(PERMISSION)
            request, answer, decision = kept[at : at + 3]
            assert (request["direction"], answer["direction"], decision["direction"]) == (
                "fromAgent",
                "fromServer",
                "fromServer",
            )
            told = decision["envelope"]["params"]
            assert answer["envelope"]["id"] == request["envelope"]["id"] == told["agentRequestId"]
            assert answer["envelope"]["result"] == REJECT
            assert decision["envelope"]["params"]["by"]["rule"] == 1
            assert (await view_of(other, session))["pending"] == 0

    run(main())


# Rules of a session


@pytest.mark.requirement("7.session-rules")
def test_a_session_has_rules_of_its_own(server: Server) -> None:
    async def main() -> None:
        rules = [{"command": "make", "action": "allow", "name": "mine"}]
        async with Client(server) as client:
            session, events = await turn(client, asking(running("make")), ["echo_answer"], permissions=rules)
            assert answer_line(texts(events)[0])["result"] == ALLOW
            assert decided(events)[0]["by"] == {"kind": "rule", "rule": 1, "source": "session", "name": "mine"}
            assert (await view_of(client, session))["metadata"]["permissions"] == rules

    run(main())


@pytest.mark.requirement("7.session-rules")
def test_rules_of_a_session_can_be_changed_and_removed(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as events:
            session = await client.new_session()
            rules = [{"tool": "Bash", "matches": {"cmd": "make*"}, "action": "reject", "message": "No."}]
            await client.result(SET, {"sessionId": session, "metadata": {"permissions": rules}})
            await client.prompt(session, [asking(running("make all")), ["echo_answer"]])
            assert decided(await everything(client, events))[0]["reason"] == "No."
            assert answer_line(texts(events.seen)[0])["result"] == REJECT
            await client.result(SET, {"sessionId": session, "metadata": {"permissions": None}})
            await ask_outright(client, session, asking(running("make all")), ["wait_answer"])
            asked = await events.method(PERMISSION)
            await client.answer(asked.data["id"], REJECT)
            await events.turn_ended()

    run(main())


@pytest.mark.requirement("7.session-rules")
@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([{"tool": "*", "action": "ask"}, {"tol": "x", "action": "allow"}], ["permissions[1]", "tol", "tool"]),
        ([{"tool": "*", "action": "alow"}], ["permissions[0]", "alow"]),
        ([{"action": "allow"}], ["permissions[0]", "no condition"]),
        ("allow", ["permissions"]),
    ],
)
def test_wrong_rules_of_a_session_are_refused_and_named(server: Server, rules: Any, words: list[str]) -> None:
    async def main() -> None:
        async with Client(server) as client:
            before = len((await client.result("session/list"))["sessions"])
            params = {"cwd": server.work, "mcpServers": [], "_meta": {"sandboxagent.dev": {"permissions": rules}}}
            new = await client.error("session/new", params)
            assert len((await client.result("session/list"))["sessions"]) == before
            session = await client.new_session(permissions=[])
            changed = await client.error(SET, {"sessionId": session, "metadata": {"permissions": rules, "x": 1}})
            assert (await view_of(client, session))["metadata"] == {"permissions": []}
            for error in (new, changed):
                assert error["code"] == -32602
                assert all(word in error["message"] for word in words), error["message"]

    run(main())


@pytest.mark.requirement("7.server-first")
def test_a_session_cannot_allow_what_the_server_rejects(ruled: Server) -> None:
    async def main() -> None:
        everything_allowed = [{"tool": "*", "action": "allow"}]
        async with Client(ruled) as client:
            _, pushed = await turn(client, asking(running("git push")), ["echo_answer"], permissions=everything_allowed)
            assert answer_line(texts(pushed)[0])["result"] == REJECT
        async with Client(ruled) as client:
            _, made = await turn(client, asking(running("make")), ["echo_answer"], permissions=everything_allowed)
            assert answer_line(texts(made)[0])["result"] == ALLOW
        async with Client(ruled) as client:
            rejecting = [{"tool": "*", "action": "reject"}]
            _, status = await turn(client, asking(running("git status")), ["echo_answer"], permissions=rejecting)
            assert answer_line(texts(status)[0])["result"] == REJECT

    run(main())


@pytest.mark.requirement("7.session-rules")
def test_rules_of_a_session_survive_a_restart(tmp_path: Any) -> None:
    async def begin(server: Server) -> str:
        async with Client(server) as client:
            return await client.new_session(permissions=[{"command": "make", "action": "reject"}])

    async def resume(server: Server, session: str) -> None:
        async with Client(server) as client, client.stream() as events:
            await client.result("session/resume", {"sessionId": session, "cwd": server.work, "mcpServers": []})
            await client.prompt(session, [asking(running("make")), ["echo_answer"]])
            assert answer_line(texts(await everything(client, events))[0])["result"] == REJECT

    with Server(directory=tmp_path) as server:
        session = run(begin(server))
        server.kill()
        server.start()
        run(resume(server, session))


# Every attached client learns of every decision


@pytest.mark.requirement("7.decision-told")
def test_all_attached_clients_learn_what_a_person_decided(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as seen_a:
            b = Client(server)
            meta = {"sandboxagent.dev": {"agent": "scripted", "user": "ann"}}
            await b.initialize(clientInfo={"name": "editor", "version": "1"}, _meta=meta)
            async with aclosing(b.http), b.stream() as seen_b:
                session = await a.new_session()
                await b.result(ATTACH, {"sessionId": session})
                await ask_outright(a, session, permission(), ["wait_answer"])
                await seen_a.method(PERMISSION)
                asked = await seen_b.method(PERMISSION)
                assert (await b.answer(asked.data["id"], REJECT)).status_code == 202
                told = [(await stream.method(DECISION)).data["params"] for stream in (seen_a, seen_b)]
                assert told[0] == told[1]
                by = told[0].pop("by")
                assert (by.pop("kind"), by.pop("name")[:1]) == ("client", "c")
                assert by == {"client": "editor", "user": "ann"}
                assert told[0] == {
                    "sessionId": session,
                    "requestId": asked.data["id"],
                    "agentRequestId": told[0]["agentRequestId"],
                    "toolCallId": "call-1",
                    "kind": "permission",
                    "outcome": "answered",
                    "optionId": "no",
                    "optionKind": "reject_once",
                }

    run(main())


@pytest.fixture(scope="module")
def hurried() -> Generator[Server]:
    with Server("--no-persist", "--permission-timeout", "0.3s") as running:
        yield running


@pytest.mark.requirement("7.decision-told")
@pytest.mark.parametrize(
    ("method", "params", "kind"),
    [
        (PERMISSION, PERMISSION_PARAMS, "permission"),
        (QUESTION, QUESTION_PARAMS, "question"),
        (ELICITATION, ELICITATION_PARAMS, "elicitation"),
    ],
)
def test_all_attached_clients_learn_that_no_answer_came(hurried: Server, method: str, params: Json, kind: str) -> None:
    async def main() -> None:
        async with Client(hurried) as client:
            _, events = await turn(client, ["ask", method, params], ["wait_answer"])
            (decision,) = decided(events)
            assert (decision["kind"], decision["outcome"], decision["by"]) == (kind, "rejected", {"kind": "timeout"})
            assert decision["reason"]

    run(main())


@pytest.mark.requirement("7.pending-bounded")
@pytest.mark.server_alone("a gateway has no agents")
@pytest.mark.parametrize(
    ("flags", "size", "flag"),
    [
        (("--pending-requests", "1"), 1, "--pending-requests"),
        (("--agent-memory", "300KiB"), 200 << 10, "--agent-memory"),
    ],
)
def test_request_over_a_pending_limit_is_rejected_and_clients_learn_why(
    flags: tuple[str, str], size: int, flag: str
) -> None:
    async def main(server: Server) -> None:
        async with Client(server) as client, client.stream() as events:
            session = await client.new_session()
            params = {**PERMISSION_PARAMS, "filler": "x" * size}
            steps = [["ask", PERMISSION, params], ["ask", PERMISSION, params], ["wait_cancel"], ["wait_answer"]]
            prompt = asyncio.create_task(client.prompt(session, [*steps, ["echo_answer"]]))
            asked = await events.method(PERMISSION)
            decision = (await events.method(DECISION)).data["params"]
            assert (decision["outcome"], decision["by"]) == ("rejected", {"kind": "limit"})
            assert decision["optionKind"] == "reject_once"
            assert flag in decision["reason"]
            # The one before it still waits, and can be answered.
            assert (await client.answer(asked.data["id"], ALLOW)).status_code == 202
            await client.notify("session/cancel", {"sessionId": session})
            await prompt
            assert answer_line(texts(await everything(client, events))[-1])["result"] == REJECT

    with Server("--no-persist", *flags) as server:
        run(main(server))


@pytest.mark.requirement("7.decision-told")
@pytest.mark.parametrize(
    ("how", "by"), [("cancel", {"kind": "cancel"}), ("withdraw", {"kind": "agent"}), ("exit", {"kind": "agent"})]
)
def test_all_attached_clients_learn_that_nothing_was_decided(server: Server, how: str, by: Json) -> None:
    async def main() -> None:
        async with Client(server, "isolated") as client, client.stream() as events:
            session = await client.new_session()
            then = {"cancel": [["wait_answer"]], "withdraw": [["cancel_own"]], "exit": [["exit", 0]]}[how]
            await ask_outright(client, session, permission(), *then)
            if how == "cancel":
                await events.method(PERMISSION)
                await client.notify("session/cancel", {"sessionId": session})
            decision = (await events.method(DECISION)).data["params"]
            assert (decision["outcome"], decision["by"]) == ("cancelled", by)
            assert "optionId" not in decision
            assert CANCEL in methods(events.seen)

    run(main())
