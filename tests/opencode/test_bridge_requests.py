"""Permissions and questions in the bridge, on a hub in memory: what a reply means, and what is remembered."""

import json

import pytest

from sandboxagent.adapters.opencode.errors import BridgeError
from sandboxagent.adapters.opencode.session_ids import Facts, id_of
from sandboxagent.protocol.envelope import parse, success
from tests.opencode.bridging import ALWAYS, ONLY_ONCE, Json, answered, ask, bridged, is_answered
from tests.support.world import run


@pytest.mark.parametrize(
    ("reply", "options", "chosen"),
    [
        ("once", ALWAYS, "yes"),
        ("always", ALWAYS, "ever"),
        ("always", ONLY_ONCE, "yes"),
        ("reject", ALWAYS, "no"),
        ("allow", ALWAYS, "yes"),
        ("deny", ALWAYS, "no"),
        ("reject", [{"optionId": "never", "kind": "reject_always"}], "never"),
    ],
)
def test_a_reply_is_one_of_the_agents_own_options(reply: str, options: list[Json], chosen: str) -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            listener = bridge.listen()
            await ask(own, options)
            asked = await listener.until("permission.asked")
            assert (asked["permission"], asked["patterns"]) == ("bash", ["ls"])
            assert asked["metadata"]["command"] == "ls"
            assert asked["always"]
            assert [each.id for each in await bridge.requests.permissions(None)] == [asked["id"]]
            await bridge.requests.reply_permission(asked["id"], reply, None)

            assert answered(own) == {"outcome": {"outcome": "selected", "optionId": chosen}}
            replied = await listener.until("permission.replied")
            assert replied["requestID"] == asked["id"]
            assert await bridge.requests.permissions(None) == []
            with pytest.raises(BridgeError) as refused:
                await bridge.requests.reply_permission(asked["id"], reply, None)
            assert refused.value.status == 404

    run(main())


@pytest.mark.parametrize(
    ("reply", "options"),
    [("once", [{"optionId": "ever", "kind": "allow_always"}]), ("always", [{"optionId": "no", "kind": "reject_once"}])],
)
def test_a_reply_that_none_of_them_means_is_refused_and_nothing_is_allowed(reply: str, options: list[Json]) -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            await ask(own, options)
            (waiting,) = await bridge.requests.permissions(None)
            for said in (reply, "yes please"):
                with pytest.raises(BridgeError) as refused:
                    await bridge.requests.reply_permission(waiting.id, said, None)
                assert refused.value.status == 400
            assert not is_answered(own)
            await bridge.requests.reply_permission(waiting.id, "reject", None)
            assert "ever" not in json.dumps(answered(own))

    run(main())


def test_always_is_remembered_for_exactly_that_where_the_agent_does_not() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            await ask(own, ONLY_ONCE)
            (waiting,) = await bridge.requests.permissions(None)
            await bridge.requests.reply_permission(waiting.id, "always", None)
            await ask(own, ONLY_ONCE, 1)
            await ask(own, ONLY_ONCE, 2, command="ls; rm -rf /")
            await own.log.flushed()
            await own.settled()

            assert answered(own, 1) == {"outcome": {"outcome": "selected", "optionId": "yes"}}
            assert not is_answered(own, 2)
            (rule,) = Facts.of(own.session).always
            assert rule[0] == "bash"

    run(main())


def diff(path: str, new: str = "new") -> Json:
    return {"type": "diff", "path": path, "oldText": "old", "newText": new}


def execute(command: object, **more: object) -> Json:
    return {"kind": "execute", "title": "Run", "rawInput": {"command": command, **more}}


def edit(*diffs: Json, **more: object) -> Json:
    return {"kind": "edit", "title": "Edit", "rawInput": {"path": "/w/a.py"}, "content": list(diffs), **more}


def use(kind: str, **raw: object) -> Json:
    return {"kind": kind, "title": "deploy", "rawInput": raw}


LS = execute("ls")


@pytest.mark.parametrize(
    ("allowed", "other"),
    [
        (edit(diff("/w/a.py")), edit(diff("/w/a.py"), diff("/home/u/.bashrc"))),
        (edit(diff("/w/a.py")), edit(diff("/w/a.py", "worse"))),
        (edit(diff("/w/a.py")), edit(diff("/w/a.py"), locations=[{"path": "/etc/passwd"}])),
        (execute("git", args=["status"]), execute("git", args=["push", "--force"])),
        (execute(["bash", "-c", "ls"]), execute(["ssh", "-c", "ls"])),
        (LS, execute("ls", cwd="/etc")),
        (LS, LS | {"kind": "other"}),
        (use("move", path="/w/a", to="/w/b"), use("move", path="/w/a", to="/etc/cron.d/x")),
        (use("other", path="/w", target="staging"), use("other", path="/w", target="production")),
    ],
)
def test_always_holds_for_no_other_request(allowed: Json, other: Json) -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            own.asks(0, sessionId="s", toolCall=allowed | {"toolCallId": "c0"}, options=ONLY_ONCE)
            (waiting,) = await bridge.requests.permissions(None)
            await bridge.requests.reply_permission(waiting.id, "always", None)
            renamed = [ONLY_ONCE[0] | {"name": "Allow, and everything else"}, ONLY_ONCE[1]]
            own.asks(1, sessionId="s", toolCall=other | {"toolCallId": "c1"}, options=ONLY_ONCE)
            own.asks(2, sessionId="s", toolCall=allowed | {"toolCallId": "c2"}, options=renamed)
            own.asks(3, sessionId="s", toolCall=allowed | {"toolCallId": "c3", "status": "pending"}, options=ONLY_ONCE)
            await own.log.flushed()
            await own.settled()

            assert not is_answered(own, 1)
            assert not is_answered(own, 2)
            assert answered(own, 3) == {"outcome": {"outcome": "selected", "optionId": "yes"}}

    run(main())


def test_always_holds_for_no_other_session_not_even_a_fork() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            await ask(own, ONLY_ONCE)
            (waiting,) = await bridge.requests.permissions(None)
            await bridge.requests.reply_permission(waiting.id, "always", None)
            forked = own.add_session("f")
            forked.facts.metadata = dict(own.session.facts.metadata)
            await ask(own, ONLY_ONCE, 1, session="f")
            await own.log.flushed()
            await own.settled()

            assert Facts.of(forked).always
            assert not is_answered(own, 1)

    run(main())


def test_a_rule_that_denies_holds_for_every_file_of_a_request() -> None:
    async def main() -> None:
        async with bridged() as (own, _):
            rules = [
                {"permission": "edit", "pattern": "/etc/*", "action": "deny"},
                {"permission": "edit", "pattern": "/w/*", "action": "allow"},
            ]
            own.session.facts.metadata = {"opencode": {"permission": rules}}
            call = edit(diff("/w/a.py"), diff("/etc/passwd")) | {"toolCallId": "c"}
            own.asks(0, sessionId="s", toolCall=call, options=ONLY_ONCE)
            await own.log.flushed()
            await own.settled()

            assert answered(own)["outcome"]["optionId"] == "no"

    run(main())


@pytest.mark.parametrize(
    "call",
    [
        {"title": "Lights", "kind": "other", "rawInput": {"room": 1}},
        {"title": "Edit", "kind": "edit", "content": [diff("/w/a.py"), diff("/w/b.py")]},
        {"title": "Edit", "kind": "edit", "locations": [{"path": "/w/a.py"}]},
        {"title": "ls", "kind": "execute", "rawInput": {}},
    ],
)
def test_what_cannot_be_told_apart_is_not_remembered(call: Json) -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            own.asks(0, sessionId="s", toolCall=call | {"toolCallId": "c"}, options=ONLY_ONCE)
            (waiting,) = await bridge.requests.permissions(None)
            await bridge.requests.reply_permission(waiting.id, "always", None)

            assert Facts.of(own.session).always == ()

    run(main())


def test_the_first_answer_wins_and_the_other_side_closes_its_dialog() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            listener = bridge.listen()
            await ask(own, ALWAYS)
            asked = await listener.until("permission.asked")
            (pending,) = own.hub.pending.of_session(own.session)
            line = success(pending.id, {"outcome": {"outcome": "selected", "optionId": "no"}})
            await own.requests.answer(own.client, parse(line))

            assert (await listener.until("permission.replied"))["reply"] == "reject"
            with pytest.raises(BridgeError):
                await bridge.requests.reply_permission(asked["id"], "once", None)
            assert answered(own)["outcome"]["optionId"] == "no"

    run(main())


def test_a_reader_that_comes_later_gets_what_waits() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            await ask(own, ALWAYS)
            listener = bridge.listen()
            await bridge.requests.greet(listener.reader)

            assert (await listener.until("permission.asked"))["sessionID"] == id_of(own.session)
            elsewhere = bridge.listen("/elsewhere")
            await bridge.requests.greet(elsewhere.reader)
            bridge.bus.close()
            with pytest.raises(AssertionError):
                await elsewhere.until("permission.asked")

    run(main())


QUESTION = {
    "sessionId": "s",
    "questionId": "q",
    "prompt": "Which?",
    "options": [["r", "Red"]],
    "questions": [
        {"question": "Which color?", "header": "Color", "options": [{"id": "r", "label": "Red"}], "multiSelect": False},
        {
            "question": "Which ones?",
            "options": [{"id": "1", "label": "One"}, {"id": "2", "label": "Two"}],
            "multiSelect": True,
        },
    ],
}


def test_several_questions_are_answered_by_labels_and_free_text() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            listener = bridge.listen()
            own.asks(0, "_sandboxagent/session/request_question", **QUESTION)
            asked = await listener.until("question.asked")
            assert [each["header"] for each in asked["questions"]] == ["Color", "Which ones?"]
            assert [each["multiple"] for each in asked["questions"]] == [False, True]
            await bridge.requests.reply_question(asked["id"], [["mauve"], ["One", "Two"]])

            assert answered(own) == {"status": "answered", "answers": [["mauve"], ["1", "2"]]}
            assert (await listener.until("question.replied"))["answers"] == [["mauve"], ["One", "Two"]]

    run(main())


def test_a_question_is_rejected_and_a_wrong_answer_leaves_it_open() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            listener = bridge.listen()
            own.asks(0, "_sandboxagent/session/request_question", **QUESTION)
            id = (await listener.until("question.asked"))["id"]
            with pytest.raises(BridgeError) as refused:
                await bridge.requests.reply_question(id, [["Red", "Green"], []])
            assert refused.value.status == 400
            await bridge.requests.reject_question(id)

            assert answered(own) == {"status": "rejected"}
            assert (await listener.until("question.rejected"))["requestID"] == id

    run(main())


def test_a_form_is_a_question_for_each_of_its_fields() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            properties = {
                "color": {"type": "string", "title": "Color", "enum": ["red", "green"]},
                "gift": {"type": "boolean", "title": "Wrap it"},
                "amount": {"type": "integer", "title": "How many"},
            }
            schema = {"type": "object", "properties": properties, "required": ["color"]}
            own.asks(0, "elicitation/create", sessionId="s", mode="form", message="What?", requestedSchema=schema)
            (asked,) = await bridge.requests.questions(None)
            assert [each.custom for each in asked.questions] == [False, False, True]
            assert [option.label for option in asked.questions[1].options] == ["Yes", "No"]
            await bridge.requests.reply_question(asked.id, [["green"], ["Yes"], ["3"]])

            content = {"color": "green", "gift": True, "amount": 3}
            assert answered(own) == {"action": "accept", "content": content}

    run(main())


def test_a_program_that_answers_no_questions_has_them_rejected() -> None:
    async def main() -> None:
        async with bridged() as (own, bridge):
            denied = [{"permission": "question", "action": "deny", "pattern": "*"}]
            own.session.facts.metadata = {"opencode": {"permission": denied}}
            own.asks(0, "_sandboxagent/session/request_question", **QUESTION)
            await own.settled()
            await own.log.flushed()
            await own.settled()

            assert answered(own) == {"status": "rejected"}
            assert await bridge.requests.questions(None) == []

    run(main())
