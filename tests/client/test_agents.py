"""Agents and installs through the SDK, from an index and a registry on this machine."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager

import pytest

from sandboxagent import __version__
from sandboxagent.client.agents import Agent, Agents, Install, InstallResult, Progress, health
from sandboxagent.client.api import Api
from sandboxagent.client.errors import ClientError, ConnectionLost, ForeignAnswer, ServerProblem
from tests.support.client import Client, run
from tests.support.loopback import Loopback, answer
from tests.support.package_server import PackageServer
from tests.support.running import BOUND, TOKEN, Server


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Generator[PackageServer]:
    with PackageServer(tmp_path_factory.mktemp("shelf"), "--no-persist") as running:
        yield running


@asynccontextmanager
async def calling(server: Server) -> AsyncGenerator[Api]:
    api = Api(server.url, TOKEN)
    try:
        yield api
    finally:
        await api.close()


def events(*told: tuple[str, str]) -> bytes:
    """An answer that is a stream of events."""
    body = "".join(f"event: {name}\ndata: {data}\n\n" for name, data in told).encode()
    return answer(body, Content_Type="text/event-stream")


def test_health_tells_the_version_and_the_agents(server: Server) -> None:
    async def main() -> None:
        async with calling(server) as api:
            found = await health(api)
        assert (found.status, found.version, found.detail) == ("ok", __version__, None)
        assert next(each for each in found.agents if each.agent == "mock").installed

    run(main())


def test_agents_are_listed_and_looked_up(server: Server) -> None:
    async def main() -> None:
        async with calling(server) as api:
            listed = {agent.id: agent for agent in await Agents(api).list()}
            mock = await Agents(api).get("mock")
        assert {"mock", "claude", "scripted"} <= set(listed)
        assert (mock.installed, mock.supported, mock.version) == (True, True, __version__)
        assert mock.install.source == "bundled"
        assert mock.install.artifacts[0].kind == "agent_process"
        assert mock.features is not None
        assert mock.features.permissions == "always"
        claude = listed["claude"]
        assert "ANTHROPIC_API_KEY" in [each.name for each in claude.credentials]
        assert not claude.installed

    run(main())


@pytest.mark.requirement("9.offers-before-sessions")
def test_models_are_there_before_a_first_session(shelf: PackageServer) -> None:
    async def main() -> None:
        async with calling(shelf.server) as api:
            agents = Agents(api)
            assert (await agents.get("mock")).models is None
            models = await agents.models("mock")
            mock = await agents.get("mock")
            assert (mock.models, mock.server_status.status) == (models, "stopped")
            assert models.current_model_id in [each.model_id for each in models.available_models]
            assert mock.modes is not None
            assert mock.capabilities
            with pytest.raises(ServerProblem) as refused:
                await agents.models("claude")
            assert (refused.value.slug, refused.value.status) == ("agent-not-installed", 404)

    run(main())


def test_models_modes_and_the_process_are_listed_once_there_is_a_session(server: Server) -> None:
    async def main() -> None:
        async with Client(server, "models") as client, calling(server) as api:
            await client.new_session()
            found = await Agents(api).get("models")
        assert found.models is not None
        assert found.models.current_model_id in [each.model_id for each in found.models.available_models]
        assert found.server_status.status == "running"
        assert found.server_status.pid

    run(main())


def test_an_unknown_agent_is_a_problem_whatever_it_is_called(server: Server) -> None:
    async def main() -> None:
        async with calling(server) as api:
            for name in ("nobody", "a/b", "../health", "ü?#%"):
                with pytest.raises(ServerProblem) as refused:
                    await Agents(api).get(name)
                assert refused.value.status in (404, 410), name

    run(main())


def test_awaiting_an_install_gives_its_result(shelf: PackageServer) -> None:
    id = shelf.box()

    async def main() -> None:
        async with calling(shelf.server) as api:
            agents = Agents(api)
            assert id not in [agent.id for agent in await agents.list()]
            (listed,) = [agent for agent in await agents.list(registry=True) if agent.id == id]
            assert not listed.installed
            result = await agents.install(id)
            assert (result.agent, result.already_installed, result.version) == (id, False, "1.0.0")
            assert (result.source, result.verified) == ("registry", True)
            found = await agents.get(id)
            assert found.installed
            assert found.install.installed_at is not None
            assert found.install.verified_at is not None
            assert found.install.installed_at <= found.install.verified_at
            again = await agents.install(id)
            assert again.already_installed

    run(main())


def test_iterating_over_an_install_shows_its_progress_and_ends_with_the_result(shelf: PackageServer) -> None:
    id = shelf.box()

    async def main() -> None:
        async with calling(shelf.server) as api:
            install = Agents(api).install(id)
            steps = [step async for step in install]
            assert steps
            *progress, last = steps
            assert progress
            assert all(isinstance(step, Progress) for step in progress)
            assert isinstance(last, InstallResult)
            assert install.result == last
            assert await install == last, "may be awaited afterwards"

    run(main())


def test_an_install_that_was_left_goes_on_and_can_be_joined(shelf: PackageServer) -> None:
    id = shelf.box()
    held = shelf.index.hold(shelf.tarball(id))

    async def main() -> None:
        async with calling(shelf.server) as api:
            agents = Agents(api)
            async for step in agents.install(id):
                assert isinstance(step, Progress)
                break
            joined = agents.install(id)
            assert isinstance(await anext(joined), Progress)
            held.release.set()
            assert not (await joined).already_installed

    run(main())


def test_versions_and_a_reinstall_are_passed_on(shelf: PackageServer) -> None:
    id = shelf.box()

    async def main() -> None:
        async with calling(shelf.server) as api:
            agents = Agents(api)
            assert (await agents.install(id)).version == "1.0.0"
            shelf.box(version="2.0.0", id=id)
            newer = await agents.install(id, agent_process_version="2.0.0")
            assert (newer.version, newer.already_installed) == ("2.0.0", False)
            assert not (await agents.install(id, agent_version="2.0.0", reinstall=True)).already_installed

    run(main())


def test_an_install_that_fails_is_a_problem_with_its_slug(shelf: PackageServer) -> None:
    id = shelf.box("#!/bin/sh\necho no such luck >&2; exit 7")

    async def main() -> None:
        async with calling(shelf.server) as api:
            install = Agents(api).install(id)
            with pytest.raises(ServerProblem) as refused:
                await install
            assert (refused.value.slug, refused.value.status) == ("install-failed", 502)
            assert "no such luck" in str(refused.value.fields["stderr"])
            with pytest.raises(ServerProblem) as again:
                await install
            assert again.value is refused.value
            with pytest.raises(ServerProblem) as unknown:
                await Agents(api).install("nobody")
            assert unknown.value.slug == "unknown-agent"

    run(main())


def test_an_install_whose_server_goes_away_is_lost() -> None:
    async def main() -> None:
        told = events(("progress", '{"stage": "fetching", "message": "fetching"}'))
        async with Loopback({"/v1/agents/x/install": told}) as loopback:
            api = Api(loopback.url(""))
            with pytest.raises(ConnectionLost, match="before the install of x had ended") as lost:
                await Agents(api).install("x")
            await api.close()
            assert lost.value.outcome_unknown

    run(main())


def test_events_and_members_of_a_newer_server_are_passed_over() -> None:
    async def main() -> None:
        told = events(
            ("weather", "sunny"),
            ("progress", '{"stage": "dreaming", "message": "z\u2028z", "depth": 3}'),
            ("result", '{"agent": "x", "mood": "good"}'),
        )
        listed = answer(b'{"agents": [{"id": "x", "colour": "red", "serverStatus": {"status": "asleep"}}], "more": 1}')
        async with Loopback({"/v1/agents/x/install": told, "/v1/agents": listed}) as loopback:
            api = Api(loopback.url(""))
            steps = [step async for step in Agents(api).install("x")]
            assert steps == [Progress(stage="dreaming", message="z\u2028z"), InstallResult(agent="x")]
            (agent,) = await Agents(api).list()
            assert isinstance(agent, Agent)
            assert agent.server_status.status == "asleep"
            await api.close()

    run(main())


@pytest.mark.parametrize(
    "reply", [answer(b"<html>", Content_Type="text/html"), events(("result", "{}")), events(("problem", "oops"))]
)
def test_an_answer_to_an_install_that_is_not_the_servers_says_so(reply: bytes) -> None:
    async def main() -> None:
        async with Loopback({"/v1/agents/x/install": reply}) as loopback:
            api = Api(loopback.url(""))
            with pytest.raises(ForeignAnswer):
                await Agents(api).install("x")
            await api.close()

    run(main())


def test_an_install_that_was_interrupted_says_so_when_it_is_awaited_again(shelf: PackageServer) -> None:
    id = shelf.box()
    held = shelf.index.hold(shelf.tarball(id))

    async def watch(install: Install) -> None:
        async for _ in install:
            seen.set()

    seen = asyncio.Event()

    async def main() -> None:
        async with calling(shelf.server) as api:
            install = Agents(api).install(id)
            watching = asyncio.create_task(watch(install))
            async with asyncio.timeout(BOUND):
                await seen.wait()
            watching.cancel()
            await asyncio.wait({watching})
            with pytest.raises(ClientError, match="was left before it had ended"):
                await install
            held.release.set()
            await Agents(api).install(id)

    run(main())
