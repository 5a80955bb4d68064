"""Having an agent ready to start: as it is, installed first, or refused."""

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest

from sandboxagent.protocol.errors import AgentNotInstalled, DownloadFailed
from sandboxagent.server.agents.build import InstallOnUse
from sandboxagent.server.agents.catalog import write_instructions
from sandboxagent.server.agents.launch import Launch
from tests.server.agents.install.tiny import TINY, box
from tests.support.package_index import PackageIndex
from tests.support.workshop import Workshop, run


@pytest.fixture
def index() -> Generator[PackageIndex]:
    with PackageIndex() as running:
        running.npm("tiny-agent")
        yield running


def install_on_use(shop: Workshop, *, may_install: bool = True) -> InstallOnUse:
    return InstallOnUse(shop.catalog, shop.installer, may_install=may_install)


@pytest.mark.parametrize("may_install", [True, False])
def test_what_comes_with_us_or_is_the_users_own_is_started_as_it_is(tmp_path: Path, may_install: bool) -> None:
    async def main() -> None:
        async with Workshop(tmp_path, agents='[agents.mine]\ncommand = ["my-agent"]') as shop:
            provide = install_on_use(shop, may_install=may_install)
            assert await provide(shop.catalog.agent("mine")) == Launch(("my-agent",))
            mock = shop.catalog.agent("mock")
            assert await provide(mock) == Launch(mock.command)

    run(main())


def test_what_is_missing_is_installed_once_for_all_who_want_it(tmp_path: Path, index: PackageIndex) -> None:
    async def main() -> None:
        async with Workshop(tmp_path, index, box(index)) as shop:
            provide = install_on_use(shop)
            tiny = await shop.catalog.find("tiny")
            launches = await asyncio.gather(*(provide(tiny) for _ in range(5)))
            assert all(launch == shop.catalog.launch(tiny) for launch in launches)
            asked = len(index.asked)
            assert await provide(tiny) == launches[0]
            assert len(index.asked) == asked, "no index is asked for what is there"
            assert await install_on_use(shop, may_install=False)(tiny) == launches[0]

    run(main())


def test_what_is_missing_is_refused_with_how_to_install_it_where_that_is_required(
    tmp_path: Path, index: PackageIndex
) -> None:
    async def main() -> None:
        async with Workshop(tmp_path, index, TINY) as shop:
            tiny = await shop.catalog.find("tiny")
            with pytest.raises(AgentNotInstalled) as refused:
                await install_on_use(shop, may_install=False)(tiny)
            assert refused.value.fields == {"agent": "tiny", "instructions": write_instructions(tiny)}
            assert "sandbox-agent agents install tiny" in str(refused.value)
            assert index.asked == []

    run(main())


def test_failed_install_is_reported_and_the_next_caller_tries_again(tmp_path: Path, index: PackageIndex) -> None:
    index.fail(".tar.gz")

    async def main() -> None:
        async with Workshop(tmp_path, index, box(index)) as shop:
            provide = install_on_use(shop)
            tiny = await shop.catalog.find("tiny")
            with pytest.raises(DownloadFailed):
                await provide(tiny)
            index.repair()
            assert (await provide(tiny)).folder == shop.folders("tiny")[0]

    run(main())
