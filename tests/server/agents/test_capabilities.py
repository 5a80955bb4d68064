"""What an agent offers before its first session: asked once, in a session that leaves nothing behind, and kept."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.errors import AgentNotInstalled, OffersUnknown, ShuttingDown
from sandboxagent.server.agents.build import InstallOnUse
from sandboxagent.server.agents.capabilities import AgentCapabilities
from sandboxagent.server.agents.manifest import Agent
from sandboxagent.server.agents.supervisor import AgentStatus
from sandboxagent.server.agents.views import AgentViews
from tests.support.running import SCRIPTED, alive, eventually
from tests.support.workshop import Workshop, run

TIMEOUT = 60.0
STATUS = AgentStatus()


class Trial(Workshop):
    """A workshop with one scripted agent, `it`, and its offers."""

    def __init__(self, directory: Path, *flags: str, credentials: tuple[str, ...] = (), **options: Any) -> None:
        self.state = directory / "state"
        command = [sys.executable, "-I", "-S", str(SCRIPTED), "--state", str(self.state), *flags]
        table = f"[agents.it]\ncommand = {json.dumps(command)}\ncredentials = {json.dumps(credentials)}\n"
        super().__init__(directory, agents=table, **options)
        self.kept = directory / "offers.json"
        self.offers = self.open()

    def open(self) -> AgentCapabilities:
        """As the next start of a server finds them."""
        install_on_use = InstallOnUse(self.catalog, self.installer, may_install=False)
        return AgentCapabilities(
            self.catalog, self.starter, install_on_use, self.environ, self.kept, TIMEOUT, Pool("test", 2)
        )

    def views(self) -> AgentViews:
        """As a server without sessions has them."""
        supervisor: Any = type("Idle", (), {"running": lambda *_: None, "status": lambda *_: STATUS})()
        return AgentViews(lambda _: None, self.offers, self.catalog, self.installer, supervisor, self.environ)

    @property
    def agent(self) -> Agent:
        return self.catalog.agent("it")

    def started(self) -> list[int]:
        """The processes that there were."""
        return [told["started"] for told in self._told() if "started" in told]

    def directories(self) -> list[Path]:
        """Where its sessions were."""
        return [Path(told["cwd"]) for told in self._told() if "session" in told]

    def _told(self) -> list[dict[str, Any]]:
        lines = self.state.read_text().splitlines() if self.state.exists() else []
        return [json.loads(line) for line in lines]


@pytest.mark.requirement("9.offers-before-sessions")
@pytest.mark.parametrize("flags", [["--models"], []], ids=["block", "option"])
def test_an_agent_is_asked_once_and_nothing_of_that_stays(tmp_path: Path, flags: list[str]) -> None:
    async def main() -> None:
        async with Trial(tmp_path, *flags) as shop:
            assert shop.offers.find(shop.agent) is None
            first, second = await asyncio.gather(shop.offers.ask(shop.agent), shop.offers.ask(shop.agent))

            assert first is second
            assert [each["modelId"] for each in first.models()["availableModels"]] == ["small", "large"]  # type: ignore[attr-defined]
            assert [each["id"] for each in first.modes()["availableModes"]] == ["default", "plan"]  # type: ignore[attr-defined]
            assert first.capabilities["loadSession"] is True
            [pid] = shop.started()
            assert not alive(pid)
            [directory] = shop.directories()
            assert directory.name.startswith("sandbox-agent-offers-")
            assert not directory.exists()
            assert shop.offers.find(shop.agent) is first

    run(main())


@pytest.mark.requirement("9.offers-kept")
def test_the_answer_is_kept_for_the_version_and_its_credentials(tmp_path: Path) -> None:
    async def main() -> None:
        async with Trial(tmp_path, credentials=("IT_KEY",)) as shop:
            await shop.offers.ask(shop.agent)
            later = shop.open()
            assert later.find(shop.agent) is not None
            await later.ask(shop.agent)
            assert len(shop.started()) == 1

            shop.environ["IT_KEY"] = "secret"
            assert later.find(shop.agent) is None
            await later.ask(shop.agent)
            assert len(shop.started()) == 2
            assert "secret" not in shop.kept.read_text()

    run(main())


@pytest.mark.parametrize("content", ["", "[]", '{"it": {"edition": 5}}'])
def test_a_file_that_cannot_be_read_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    async def main() -> None:
        async with Trial(tmp_path) as shop:
            shop.kept.write_text(content)
            assert shop.open().find(shop.agent) is None

    run(main())


@pytest.mark.requirement("9.offers-unknown")
def test_an_agent_that_opens_no_session_says_why_and_which_credentials_it_lacks(tmp_path: Path) -> None:
    async def main() -> None:
        async with Trial(tmp_path, "--lacks", "session/new", credentials=("IT_KEY", "OTHER_KEY")) as shop:
            with pytest.raises(OffersUnknown, match="no credentials for it, any one of: IT_KEY, OTHER_KEY") as failed:
                await shop.offers.ask(shop.agent)
            assert failed.value.fields["credentials"] == ["IT_KEY", "OTHER_KEY"]

            shop.environ["IT_KEY"] = "x"
            with pytest.raises(OffersUnknown) as failed:
                await shop.offers.ask(shop.agent)
            assert "credentials" not in failed.value.fields
            # It is asked again the next time.
            pids = shop.started()
            assert len(pids) == 2
            assert not any(map(alive, pids))
            assert not shop.kept.exists()

    run(main())


@pytest.mark.requirement("9.offers-unknown")
def test_an_agent_that_is_not_installed_is_not_installed_for_that(tmp_path: Path) -> None:
    async def main() -> None:
        async with Trial(tmp_path) as shop:
            with pytest.raises(AgentNotInstalled, match="agents install claude"):
                await shop.offers.ask(shop.catalog.agent("claude"))

    run(main())


def test_an_agent_that_dies_when_it_is_asked_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with Trial(tmp_path, "--before-new", '[["stderr", "no luck"], ["exit", 3]]') as shop:
            with pytest.raises(OffersUnknown, match="exited with code 3"):
                await shop.offers.ask(shop.agent)

    run(main())


def test_requests_of_an_agent_in_its_trial_are_not_carried_out(tmp_path: Path) -> None:
    program = [["ask", "fs/write_text_file", {"path": str(tmp_path / "x"), "content": "x"}]]

    async def main() -> None:
        async with Trial(tmp_path, "--before-new", json.dumps(program)) as shop:
            await shop.offers.ask(shop.agent)
            assert not (tmp_path / "x").exists()

    run(main())


def test_a_server_that_stops_ends_what_it_asks(tmp_path: Path) -> None:
    async def main() -> None:
        async with Trial(tmp_path, "--before-new", '[["wait_cancel"]]') as shop:
            asking = asyncio.create_task(shop.offers.ask(shop.agent))
            await asyncio.to_thread(eventually, shop.started)
            assert shop.offers.busy
            await shop.offers.close()
            with pytest.raises(ShuttingDown):
                await asking
            assert not any(map(alive, shop.started()))

    run(main())


@pytest.mark.requirement("9.offers-before-sessions")
def test_views_have_it_when_it_was_asked_for_and_only_then(tmp_path: Path) -> None:
    async def main() -> None:
        async with Trial(tmp_path) as shop:
            views = shop.views()
            [unknown] = [each for each in (await views.all()).agents if each.id == "it"]
            assert (unknown.offers, unknown.models, unknown.offers_error) == ("unknown", UNSET, UNSET)
            assert not shop.started()
            view = await views.view_with_models(shop.agent)
            assert view.offers == "known"
            assert view.models == shop.offers.find(shop.agent).models()  # type: ignore[union-attr]
            assert view.capabilities["loadSession"] is True
            [same] = [each for each in (await views.all()).agents if each.id == "it"]
            assert (same.offers, same.models, same.modes) == ("known", view.models, view.modes)
            assert len(shop.started()) == 1

    run(main())


@pytest.mark.requirement("9.offers-in-the-background")
def test_the_view_of_one_agent_begins_to_ask_it_and_does_not_wait(tmp_path: Path) -> None:
    async def main() -> None:
        async with Trial(tmp_path) as shop:
            views = shop.views()
            assert [(await views.view(shop.agent)).offers for _ in range(2)] == ["asking", "asking"]
            await shop.offers.ask(shop.agent)
            view = await views.view(shop.agent)
            assert (view.offers, view.models) == ("known", shop.offers.find(shop.agent).models())  # type: ignore[union-attr]
            assert len(shop.started()) == 1

    run(main())


@pytest.mark.requirement("9.offers-in-the-background")
def test_an_agent_that_did_not_tell_is_not_asked_again_unless_something_changes(tmp_path: Path) -> None:
    async def main() -> None:
        async with Trial(tmp_path, "--lacks", "session/new", credentials=("IT_KEY",)) as shop:
            views = shop.views()
            assert (await views.view(shop.agent)).offers == "asking"
            with pytest.raises(OffersUnknown) as failed:
                await shop.offers.ask(shop.agent)
            view = await views.view(shop.agent)
            assert (view.offers, view.offers_error) == ("unknown", str(failed.value))
            assert len(shop.started()) == 1

            shop.environ["IT_KEY"] = "x"
            assert (await views.view(shop.agent)).offers == "asking"
            with pytest.raises(OffersUnknown):
                await shop.offers.ask(shop.agent)
            assert len(shop.started()) == 2

    run(main())


@pytest.mark.requirement("9.offers-in-the-background")
def test_an_agent_that_is_not_installed_is_not_asked(tmp_path: Path) -> None:
    async def main() -> None:
        async with Trial(tmp_path) as shop:
            view = await shop.views().view(shop.catalog.agent("claude"))
            assert (view.installed, view.offers) == (False, "unknown")
            assert not shop.offers.busy

    run(main())


def test_after_its_end_no_agent_is_asked(tmp_path: Path) -> None:
    async def main() -> None:
        async with Trial(tmp_path) as shop:
            await shop.offers.close()
            shop.offers.begin(shop.agent)
            assert not shop.offers.busy
            with pytest.raises(ShuttingDown):
                await shop.offers.ask(shop.agent)
            assert not shop.started()

    run(main())
