"""One process per agent: the handshake, the shared boot, and what a failed boot does. Contract, section 5 and 12."""

import asyncio
import json
import shlex
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.asking import everything, opened, permission, received_envelopes, texts
from tests.support.client import META, Client, run
from tests.support.opening import EAGER, WAYS
from tests.support.running import SCRIPTED, Server, scripted


def starts(state: Path) -> list[int]:
    """The pids of the processes that were started with this state file."""
    lines = state.read_text().splitlines() if state.exists() else []
    return [fact["started"] for fact in map(json.loads, lines) if "started" in fact]


def shell(script: str) -> str:
    """An agent that is a shell script; `$AGENT` runs the scripted agent."""
    command = shlex.join([sys.executable, "-I", "-S", str(SCRIPTED)])
    return f"command = {json.dumps(['sh', '-c', script.replace('$AGENT', command)])}"


EARLY = [["say", "one"], ["say", "two"], permission('"early"')]
TOO_MUCH = [["flood", 100, 100_000], ["say", "last"]]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """A server whose agents start in odd ways; each belongs to one test, for it is started there for the first time."""
    directory = tmp_path_factory.mktemp("odd")
    flag, no_program = directory / "flag", directory / "program"
    no_program.write_text("#!/no/such/interpreter\n")
    no_program.chmod(0o755)
    slow_death = f"sleep 0.2; echo out of order >&2; exec $AGENT --state {directory}/broken --exit-at-once 3"
    agents = {
        "own": scripted("--capabilities", json.dumps({"vendor": [1.5], "_meta": {"vendor.example": {"x": 1}}})),
        "slow": scripted("--slow-start", "0.2", "--state", str(directory / "slow")),
        "broken": shell(slow_death),
        "moody": shell(f"if [ -e {flag} ]; then exec $AGENT; fi; touch {flag}; exit 4"),
        "failing": scripted("--exit-at-once"),
        "shot": shell("kill -9 $$"),
        "error": shell("echo licence expired >&2; exec $AGENT --bad-handshake error"),
        "garbage": shell("echo licence expired >&2; exec $AGENT --bad-handshake garbage"),
        "no-program": f"command = ['{no_program}']",
        "loud": scripted("--banner"),
        "early": scripted("--session-id", "same", "--before-new", json.dumps(EARLY)),
        "early2": scripted("--session-id", "same", "--before-new", json.dumps(EARLY)),
        "eager": EAGER,
        "too-early": scripted("--before-new", json.dumps(TOO_MUCH)),
    }
    with Server("--no-persist", agents=agents, directory=directory) as running:
        yield running


@pytest.mark.requirement("5.one-process")
def test_all_connections_of_an_agent_share_one_process(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server) as b, a.stream() as seen_a, b.stream() as seen_b:
            await a.prompt(await a.new_session(), [["pid"]])
            await b.prompt(await b.new_session(), [["pid"]])
            pids = texts(await everything(a, seen_a)) + texts(await everything(b, seen_b))
            assert len(pids) == 2
            assert len(set(pids)) == 1

    run(main())


@pytest.mark.requirement("5.handshake-once")
def test_the_agent_is_shaken_hands_with_once_however_many_connections_are_opened(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a, Client(server), Client(server):
            handshakes = [one for one in await received_envelopes(a) if one.get("method") == "initialize"]
            assert len(handshakes) == 1

    run(main())


@pytest.mark.requirement("5.server-capabilities")
def test_the_handshake_offers_the_servers_own_capabilities_not_a_clients(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            await opened(server, clientCapabilities={"vendor": {"secret": True}})
            (handshake,) = [one for one in await received_envelopes(a) if one.get("method") == "initialize"]
            offered = handshake["params"]["clientCapabilities"]
            assert offered.keys() >= {"fs", "terminal", "elicitation", "plan"}
            assert offered["fs"] == {"readTextFile": True, "writeTextFile": True}
            assert offered["terminal"] is True
            assert offered["elicitation"] == {"form": {}, "url": {}}
            assert "vendor" not in offered

    run(main())


@pytest.mark.requirement("5.initialize-answer")
def test_initialize_answers_what_the_agent_said_with_the_servers_extensions_in_it(server: Server) -> None:
    async def main() -> None:
        result = (await opened(server)).json()["result"]
        assert result["agentInfo"] == {"name": "scripted", "version": "1"}
        assert result["agentCapabilities"]["loadSession"] is True
        ours = result["agentCapabilities"]["_meta"][META]
        assert isinstance(ours["version"], str)
        extensions = ours["extensions"]
        assert "_sandboxagent/session/attach" in extensions["methods"]
        flags = {name: value for name, value in extensions.items() if name != "methods"}
        assert flags
        assert set(flags.values()) == {True}
        assert len(flags) == len(extensions["methods"])

    run(main())


@pytest.mark.requirement("5.initialize-answer")
def test_the_agents_own_meta_stays_beside_the_servers_extensions(odd: Server) -> None:
    async def main(server: Server) -> None:
        answered = (await opened(server, "own")).json()["result"]["agentCapabilities"]
        assert answered["vendor"] == [1.5]
        assert answered["_meta"]["vendor.example"] == {"x": 1}
        assert META in answered["_meta"]

    run(main(odd))


@pytest.mark.requirement("5.protocol-version")
def test_the_protocol_version_is_the_agents_not_the_clients(server: Server) -> None:
    async def main() -> None:
        assert (await opened(server, protocolVersion=7)).json()["result"]["protocolVersion"] == 1

    run(main())


@pytest.mark.requirement("5.initialize-twice")
def test_initialize_on_an_initialized_connection_is_an_invalid_request(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as a:
            params = {"protocolVersion": 1, "_meta": {META: {"agent": "scripted"}}}
            assert (await a.error("initialize", params))["code"] == -32600
            await a.new_session()

    run(main())


@pytest.mark.requirement("5.shared-boot")
def test_concurrent_first_calls_start_one_process(odd: Server) -> None:
    state = odd.directory / "slow"

    async def main(server: Server) -> None:
        async with Client(server) as a, Client(server) as b:
            others = [asyncio.create_task(client.new_session(agent="slow")) for client in (a, b, a, b)]
            first = await asyncio.gather(*(opened(server, "slow") for _ in range(5)))
            assert [response.status_code for response in first] == [200] * 5
            assert len({response.headers["X-ACP-Connection-Id"] for response in first}) == 5
            assert len(set(await asyncio.gather(*others))) == 4

    assert starts(state) == [], "an agent is started on first use, not before"
    run(main(odd))
    assert len(starts(state)) == 1


@pytest.mark.requirement("5.failed-boot-shared", "12.boot-failed-502")
def test_a_failed_boot_fails_all_who_waited_for_it(odd: Server) -> None:
    async def main(server: Server) -> None:
        async with Client(server) as a:
            named = {"cwd": server.work, "mcpServers": [], "_meta": {META: {"agent": "broken"}}}
            other = asyncio.create_task(a.error("session/new", named))
            for response in await asyncio.gather(*(opened(server, "broken") for _ in range(4))):
                assert response.status_code == 502
                assert response.headers["content-type"].startswith("application/problem+json")
                problem = response.json()
                assert problem["type"] == "urn:sandbox-agent:error:agent-boot-failed"
                assert problem["agent"] == "broken"
                assert problem["exitCode"] == 3
                assert "out of order" in problem["stderr"]
                assert "exiting at once" in problem["stderr"]
                assert "X-ACP-Connection-Id" not in response.headers
            assert (await other)["code"] == -32603
            assert (await a.result("x/echo"))["method"] == "x/echo", "other agents do not notice"

    run(main(odd))
    assert len(starts(odd.directory / "broken")) == 1


@pytest.mark.requirement("5.failed-boot-not-cached")
def test_after_a_failed_boot_the_next_call_tries_again(odd: Server) -> None:
    async def main(server: Server) -> None:
        assert (await opened(server, "moody")).status_code == 502
        async with Client(server, "moody") as client:
            await client.new_session()

    run(main(odd))


@pytest.mark.requirement("12.boot-failed-rpc")
def test_a_failed_boot_is_an_internal_error_with_stderr_for_other_requests(odd: Server) -> None:
    async def main(server: Server) -> None:
        async with Client(server) as a:
            named = {"_meta": {META: {"agent": "failing"}}}
            for method in ("session/new", "x/echo"):
                error = await a.error(method, {**named, "cwd": server.work, "mcpServers": []})
                assert error["code"] == -32603
                assert "exiting at once" in error["data"]["stderr"]
                assert error["data"]["exitCode"] == 1

    run(main(odd))


@pytest.mark.requirement("12.boot-failed-signal")
def test_a_boot_that_a_signal_ended_names_the_signal_and_no_exit_code(odd: Server) -> None:
    async def main(server: Server) -> None:
        problem = (await opened(server, "shot")).json()
        assert problem["type"].endswith(":agent-boot-failed")
        assert problem["signal"] == "SIGKILL"
        assert "exitCode" not in problem

    run(main(odd))


@pytest.mark.requirement("12.boot-failed-502")
@pytest.mark.parametrize("kind", ["error", "garbage"])
def test_an_agent_that_refuses_the_handshake_has_not_booted_and_its_stderr_says_why(odd: Server, kind: str) -> None:
    async def main(server: Server) -> None:
        response = await opened(server, kind)
        assert response.status_code == 502
        assert response.json()["type"] == "urn:sandbox-agent:error:agent-boot-failed"
        assert "licence expired" in response.json()["stderr"]
        async with Client(server) as a:
            named = {"cwd": server.work, "mcpServers": [], "_meta": {META: {"agent": kind}}}
            assert (await a.error("session/new", named))["code"] == -32603

    run(main(odd))


@pytest.mark.requirement("12.boot-failed-502")
def test_an_agent_that_cannot_be_executed_has_not_booted(odd: Server) -> None:
    async def main(server: Server) -> None:
        response = await opened(server, "no-program")
        assert response.status_code == 502
        assert response.json()["type"] == "urn:sandbox-agent:error:agent-boot-failed"

    run(main(odd))


@pytest.mark.requirement("5.quarantine")
def test_a_banner_before_the_handshake_does_not_disturb_it(odd: Server) -> None:
    async def main(server: Server) -> None:
        async with Client(server, "loud") as a, a.stream() as events:
            assert (await a.prompt(await a.new_session(), "hello"))["result"] == {"stopReason": "end_turn"}
            assert texts(await everything(a, events)) == ["hello"]

    run(main(odd))


@pytest.mark.requirement("5.held-updates")
def test_updates_before_the_answer_to_session_new_are_held_and_not_dropped(odd: Server) -> None:
    async def main(server: Server) -> None:
        for agent in ("early", "early2"):
            async with Client(server, agent) as client, client.stream() as stream:
                session = await client.new_session()
                events = await everything(client, stream)
                assert texts(events) == ["one", "two"]
                assert events[-1].method == "session/request_permission"
                assert {event.data["params"]["sessionId"] for event in events} == {session}
                answered = await client.answer(events[-1].data["id"], {"outcome": {"outcome": "cancelled"}})
                assert answered.status_code == 202

    run(main(odd))


@pytest.mark.requirement("5.response-first")
@pytest.mark.parametrize("way", WAYS)
def test_the_response_that_names_a_session_comes_before_its_updates(odd: Server, way: str) -> None:
    async def main() -> None:
        assert await WAYS[way](odd) == ["response", "session/update"]

    run(main())


@pytest.mark.requirement("5.held-updates")
def test_more_than_can_be_held_before_the_answer_does_not_harm_the_session(odd: Server) -> None:
    async def main(server: Server) -> None:
        async with Client(server, "too-early") as a, a.stream() as events:
            session = await a.new_session()
            assert (await a.prompt(session, "hello"))["result"] == {"stopReason": "end_turn"}
            held = texts(await everything(a, events))
            assert held[0].startswith("0 ")
            assert held[-1] == "hello"

    run(main(odd))
