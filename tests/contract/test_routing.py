"""Where envelopes go, and that they arrive as they were sent. Contract, section 5."""

import json
from itertools import count
from pathlib import Path

import pytest

from tests.support.asking import (
    ALLOW,
    PERMISSION,
    UNPARSED,
    answer_line,
    ask_outright,
    everything,
    methods,
    permission,
    received,
    texts,
)
from tests.support.client import META, Client, run
from tests.support.running import Server, scripted

marks = count(1)


def mark() -> str:
    return f"mark-{next(marks)}-of-routing"


STRANGE = '"a" : 1.0,  "b":"\\u00e9\\/", "c":12345678901234567890, "d":1e30, "e":[ ], "e":"twice"'
"""Members that a program would spell differently if it wrote them anew."""


@pytest.mark.requirement("5.pass-through")
def test_a_request_reaches_the_agent_byte_for_byte_but_for_its_id(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            session = await a.new_session()
            for params in (f"{{{STRANGE}}}", f'{{"sessionId":"{session}", {STRANGE}}}', "[1, 2]", "null"):
                body = f'{{ "method":"x/echo","extra":{{ "y":1.50 }},"params":{params},"id":"mine"  , "jsonrpc":"2.0"}}'
                result = (await a.post(body)).json()["result"]
                stdio_id = json.loads(result["line"])["id"]
                assert result["line"] == body.replace('"mine"', json.dumps(stdio_id))

    run(main())


@pytest.mark.requirement("5.pass-through")
def test_a_request_without_params_gets_none(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            line = (await a.post('{"jsonrpc":"2.0","id":1,"method":"x/echo"}')).json()["result"]["line"]
            assert json.loads(line).keys() == {"jsonrpc", "id", "method"}

    run(main())


@pytest.mark.requirement("5.pass-through")
def test_a_body_on_several_lines_reaches_the_agent_as_one_line(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            body = {"jsonrpc": "2.0", "id": 1, "method": "x/echo", "params": {"text": "a\nb\r"}}
            for pretty in (json.dumps(body, indent=2), json.dumps(body, indent=2).replace("\n", "\r\n")):
                result = (await a.post(pretty)).json()["result"]
                assert result["params"] == body["params"]
                assert "\n" not in result["line"]

    run(main())


@pytest.mark.requirement("5.pass-through")
def test_a_notification_reaches_the_agent_byte_for_byte(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            session = await a.new_session()
            for params in (f'{{"m":"{mark()}", {STRANGE}}}', f'{{"sessionId":"{session}", {STRANGE}}}'):
                body = f'{{"jsonrpc":"2.0", "method":"x/unheard of", "params":{params}, "extra":[]}}'
                assert (await a.post(body)).status_code == 202
                assert body in await received(a)

    run(main())


@pytest.mark.requirement("5.pass-through")
def test_a_cancel_is_passed_on_byte_for_byte(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            session = await a.new_session()
            params = f'{{"_meta":{{"vendor":{{"why":1.0}}}}, "sessionId":"{session}", {STRANGE}}}'
            body = f'{{"jsonrpc":"2.0", "method":"session/cancel", "params":{params}}}'
            assert (await a.post(body)).status_code == 202
            assert body in await received(a)

    run(main())


@pytest.mark.requirement("5.pass-through")
def test_a_prompt_reaches_the_agent_byte_for_byte_but_for_its_id(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            session = await a.new_session()
            text = mark()
            params = f'{{"sessionId":"{session}","prompt":[ {{"type":"text","text":"{text}"}}],{STRANGE}}}'
            body = f'{{"jsonrpc":"2.0", "id":"mine", "method":"session/prompt","params":{params},"x":1.0}}'
            assert (await a.post(body)).status_code == 200
            (line,) = [line for line in await received(a) if text in line]
            assert line == body.replace('"mine"', json.dumps(json.loads(line)["id"]))

    run(main())


@pytest.mark.requirement("5.pass-through")
def test_an_answer_reaches_the_agent_byte_for_byte_but_for_its_id(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            for rest in (
                f'"result":{{ "outcome": {{"outcome" : "selected", "optionId":"yes"}}, {STRANGE} }}',
                f'"error":{{"code":-32000.0, "message":"no","data":{{{STRANGE}}}}}',
            ):
                await ask_outright(a, session, permission(), ["echo_answer"])
                asked = await events.method(PERMISSION)
                body = '{{"jsonrpc":"2.0", {}, "more":null, "id":{}}}'.format(rest, json.dumps(asked.data["id"]))
                assert (await a.post(body)).status_code == 202
                (told,) = texts(await events.turn_ended())
                agents = json.dumps(answer_line(told)["id"])
                assert told == body.replace(json.dumps(asked.data["id"]), agents)

    run(main())


@pytest.mark.requirement("5.pass-through")
def test_what_an_agent_says_reaches_clients_byte_for_byte(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            of_session, own = f'"params":{{"sessionId":"{session}", {STRANGE}}}', mark()
            update = f'"update":{{ "sessionUpdate":"a kind of tomorrow", {STRANGE}}}'
            lines = [
                f'{{"jsonrpc":"2.0", "method":"x/strange",{of_session}, "extra":{{"z":1.0}}}}',
                f'{{"jsonrpc":"2.0", "method":"x/of no session","params":{{{STRANGE}}}}}',
                f'{{"jsonrpc":"2.0","method":"session/update","params":{{{update}, "sessionId":"{session}"}}}}',
                f'{{ "method":"session/update","params":{{"sessionId":"{session}","update":[]}},"jsonrpc":"2.0"}}',
                f'{{"method":"x/asked","id":"{own}",{of_session} , "jsonrpc":"2.0"}}',
                '{"jsonrpc":"2.0","method":"x/no params"}',
            ]
            await a.prompt(session, [["raw", line] for line in lines])
            ours = ("_sandboxagent/session/turn", "_sandboxagent/session/decision", "$/cancel_request")
            seen = [event for event in await everything(a, events) if event.method not in ours]
            # A request comes under the id that all clients know.
            lines[4] = lines[4].replace(own, seen[4].data["id"])
            assert [event.line for event in seen] == lines

    run(main())


@pytest.mark.requirement("5.pass-through")
def test_half_of_a_surrogate_pair_does_not_cost_an_update(server: Server) -> None:
    # JavaScript writes such strings when an emoji is cut in two between chunks.
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            session = await a.new_session()
            halves = ["\ud83d", "\ude00 and on"]
            assert "result" in await a.prompt(session, [["say", half] for half in halves])
            said = texts(await everything(a, events))
            assert len(said) == 2
            assert said[1].endswith(" and on")
            assert UNPARSED not in methods(events.seen)

    run(main())


@pytest.mark.requirement("5.pass-through")
def test_results_and_errors_of_unknown_methods_come_back_as_the_agent_gave_them(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            failed = await a.post('{"jsonrpc":"2.0","id":"é","method":"x/error","params":{"code":-7,"message":"no"}}')
            assert failed.text == '{"jsonrpc":"2.0","id":"é","error":{"code":-7,"message":"no"}}'
            assert (await a.error("x/never heard of"))["code"] == -32601
            session = await a.new_session()
            answer = await a.prompt(session, [["respond", {"stopReason": "tomorrow's", "x": {"y": 1}}]])
            assert answer["result"] == {"stopReason": "tomorrow's", "x": {"y": 1}}
            assert (await a.prompt(session, [["respond_error", -12345, "so"]]))["error"] == {
                "code": -12345,
                "message": "so",
            }

    run(main())


@pytest.mark.requirement("5.routing")
def test_request_is_routed_by_session_then_named_agent_then_default(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            session = await a.new_session(agent="other")
            cases = {
                "scripted": {},
                "other": {"sessionId": session},
                "bare": {"_meta": {META: {"agent": "bare"}}},
                # The session decides, whatever else is named.
                "other ": {"sessionId": session, "_meta": {META: {"agent": "bare"}}},
            }
            for agent, params in cases.items():
                word = mark()
                await a.result("x/echo", {**params, "word": word})
                await a.notify("x/notified", {**params, "word": word})
                for each in ("scripted", "other", "bare"):
                    expected = 2 if each == agent.strip() else 0
                    assert sum(word in line for line in await received(a, each)) == expected, (agent, each)

    run(main())


@pytest.mark.requirement("5.routing")
def test_naming_an_agent_that_is_not_known_is_an_error_that_lists_those_that_are(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            for method in ("x/echo", "session/new"):
                params = {"cwd": server.work, "mcpServers": [], "_meta": {META: {"agent": "nobody"}}}
                error = await a.error(method, params)
                assert error["code"] == -32602
                assert "scripted" in error["message"]

    run(main())


@pytest.mark.requirement("5.unknown-session")
@pytest.mark.parametrize(
    "method",
    ["session/prompt", "x/echo", "session/set_mode", "session/fork", "session/close", "_sandboxagent/session/attach"],
)
def test_an_unknown_session_is_refused_by_the_server(server: Server, method: str) -> None:
    async def main() -> None:
        async with Client(server) as a:
            params = {"sessionId": mark(), "prompt": [{"type": "text", "text": "hello"}], "modeId": "plan"}
            error = await a.error(method, params)
            assert error["code"] == -32002
            assert params["sessionId"] in error["message"]
            assert not any(params["sessionId"] in line for line in await received(a))

    run(main())


@pytest.mark.requirement("5.unknown-session")
def test_a_notification_for_an_unknown_session_is_taken_and_goes_nowhere(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            word = mark()
            for method in ("session/cancel", "x/anything"):
                assert (await a.notify(method, {"sessionId": word})).status_code == 202
            assert not any(word in line for line in await received(a))

    run(main())


@pytest.mark.requirement("5.load-unknown")
@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_load_of_an_unknown_session_is_left_to_the_agent_and_listed(server: Server, method: str) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as seen_a, b.stream() as seen_b:
            session = mark()
            params = {"sessionId": session, "cwd": server.work, "mcpServers": []}
            assert "modes" in await a.result(method, params)
            assert sum(session in line for line in await received(a)) == 1
            listed = (await b.result("session/list", {"cwd": server.work}))["sessions"]
            assert session in [entry["sessionId"] for entry in listed]
            replayed = ["an old answer"] if method == "session/load" else []
            assert texts(await everything(a, seen_a)) == replayed
            assert (await b.prompt(session, "hello"))["result"] == {"stopReason": "end_turn"}
            assert texts(await everything(a, seen_a)) == [*replayed, "hello"], "loading attaches"
            assert texts(await everything(b, seen_b)) == ["hello"]

    run(main())


@pytest.mark.requirement("5.load-unknown")
def test_a_session_that_the_agent_does_not_know_either_does_not_join_the_inventory(tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        async with Client(server, "strict") as a:
            params = {"sessionId": "nobody's", "cwd": server.work, "mcpServers": []}
            for method in ("session/load", "session/resume"):
                assert (await a.error(method, params))["code"] == -32002
            assert (await a.result("session/list"))["sessions"] == []
            assert (await a.error("x/echo", params))["code"] == -32002

    with Server("--no-persist", agents={"strict": scripted("--state", str(tmp_path / "state"))}) as server:
        run(main(server))


@pytest.mark.requirement("5.notification-without-session")
def test_notification_without_session_reaches_exactly_its_agents_connections(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, Client(server, "other") as c, Client(server, "other") as d:
            await d.new_session(agent="scripted")
            method = f"x/{mark()}"
            await a.prompt(await a.new_session(), [["notify", method, {"n": 1}]])
            for client, times in ((a, 1), (b, 1), (c, 0), (d, 1)):
                async with client.stream() as events:
                    assert methods(await everything(client, events)).count(method) == times

    run(main())


@pytest.mark.requirement("5.notification-without-session")
def test_a_connection_that_meets_an_agent_later_is_not_shown_what_it_said_before(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "other") as a, Client(server) as b:
            before, after = f"x/{mark()}", f"x/{mark()}"
            session = await b.new_session()
            asks = ["ask", f"{before}/asked", {"sessionId": None}]
            await b.prompt(session, [["notify", before, {}], asks])
            await a.result("x/echo", {"_meta": {META: {"agent": "scripted"}}})
            await b.prompt(session, [["notify", after, {}]])
            async with a.stream() as events:
                seen = methods(await everything(a, events))
                assert after in seen
                assert before not in seen
                assert f"{before}/asked" not in seen

    run(main())


@pytest.mark.requirement("5.request-without-session")
def test_a_request_without_a_session_goes_to_every_connection_of_its_agent(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as seen_a, b.stream() as seen_b:
            method = f"x/{mark()}"
            await ask_outright(a, await a.new_session(), ["ask", method, {"sessionId": None}], ["echo_answer"])
            id_a, id_b = (await seen_a.method(method)).data["id"], (await seen_b.method(method)).data["id"]
            assert (await b.answer(id_b, ALLOW)).status_code == 202
            assert (await seen_a.method("$/cancel_request")).data["params"]["requestId"] == id_a
            assert (await a.answer(id_a, ALLOW)).status_code == 409
            await seen_a.turn_ended()
            assert answer_line(texts(seen_a.seen)[0])["result"] == ALLOW

    run(main())


@pytest.mark.requirement("5.request-without-session")
def test_an_agents_request_for_an_unknown_session_is_refused(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, a.stream() as events:
            unknown = ["ask", PERMISSION, {"sessionId": mark()}]
            await a.prompt(await a.new_session(), [unknown, ["echo_answer"]])
            seen = await everything(a, events)
            assert answer_line(texts(seen)[0])["error"]["code"] == -32002
            assert PERMISSION not in methods(seen)

    run(main())
