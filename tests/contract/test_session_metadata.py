"""Aliases, titles and metadata of sessions, and the log as pages."""

import asyncio
from datetime import datetime

import pytest

from tests.support.asking import received
from tests.support.client import META, Client, Json, run
from tests.support.inventory import PERMISSION, all_events, entry_of
from tests.support.running import Server

TURN = "_sandboxagent/session/turn"


# Aliases


@pytest.mark.requirement("6.alias")
def test_an_alias_is_accepted_wherever_a_session_id_is(server: Server) -> None:
    async def main() -> None:
        alias = "my alias"
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session(requestedSessionId=alias)
            by_alias = {"sessionId": alias}
            assert session != alias
            answer = await client.prompt(alias, "hello")
            assert answer["result"]["stopReason"] == "end_turn"
            update = await stream.method("session/update")
            assert update.data["params"]["sessionId"] == session

            assert (await client.http.get(f"/v1/sessions/{alias}")).json()["sessionId"] == session
            attached = await client.result("_sandboxagent/session/attach", by_alias)
            assert attached["session"]["sessionId"] == session
            assert (await all_events(client, alias)) == (await all_events(client, session)) != []
            assert await client.result("_sandboxagent/session/pending", by_alias) == {"pending": []}
            await client.result("_sandboxagent/session/set_metadata", by_alias | {"metadata": {"a": 1}})
            assert (await client.result("_sandboxagent/session/list_models", by_alias))["currentModelId"] == "small"
            await client.result("session/set_mode", by_alias | {"modeId": "plan"})
            await client.result("session/set_model", by_alias | {"modelId": "large"})
            view = (await client.http.get(f"/v1/sessions/{session}")).json()
            assert (view["mode"], view["model"], view["metadata"]["a"]) == ("plan", "large", 1)
            seen_by_agent = await client.result("x/echo", by_alias)
            assert seen_by_agent["params"]["sessionId"] == session
            forked = await client.result("session/fork", by_alias | {"cwd": server.work})
            assert forked["sessionId"] not in (session, alias)
            for method in ("session/load", "session/resume"):
                await client.result(method, by_alias | {"cwd": server.work, "mcpServers": []})
            await client.result("_sandboxagent/session/detach", by_alias)
            await client.result("session/close", by_alias)
            ended = await client.result("_sandboxagent/session/terminate", by_alias)
            assert ended["terminated"] is True

    run(main())


@pytest.mark.requirement("6.alias")
def test_a_cancel_by_alias_ends_the_turn(server: Server) -> None:
    async def main() -> None:
        alias = "to-be-cancelled"
        async with Client(server) as client, client.stream() as stream:
            await client.new_session(requestedSessionId=alias)
            turn = asyncio.create_task(client.prompt(alias, [["say", "on"], ["wait_cancel"]]))
            await stream.method("session/update")
            await client.notify("session/cancel", {"sessionId": alias})
            assert (await turn)["result"]["stopReason"] == "cancelled"

    run(main())


@pytest.mark.requirement("6.alias-taken")
def test_an_alias_that_is_taken_is_refused(server: Server) -> None:
    async def main() -> None:
        alias = "taken"
        async with Client(server) as client, Client(server, "other") as other:
            session = await client.new_session(requestedSessionId=alias)
            for taken in (alias, session):
                params = {"cwd": server.work, "mcpServers": [], "_meta": {META: {"requestedSessionId": taken}}}
                error = await other.error("session/new", params)
                assert error["code"] == -32602
                assert taken in error["message"]
            assert (await client.http.get(f"/v1/sessions/{alias}")).json()["sessionId"] == session

    run(main())


@pytest.mark.requirement("6.alias-taken")
def test_of_two_sessions_begun_at_once_only_one_gets_the_alias(server: Server) -> None:
    async def main() -> None:
        alias = "wanted-twice"
        # A process for each takes a while to start, so both are under way at the same time.
        meta = {META: {"requestedSessionId": alias, "agent": "isolated"}}
        params = {"cwd": server.work, "mcpServers": [], "_meta": meta}
        async with Client(server) as one, Client(server) as two:
            answers = await asyncio.gather(one.call("session/new", params), two.call("session/new", params))
            made = [answer["result"]["sessionId"] for answer in answers if "result" in answer]
            refused = [answer["error"]["code"] for answer in answers if "error" in answer]
            assert refused == [-32602]
            assert (await one.http.get(f"/v1/sessions/{alias}")).json()["sessionId"] == made[0]

    run(main())


@pytest.mark.requirement("6.names-unique")
def test_agent_claiming_another_sessions_alias_or_id_gets_none_of_its_requests(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, Client(server, "impostor") as other, client.stream() as stream:
            alias = "somebody else's"
            session = await client.new_session(requestedSessionId=alias)
            for claimed in (alias, session):
                own = await other.new_session(claim=claimed)
                forked = await other.result(
                    "session/fork", {"sessionId": own, "cwd": server.work, "_meta": {META: {"claim": claimed}}}
                )
                assert not {alias, session} & {own, forked["sessionId"]}
                assert (await other.http.get(f"/v1/sessions/{claimed}")).json()["sessionId"] == session
                await client.prompt(claimed, f"for {claimed}")
                event = (await stream.until(lambda event, said=f"for {claimed}": event.text == said))[-1]
                assert event.data["params"]["sessionId"] == session
                assert not [line for line in await received(other, "impostor") if f"for {claimed}" in line]
                # Each goes on under its own name.
                assert (await other.prompt(own, "for the other one"))["result"]["stopReason"] == "end_turn"

    run(main())


@pytest.mark.requirement("6.names-unique")
def test_an_agent_that_answers_with_the_alias_its_session_is_to_have_is_found_by_it(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "impostor") as client:
            session = await client.new_session(requestedSessionId="both", claim="both")
            assert (await client.http.get("/v1/sessions/both")).json()["sessionId"] == session
            assert (await client.prompt("both", "hello"))["result"]["stopReason"] == "end_turn"

    run(main())


@pytest.mark.requirement("6.alias")
@pytest.mark.parametrize("alias", ["", 7, ["list"]])
def test_an_alias_that_cannot_be_one_is_refused(server: Server, alias: object) -> None:
    async def main() -> None:
        async with Client(server) as client:
            params = {"cwd": server.work, "mcpServers": [], "_meta": {META: {"requestedSessionId": alias}}}
            assert (await client.error("session/new", params))["code"] == -32602

    run(main())


@pytest.mark.requirement("6.alias")
@pytest.mark.parametrize("alias", ["team/1", "50%", "a?b", "ümlaut", "..", "."])
def test_an_alias_with_signs_that_mean_something_in_a_url_is_refused_or_works_there(server: Server, alias: str) -> None:
    async def main() -> None:
        async with Client(server) as client:
            params = {"cwd": server.work, "mcpServers": [], "_meta": {META: {"requestedSessionId": alias}}}
            answer = await client.call("session/new", params)
            if "error" in answer:
                assert answer["error"]["code"] == -32602
                return
            # As a client would write it: every sign escaped.
            escaped = "".join(f"%{byte:02X}" for byte in alias.encode())
            response = await client.http.get(f"/v1/sessions/{escaped}")
            assert response.status_code == 200
            assert response.json()["sessionId"] == answer["result"]["sessionId"]

    run(main())


# Title and metadata


@pytest.mark.requirement("6.title")
def test_a_session_has_the_title_it_was_given_until_its_agent_gives_it_another(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session(title="First")
            assert (await entry_of(client, session))["title"] == "First"
            renamed = {"sessionUpdate": "session_info_update", "title": "Second"}
            await client.prompt(session, [["update", renamed]])
            assert (await entry_of(client, session))["title"] == "Second"
            untitled = await client.new_session()
            assert (await entry_of(client, untitled))["title"] is None

    run(main())


@pytest.mark.requirement("6.metadata-kept")
def test_what_session_new_carries_for_us_is_kept_as_metadata(server: Server) -> None:
    async def main() -> None:
        wishes = {"title": "T", "skills": ["a", "b"], "agentVersionRequested": "1.2", "permissionMode": "default"}
        async with Client(server) as client:
            session = await client.new_session(**wishes, own={"deep": [1]})
            view = (await client.http.get(f"/v1/sessions/{session}")).json()
            assert view["metadata"] == {**wishes, "own": {"deep": [1]}}
            facts = (await entry_of(client, session))["_meta"][META]
            assert facts["skills"] == ["a", "b"]
            assert facts["own"] == {"deep": [1]}

    run(main())


@pytest.mark.requirement("6.metadata-merged")
def test_set_metadata_merges_and_null_removes_a_key(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session(kept=1, gone=2)
            change = {"gone": None, "added": [3], "never": None}
            await client.result("_sandboxagent/session/set_metadata", {"sessionId": session, "metadata": change})
            view = (await client.http.get(f"/v1/sessions/{session}")).json()
            assert view["metadata"] == {"kept": 1, "added": [3]}
            facts = (await entry_of(client, session))["_meta"][META]
            assert "gone" not in facts
            assert facts["added"] == [3]

    run(main())


@pytest.mark.requirement("6.metadata-merged")
def test_a_title_in_metadata_is_the_sessions_title_and_null_removes_it(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session(title="Old")

            async def change(title: str | None) -> None:
                params = {"sessionId": session, "metadata": {"title": title}}
                await client.result("_sandboxagent/session/set_metadata", params)

            await change("New")
            assert (await entry_of(client, session))["title"] == "New"
            await change(None)
            assert (await entry_of(client, session))["title"] is None

    run(main())


@pytest.mark.requirement("6.metadata-update")
def test_a_change_of_metadata_goes_to_attached_clients_and_no_others(server: Server) -> None:
    async def main() -> None:
        async with (
            Client(server) as owner,
            Client(server) as guest,
            Client(server) as stranger,
            guest.stream() as seen_by_guest,
            stranger.stream() as seen_by_stranger,
        ):
            session = await owner.new_session(colour="red")
            await guest.result("_sandboxagent/session/attach", {"sessionId": session})
            change = {"sessionId": session, "metadata": {"size": 3}}
            await owner.result("_sandboxagent/session/set_metadata", change)
            update = await seen_by_guest.method("_sandboxagent/session/metadata_update")
            assert update.data["params"] == {"sessionId": session, "metadata": {"colour": "red", "size": 3}}
            assert "id" not in update.data

            await stranger.result("_sandboxagent/session/attach", {"sessionId": session})
            await owner.prompt(session, "a later event")
            assert all("metadata_update" not in event.method for event in await seen_by_stranger.turn_ended())

    run(main())


@pytest.mark.requirement("6.metadata-bad")
@pytest.mark.parametrize("metadata", [None, 7, "text", ["list"]])
def test_metadata_that_is_no_object_is_refused(server: Server, metadata: object) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session(kept=1)
            params = {"sessionId": session, "metadata": metadata}
            assert (await client.error("_sandboxagent/session/set_metadata", params))["code"] == -32602
            assert (await client.http.get(f"/v1/sessions/{session}")).json()["metadata"] == {"kept": 1}

    run(main())


@pytest.mark.requirement("6.metadata-no-shadow")
def test_metadata_never_shadows_the_servers_own_facts(server: Server) -> None:
    async def main() -> None:
        lies = {
            "createdAt": "never",
            "ended": True,
            "resumable": False,
            "eventCount": -1,
            "pending": 99,
            "sessionId": "another",
            "cwd": "/etc",
            "updatedAt": "never",
            "terminationInfo": {"reason": "lie"},
        }
        async with Client(server) as client:
            session = await client.new_session(**lies)
            change = {"sessionId": session, "metadata": {**lies, "agent": "liar"}}
            await client.result("_sandboxagent/session/set_metadata", change)
            entry = await entry_of(client, session)
            facts = entry["_meta"][META]
            assert facts["agent"] == "scripted"
            assert facts["ended"] is False
            assert facts["resumable"] is True
            assert facts["eventCount"] > 0
            assert facts["pending"] == 0
            assert datetime.fromisoformat(facts["createdAt"])
            view = (await client.http.get(f"/v1/sessions/{session}")).json()
            assert (view["sessionId"], view["agent"], view["cwd"]) == (session, "scripted", server.work)
            assert view["ended"] is False
            assert view["terminationInfo"] is None

    run(main())


# attach, events, pending, turns


@pytest.mark.requirement("6.attach-result")
def test_attach_answers_session_pending_requests_and_stream_position(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as owner, Client(server, "other") as guest, owner.stream() as stream:
            session = await owner.new_session()
            program = [["say", "before"], ["ask", "session/request_permission", PERMISSION], ["wait_answer"]]
            turn = asyncio.create_task(owner.prompt(session, [*program, ["say", "after"]]))
            asked = await stream.method("session/request_permission")

            attached = await guest.result("_sandboxagent/session/attach", {"sessionId": session})
            assert attached["session"] == (await owner.http.get(f"/v1/sessions/{session}")).json()
            [pending] = attached["pending"]
            assert (pending["kind"], pending["sessionId"]) == ("permission", session)
            past = await all_events(guest, session)
            assert past[-1]["id"] == asked.id <= attached["position"]

            async with guest.stream() as seen:
                await guest.answer(pending["id"], {"outcome": {"outcome": "selected", "optionId": "yes"}})
                live = await seen.turn_ended()
                assert [event.text for event in live if event.text] == ["after"]
                assert all(event.id > attached["position"] for event in live)
            await turn
            whole = await all_events(owner, session)
            # Responses travel in the bodies of POSTs; everything else after the position was live.
            later = [
                event["id"] for event in whole if event["id"] > attached["position"] and "method" in event["envelope"]
            ]
            logged = {event["id"] for event in whole}
            assert [event.id for event in live if event.id in logged] == later
            assert (await guest.error("_sandboxagent/session/attach", {"sessionId": "none"}))["code"] == -32002

    run(main())


@pytest.mark.requirement("6.detach")
def test_a_detached_client_hears_nothing_more_of_the_session(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as owner, Client(server) as guest, guest.stream() as seen:
            session, other = await owner.new_session(), await owner.new_session()
            for one in (session, other):
                await guest.result("_sandboxagent/session/attach", {"sessionId": one})
            await guest.result("_sandboxagent/session/detach", {"sessionId": session})
            await guest.result("_sandboxagent/session/detach", {"sessionId": session})
            await owner.prompt(session, "not for the guest")
            await owner.prompt(other, "for the guest")
            await seen.until(lambda event: event.text == "for the guest")
            assert {event.data["params"]["sessionId"] for event in seen.seen} == {other}
            assert (await guest.error("_sandboxagent/session/detach", {"sessionId": "none"}))["code"] == -32002

    run(main())


@pytest.mark.requirement("6.events-content")
@pytest.mark.requirement("6.events-directions")
def test_the_log_has_prompts_updates_requests_answers_and_results_in_order(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            program = [["say", "one"], ["ask", "session/request_permission", PERMISSION], ["wait_answer"]]
            turn = asyncio.create_task(client.prompt(session, [*program, ["say", "two"]]))
            asked = await stream.method("session/request_permission")
            await client.answer(asked.data["id"], {"outcome": {"outcome": "selected", "optionId": "yes"}})
            await turn

            events = await all_events(client, session)
            ids = [event["id"] for event in events]
            assert ids == sorted(set(ids))
            times = [datetime.fromisoformat(event["at"]) for event in events]
            assert times == sorted(times)
            assert {frozenset(event) for event in events} == {frozenset({"id", "at", "direction", "envelope"})}
            assert all(event["envelope"]["jsonrpc"] == "2.0" for event in events)

            def kind(event: Json) -> str:
                envelope = event["envelope"]
                if "method" not in envelope:
                    return "answer" if event["direction"] == "fromClient" else "result"
                text = envelope["params"].get("update", {}).get("content", {}).get("text", "")
                return f"{envelope['method']} {text or envelope['params'].get('state', '')}".strip()

            assert [(event["direction"], kind(event)) for event in events] == [
                ("fromClient", "session/new"),
                ("fromAgent", "result"),
                ("fromClient", "session/prompt"),
                ("fromServer", "_sandboxagent/session/turn started"),
                ("fromAgent", "session/update one"),
                ("fromAgent", "session/request_permission"),
                ("fromClient", "answer"),
                ("fromServer", "_sandboxagent/session/decision"),
                ("fromAgent", "session/update two"),
                ("fromAgent", "result"),
                ("fromServer", "_sandboxagent/session/turn ended"),
            ]
            # The log has a request as its agent wrote it; clients know it by an id of the server's own.
            kept = {event["id"]: event["envelope"] for event in events}
            kept[asked.id] = kept[asked.id] | {"id": asked.data["id"]}
            on_stream = {event.id: event.data for event in stream.seen}
            assert on_stream.items() <= kept.items()

    run(main())


@pytest.mark.requirement("6.events-pages")
def test_events_come_in_pages_that_together_are_the_log(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            await client.prompt(session, [["flood", 20, 10]])
            whole = await client.result("_sandboxagent/session/events", {"sessionId": session})
            assert whole["next"] is None
            pages: list[Json] = []
            after = 0
            while True:
                params = {"sessionId": session, "after": after, "limit": 7}
                page = await client.result("_sandboxagent/session/events", params)
                assert len(page["events"]) <= 7
                pages += page["events"]
                if page["next"] is None:
                    break
                assert len(page["events"]) == 7
                after = page["next"]
            assert pages == whole["events"]

    run(main())


@pytest.mark.requirement("6.events-pages")
def test_a_page_that_ends_exactly_at_the_end_of_the_log_says_so(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            await client.prompt(session, "hello")
            events = await all_events(client, session)
            params = {"sessionId": session, "limit": len(events)}
            page = await client.result("_sandboxagent/session/events", params)
            assert (len(page["events"]), page["next"]) == (len(events), None)
            page = await client.result("_sandboxagent/session/events", params | {"after": events[-1]["id"]})
            assert page == {"events": [], "next": None}

    run(main())


@pytest.mark.requirement("6.events-range")
def test_after_and_before_are_exclusive(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            await client.prompt(session, [["flood", 5, 10]])
            events = await all_events(client, session)
            ids = [event["id"] for event in events]
            between = await all_events(client, session, after=ids[2], before=ids[6])
            assert between == events[3:6]
            assert await all_events(client, session, before=ids[3]) == events[:3]
            assert await all_events(client, session, before=ids[0]) == []
            assert await all_events(client, session, after=ids[3], before=ids[4]) == []

    run(main())


@pytest.mark.requirement("6.events-range")
@pytest.mark.parametrize("wrong", [{"after": "x"}, {"before": {}}, {"limit": 0}, {"limit": -1}, {"after": -1}])
def test_events_with_a_wrong_range_are_refused(server: Server, wrong: Json) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await client.new_session()
            params = {"sessionId": session, **wrong}
            assert (await client.error("_sandboxagent/session/events", params))["code"] == -32602
            assert (await client.error("_sandboxagent/session/events", {"sessionId": "none"}))["code"] == -32002

    run(main())


@pytest.mark.requirement("6.events-content")
def test_a_prompt_that_was_refused_is_not_part_of_the_conversation(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            running = asyncio.create_task(client.prompt(session, [["say", "on"], ["wait_cancel"]]))
            await stream.method("session/update")
            waiting = [
                await client.post(
                    {"jsonrpc": "2.0", "id": f"w{n}", "method": "session/prompt"}
                    | {"params": client.prompt_params(session, f"waits {n}")},
                    Prefer="respond-async",
                )
                for n in range(16)
            ]
            assert {response.status_code for response in waiting} == {202}
            refused = await client.prompt(session, "one too many")
            assert refused["error"]["code"] == -32000
            await client.notify("session/cancel", {"sessionId": session})
            await running
            prompts = [event for event in await all_events(client, session) if "prompt" in str(event["envelope"])]
            assert "waits 15" in str(prompts)
            assert "one too many" not in str(prompts)

    run(main())


@pytest.mark.requirement("6.pending-list")
def test_pending_lists_what_waits_with_its_kind_and_envelope(server: Server) -> None:
    async def main() -> None:
        form = {"mode": "form", "message": "Which?", "requestedSchema": {"type": "object", "properties": {}}}
        question = {"questionId": "q1", "prompt": "Which?", "options": [["a", "A"]]}
        asks = [
            ["ask", "session/request_permission", PERMISSION],
            ["ask", "elicitation/create", form],
            ["ask", "_sandboxagent/session/request_question", question],
        ]
        async with Client(server) as client, client.stream() as stream:
            session = await client.new_session()
            turn = asyncio.create_task(client.prompt(session, [*asks, ["wait_cancel"]]))
            await stream.until(lambda event: "id" in event.data and "Which?" in event.line and "q1" in event.line)
            listed = (await client.result("_sandboxagent/session/pending", {"sessionId": session}))["pending"]
            assert [one["kind"] for one in listed] == ["permission", "elicitation", "question"]
            asked = {event.data["id"]: event.data for event in stream.seen if "id" in event.data}
            for one in listed:
                assert one["sessionId"] == session
                assert datetime.fromisoformat(one["askedAt"]).tzinfo is not None
                assert one["envelope"]["id"] == one["id"]
                assert asked[one["id"]] == one["envelope"]
            everywhere = (await client.result("_sandboxagent/session/pending"))["pending"]
            assert [one["id"] for one in everywhere if one["sessionId"] == session] == [one["id"] for one in listed]
            await client.notify("session/cancel", {"sessionId": session})
            await turn
            assert await client.result("_sandboxagent/session/pending", {"sessionId": session}) == {"pending": []}

    run(main())


@pytest.mark.requirement("6.turn")
def test_all_attached_clients_learn_when_a_turn_starts_and_ends(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as owner, Client(server) as guest, guest.stream() as seen:
            session = await owner.new_session()
            await guest.result("_sandboxagent/session/attach", {"sessionId": session})
            ids: list[str] = []
            for program, end in (
                ([["say", "x"]], {"stopReason": "end_turn"}),
                ([["respond", {"stopReason": "max_tokens"}]], {"stopReason": "max_tokens"}),
                ([["respond_error", -32050, "no"]], {"error": {"code": -32050, "message": "no"}}),
            ):
                await owner.prompt(session, program)
                events = await seen.turn_ended()
                turns = [event.data["params"] for event in events if event.method == "_sandboxagent/session/turn"]
                ids.append(turns[0]["turnId"])
                identity = {"sessionId": session, "turnId": ids[-1]}
                assert turns == [identity | {"state": "started"}, identity | {"state": "ended"} | end]
            assert len(set(ids)) == 3

    run(main())


@pytest.mark.requirement("6.turn-id")
def test_a_turn_is_named_after_the_event_of_its_prompt(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as owner, owner.stream() as stream:
            session = await owner.new_session()
            # The second waits for its turn, so that its event is not the one before its start.
            asked = [
                asyncio.create_task(owner.prompt(session, text)) for text in ([["say", "one"], ["wait_cancel"]], "two")
            ]
            await stream.method("session/update")
            await owner.notify("session/cancel", {"sessionId": session})
            await asyncio.gather(*asked)
            await owner.prompt(session, "three")
            events = (await owner.result("_sandboxagent/session/events", {"sessionId": session}))["events"]
            prompts = {f"turn-{event['id']}" for event in events if event["envelope"].get("method") == "session/prompt"}
            turns = [event["envelope"]["params"] for event in events if event["envelope"].get("method") == TURN]
            assert len(prompts) == 3
            assert {turn["turnId"] for turn in turns} == prompts

    run(main())
