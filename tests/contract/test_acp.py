"""/acp over HTTP: the transport of the SDKs of ACP. Contract, section 14."""

import asyncio
import json
from collections.abc import Generator

import httpx
import pytest

from tests.support.acp import Acp, websocket
from tests.support.asking import ALLOW, PERMISSION, permission
from tests.support.client import NO_CERTIFICATES, Client, run
from tests.support.problems import problem
from tests.support.running import BOUND, Server, scripted

ORIGIN = "https://app.example.org"


@pytest.fixture(scope="module")
def acp() -> Generator[Server]:
    flags = ("--default-agent", "scripted", "--max-body", "2MiB", "--cors-origin", ORIGIN)
    with Server(*flags, agents={"other": scripted("--session-id", "others")}) as running:
        yield running


@pytest.mark.requirement("14.open")
def test_initialize_opens_a_connection_and_all_else_is_answered_on_a_stream(acp: Server) -> None:
    async def main() -> None:
        async with Acp(acp) as client, client.get() as stream:
            taken = await client.say("session/new", {"cwd": acp.work, "mcpServers": []}, id=7)
            assert (taken.status_code, taken.content) == (202, b"")
            [*_, answer] = await stream.until(lambda event: event.data.get("id") == 7)
            assert answer.data["result"]["sessionId"]
            assert (await client.say("x/unknown", {})).status_code == 202

    run(main())


@pytest.mark.requirement("14.agent")
@pytest.mark.parametrize(
    ("path", "meta", "expected"),
    [
        ("/acp", None, "scripted"),
        ("/acp/other", None, "other"),
        ("/acp?agent=other", None, "other"),
        ("/acp/other", "scripted", "scripted"),
        ("/acp/other?agent=scripted", None, "other"),
    ],
)
def test_the_agent_is_that_of_meta_then_of_the_url_then_the_default(
    acp: Server, path: str, meta: str | None, expected: str
) -> None:
    async def main() -> None:
        async with Acp(acp, path, meta) as client, client.get() as stream:
            session = await client.session(stream)
            view = (await client.http.get(f"/v1/sessions/{session}")).json()
            assert view["agent"] == expected

    run(main())


@pytest.mark.requirement("14.agent")
def test_v1_rpc_takes_the_default_agent_too(acp: Server) -> None:
    async def main() -> None:
        client = Client(acp)
        async with client.http:
            body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
            assert (await client.post(body)).status_code == 200

    run(main())


@pytest.mark.requirement("14.open-failed")
def test_an_initialize_that_fails_is_a_200_with_an_id_and_no_connection_behind_it(acp: Server) -> None:
    async def main() -> None:
        client = Acp(acp, "/acp/nonesuch")
        async with client.http:
            failed = await client.initialize()
            assert failed["error"]["data"]["type"] == "unknown-agent"
            assert client.id
            client.path = "/acp"
            problem(await client.say("session/list", {}, id=1), 404, "unknown-connection")

    run(main())


@pytest.mark.requirement("14.unknown-connection")
def test_only_an_unknown_connection_is_a_404(acp: Server) -> None:
    async def main() -> None:
        client = Acp(acp)
        async with client.http:
            problem(await client.say("session/list", {}, id=1), 400, "missing-connection")
            problem(await client.http.get("/acp"), 400, "missing-connection")
            problem(await client.http.delete("/acp"), 400, "missing-connection")
            client.id = "nonesuch"
            problem(await client.say("session/list", {}, id=1), 404, "unknown-connection")
            problem(await client.http.get("/acp", headers=client.headers()), 404, "unknown-connection")
            problem(await client.http.put("/acp", headers=client.headers()), 405, "method-not-allowed")
            problem(await client.http.get("/acp/a/b", headers=client.headers()), 404, "not-found")

    run(main())


@pytest.mark.requirement("14.streams")
@pytest.mark.requirement("14.answers-on-streams")
def test_a_session_has_its_events_and_answers_on_its_own_stream_once_that_is_open(acp: Server) -> None:
    async def main() -> None:
        async with Acp(acp) as client, client.get() as stream:
            session = await client.session(stream)
            first = client.prompt_params(session, [["say", "early"]])
            await client.say("session/prompt", first, id=2)
            early = await stream.until(lambda event: event.data.get("id") == 2)
            assert "early" in [event.text for event in early]
            async with client.get(session) as own:
                program = [["flood", 100, 10], permission(), ["wait_answer"], ["say", "done"]]
                await client.say("session/prompt", client.prompt_params(session, program), id=3)
                asked = await own.method(PERMISSION)
                assert (await client.answer(asked.data["id"], ALLOW)).status_code == 202
                rest = await own.until(lambda event: event.data.get("id") == 3)
                assert [event.text for event in rest if event.text] == ["done"]
                assert len([event for event in own.seen if event.update]) == 101
                await client.say("session/list", {}, id=4)
                others = await stream.until(lambda event: event.data.get("id") == 4)
                assert {event.id for event in own.seen}.isdisjoint(event.id for event in stream.seen)
                assert [event for event in others if event.update or event.method == PERMISSION] == []

    run(main())


@pytest.mark.requirement("14.answers-on-streams")
def test_load_replays_on_the_session_stream_before_it_is_answered(acp: Server) -> None:
    """The answer comes on the stream of the connection."""

    async def main() -> None:
        async with Acp(acp) as first, first.get() as stream:
            session = await first.session(stream)
            await first.say("session/prompt", first.prompt_params(session, [["flood", 50, 10]]), id=2)
            await stream.until(lambda event: event.data.get("id") == 2)
            async with Acp(acp) as second, second.get() as seconds, second.get(session) as own:
                params = {"sessionId": session, "cwd": acp.work, "mcpServers": []}
                await second.say("session/load", params, id=5, Acp_Session_Id=session)
                await seconds.until(lambda event: event.data.get("id") == 5)
                for _ in range(51):
                    assert (await own.next()).update
                assert not any(event.update for event in seconds.seen)

    run(main())


@pytest.mark.requirement("14.late-stream")
def test_a_stream_that_opens_while_a_prompt_runs_takes_over_after_its_response(acp: Server) -> None:
    async def main() -> None:
        async with Acp(acp) as client, client.get() as stream:
            session = await client.session(stream)
            program = [["say", "a"], ["wait_cancel"], ["say", "b"]]
            await client.say("session/prompt", client.prompt_params(session, program), id=2)
            await stream.until(lambda event: event.text == "a")
            async with client.get(session) as own:
                await client.say("session/cancel", {"sessionId": session})
                rest = await stream.until(lambda event: event.data.get("id") == 2)
                assert "b" in [event.text for event in rest], "in order, on the stream where the turn began"
                await client.say("session/prompt", client.prompt_params(session, [["say", "c"]]), id=3)
                assert "c" in [event.text for event in await own.until(lambda event: event.data.get("id") == 3)]

    run(main())


@pytest.mark.requirement("14.unknown-session")
def test_unknown_sessions_may_have_streams_and_their_requests_fail_on_one(acp: Server) -> None:
    async def main() -> None:
        async with Acp(acp) as client, client.get() as stream, client.get("nonesuch"):
            params = client.prompt_params("nonesuch", "hello")
            assert (await client.say("session/prompt", params, id=2, Acp_Session_Id="nonesuch")).status_code == 202
            [*_, failed] = await stream.until(lambda event: event.data.get("id") == 2)
            assert failed.data["error"]["code"] == -32002
            problem(
                await client.http.get("/acp", headers=client.headers(Acp_Session_Id="x" * 1025)), 400, "bad-request"
            )

    run(main())


@pytest.mark.requirement("14.resume")
def test_either_stream_goes_on_after_the_last_event_or_where_the_last_one_ended(acp: Server) -> None:
    async def main() -> None:
        async with Acp(acp) as client:
            async with client.get() as stream:
                session = await client.session(stream)
                last = stream.seen[-1].id
            async with client.get(session) as own:
                await client.say("session/prompt", client.prompt_params(session, [["flood", 20, 5]]), id=2)
                whole = await own.until(lambda event: event.data.get("id") == 2)
            await client.say("session/prompt", client.prompt_params(session, [["say", "missed"]]), id=3)
            async with client.get(session, after=whole[4].id) as own:
                again = await own.until(lambda event: event.data.get("id") == 3)
                assert [event.id for event in again][: len(whole) - 5] == [event.id for event in whole[5:]]
                assert "missed" in [event.text for event in again]
            async with client.get(session) as own:
                await client.say("session/prompt", client.prompt_params(session, [["say", "new"]]), id=4)
                new = await own.until(lambda event: event.data.get("id") == 4)
                assert new[0].id > again[-1].id
            async with client.get(after=last) as stream:
                await client.say("session/list", {}, id=9)
                [answer] = [event for event in await stream.until(lambda e: e.data.get("id") == 9) if not event.method]
                assert answer.data["id"] == 9
            for wrong in ("x", "99999999999", "-1"):
                headers = client.headers(Last_Event_ID=wrong)
                problem(await client.http.get("/acp", headers=headers), 400, "bad-request")

    run(main())


@pytest.mark.requirement("14.newest-stream")
def test_a_second_stream_ends_the_first(acp: Server) -> None:
    async def main() -> None:
        async with Acp(acp) as client, client.get() as stream:
            session = await client.session(stream)
            async with client.get(session) as first, client.get(session) as second:
                await first.ended()
                await client.say("session/prompt", client.prompt_params(session, "hello"), id=2)
                await second.until(lambda event: event.data.get("id") == 2)
            async with client.get():
                await stream.ended()

    run(main())


@pytest.mark.requirement("14.session-header")
@pytest.mark.requirement("14.batch")
def test_a_mismatch_is_a_400_and_a_batch_a_501(acp: Server) -> None:
    async def main() -> None:
        async with Acp(acp) as client, client.get() as stream:
            session = await client.session(stream)
            prompt = client.prompt_params(session, [permission(), ["wait_answer"]])
            problem(await client.say("session/prompt", prompt, id=2, Acp_Session_Id="another"), 400, "bad-request")
            assert (await client.say("session/prompt", prompt, id=2, Acp_Session_Id=session)).status_code == 202
            asked = await stream.method(PERMISSION)
            answer = {"jsonrpc": "2.0", "id": asked.data["id"], "result": ALLOW}
            problem(await client.post(answer, Acp_Session_Id="another"), 400, "bad-request")
            cancel = {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 99}}
            assert (await client.post(cancel, Acp_Session_Id="another")).status_code == 202
            assert (await client.post(answer, Acp_Session_Id=session)).status_code == 202
            await stream.until(lambda event: event.data.get("id") == 2)
            problem(await client.post(f"[{json.dumps(answer)}]"), 501, "batch-not-supported")
            problem(await client.post("nonsense"), 400, "not-an-envelope")
            problem(await client.post("{}"), 400, "not-an-envelope")
            problem(await client.post("x" * (3 << 20)), 413, "body-too-large")
            both = client.headers(X_ACP_Connection_Id="another")
            problem(await client.http.get("/acp", headers=both), 400, "bad-request")

    run(main())


@pytest.mark.requirement("14.late-answer")
@pytest.mark.requirement("14.wrong-answer")
def test_answers_are_never_refused_and_a_wrong_one_is_complained_of(acp: Server) -> None:
    async def main() -> None:
        async with Acp(acp) as client, client.get() as stream:
            session = await client.session(stream)
            prompt = client.prompt_params(session, [permission(), ["wait_answer"]])
            await client.say("session/prompt", prompt, id=2)
            asked = (await stream.method(PERMISSION)).data["id"]
            wrong = await client.answer(asked, {"outcome": {"outcome": "selected", "optionId": "nonesuch"}})
            assert wrong.status_code == 202
            [*_, complaint] = await stream.until(lambda event: "error" in event.data)
            assert (complaint.data["id"], complaint.data["error"]["code"]) == (None, -32602)
            assert complaint.data["error"]["data"]["requestId"] == asked
            assert (await client.answer(asked, ALLOW)).status_code == 202
            await stream.until(lambda event: event.data.get("id") == 2)
            assert (await client.answer(asked, ALLOW)).status_code == 202
            assert (await client.answer(asked, {"outcome": {"outcome": "cancelled"}})).status_code == 202
            assert (await client.answer("nobody", ALLOW)).status_code == 202

    run(main())


@pytest.mark.requirement("14.delete")
def test_delete_ends_the_connection_and_its_streams(acp: Server) -> None:
    async def main() -> None:
        async with Acp(acp) as client, client.get() as stream, client.get("any") as own:
            for _ in range(2):
                assert (await client.http.delete("/acp", headers=client.headers())).status_code == 202
            await asyncio.gather(stream.ended(), own.ended())
            problem(await client.say("session/list", {}, id=1), 404, "unknown-connection")

    run(main())


@pytest.mark.requirement("14.guard")
def test_the_guard_is_that_of_v1(acp: Server) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(base_url=acp.url, trust_env=False, timeout=BOUND, verify=NO_CERTIFICATES) as http:
            for path in ("/acp", "/acp/scripted", "/acp?token=test-token", "/acp?access_token=test-token"):
                for method in ("GET", "POST", "DELETE"):
                    problem(await http.request(method, path), 401, "unauthorized")
            token = {"Authorization": f"Bearer {acp.token}"}
            evil = await http.post("/acp", headers={**token, "Origin": "https://evil.example"})
            problem(evil, 403, "forbidden-origin")
            problem(await http.post("/acp", headers={**token, "Host": "evil.example"}), 421, "misdirected")
            asking = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
            allowed = (await http.options("/acp", headers=asking)).headers
            assert "Acp-Connection-Id, Acp-Session-Id" in allowed["access-control-allow-headers"]
            assert "Acp-Connection-Id, Acp-Session-Id" in allowed["access-control-expose-headers"]
            problem(await http.post("/acp", headers=token, content="{}"), 415, "unsupported-media-type")

    run(main())


@pytest.mark.requirement("14.newest-stream")
def test_a_websocket_takes_over_from_streams_and_they_from_it(acp: Server) -> None:
    async def main() -> None:
        async with Acp(acp) as client, client.get() as stream:
            session = await client.session(stream)
            async with websocket(acp, headers=client.headers()) as socket:
                await stream.ended()
                await socket.prompt(session, "hello", 5)
                async with client.get():
                    assert (await socket.closed())[0] == 4001

    run(main())
