"""What nodes answer through a gateway: files and agents, by session or by node; and what the gateway says of them."""

import asyncio
import io
import tarfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandboxagent.client.api import Api
from sandboxagent.client.errors import ServerProblem
from sandboxagent.client.files import Files
from tests.fleet.gateway.conftest import Fleet, until_joined, until_listed
from tests.support.client import Client, Json, run
from tests.support.nats import PROGRAM
from tests.support.running import BOUND

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not installed")

LARGE = 5_000_000


@asynccontextmanager
async def files(fleet: Fleet, place: int = 1) -> AsyncGenerator[Files]:
    """Files of a session on a node, through a gateway, as the Python SDK has them."""
    async with Client(fleet.nodes[place - 1]) as client, Client(fleet.gateways[0]) as gateway:
        session = await client.new_session()
        await until_listed(gateway, session)
    api = Api(fleet.gateways[0].url, fleet.gateways[0].token)
    try:
        yield Files(api, session)
    finally:
        await api.close()


def test_the_sdk_has_the_files_of_a_session_through_a_gateway(fleet: Fleet) -> None:
    async def main() -> None:
        root = fleet.roots[0]
        async with files(fleet) as remote:
            written = await remote.write("a/large", b"0123456789" * (LARGE // 10))
            assert (root / "a/large").stat().st_size == LARGE
            assert (await remote.stat("a/large")).etag == written.etag
            assert await remote.read("a/large", start=LARGE - 5) == b"56789"
            assert sum([len(piece) async for piece in remote.stream("a/large")]) == LARGE
            with pytest.raises(ServerProblem) as caught:
                await remote.write("a/large", b"", if_match='"another"')
            assert caught.value.slug == "file-changed"
            await remote.mkdir("b")
            await remote.move("a/large", "b/moved")
            assert [entry.name async for entry in remote.list("b")] == ["moved"]
            await remote.write("b/found", b"a needle in it")
            assert [match.path async for match in remote.search("b", text="needle")] == [str(root / "b/found")]
            await remote.delete("b", recursive=True)
            with pytest.raises(ServerProblem) as caught:
                await remote.read("b/moved")
            assert (caught.value.slug, caught.value.status) == ("file-not-found", 404)
            with pytest.raises(ServerProblem) as caught:
                await remote.read("../x")
            assert caught.value.slug == "outside-roots"

    run(main())


def test_archives_and_changes_pass_through_a_gateway(fleet: Fleet, tmp_path: Path) -> None:
    async def main() -> None:
        async with files(fleet, 2) as remote:
            for name in ("one", "two"):
                (tmp_path / name).write_bytes(name.encode() * 300_000)
            assert len((await remote.upload(tmp_path, "tree")).paths) == 2
            packed = b"".join([piece async for piece in remote.download_archive("tree", format="tar.gz")])
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                assert sorted(each.name for each in archive if each.isfile()) == ["one", "two"]
            async with asyncio.timeout(BOUND), remote.watch("tree") as watch:
                (fleet.roots[1] / "tree/three").write_bytes(b"")
                async for change in watch:
                    if change.path.endswith("three"):
                        break

    run(main())


def slug(answer: Json) -> str:
    return str(answer["type"]).rpartition(":")[2]


def test_the_node_is_named_by_the_query_or_by_the_session(fleet: Fleet) -> None:
    async def main() -> None:
        (fleet.roots[0] / "here").write_text("n1")
        (fleet.roots[1] / "here").write_text("n2")
        async with Client(fleet.gateways[1]) as gateway, Client(fleet.nodes[1]) as client:
            await until_joined(gateway, 2)
            for name in ("n1", "n2"):
                answer = await gateway.http.get("/v1/fs/file", params={"path": "here", "node": name})
                assert (answer.status_code, answer.text) == (200, name)
                assert answer.headers["content-security-policy"] == "sandbox"
                agents = (await gateway.http.get("/v1/agents", params={"node": name})).json()["agents"]
                assert "scripted" in [each["id"] for each in agents]
                one = await gateway.http.get("/v1/agents/scripted", params={"node": name})
                assert one.json()["id"] == "scripted"
            session = await client.new_session(requestedSessionId="a-name")
            await until_listed(gateway, session)
            for known in (session, "a-name"):
                answer = await gateway.http.get("/v1/fs/file", params={"path": "here", "sessionId": known})
                assert answer.text == "n2"
            for query, status, wanted in (
                ({}, 400, "missing-node"),
                ({"node": "n9"}, 503, "node-unreachable"),
                ({"node": "*"}, 503, "no-node"),
                ({"sessionId": "nowhere"}, 404, "session-not-found"),
                ({"sessionId": session, "node": "n1"}, 400, "bad-request"),
            ):
                answer = await gateway.http.get("/v1/fs/file", params={"path": "here", **query})
                assert (answer.status_code, slug(answer.json())) == (status, wanted)
            for foreign in ("/v1/fs/file?path=here&node=%FF", "/opencode/config?node=%FF", "/opencode/@%FF/config"):
                answer = await gateway.http.get(foreign)
                assert (answer.status_code, slug(answer.json())) == (503, "no-node")
            assert (await gateway.http.get("/v1/agents")).status_code == 400
            # What a server refuses does not pass because a gateway leaves out why.
            part = {"Content-Range": "bytes 0-1/10"}
            where = {"path": "here", "node": "n1"}
            answer = await gateway.http.put("/v1/fs/file", params=where, headers=part, content=b"n9")
            assert (answer.status_code, (fleet.roots[0] / "here").read_text()) == (400, "n1")
            answer = await gateway.http.get("/v1/agents/none", params={"node": "n1"})
            assert slug(answer.json()) == "unknown-agent"
            assert (await gateway.http.post("/v1/agents/mock/install", params={"node": "n1"})).status_code == 200

    run(main())


def test_a_gateway_says_how_the_fleet_is(fleet: Fleet) -> None:
    async def main() -> None:
        async with Client(fleet.gateways[0]) as gateway:
            await until_joined(gateway, 2)
            health = (await gateway.http.get("/v1/health")).json()
            assert (health["status"], health["nodes"]) == ("ok", 2)
            assert {each["agent"] for each in health["agents"] if each["installed"]} >= {"mock", "scripted"}
            node = (await gateway.http.get("/v1/nodes/n2")).json()
            assert (node["node"], node["labels"]) == ("n2", {"place": "2"})
            assert node["since"].endswith("Z")
            assert slug((await gateway.http.get("/v1/nodes/n9")).json()) == "not-found"
            paths = (await gateway.http.get("/openapi.json")).json()["paths"]
            assert {"/v1/nodes", "/v1/nodes/{node}", "/v1/fs/file", "/v1/agents/{agent}/install"} <= set(paths)
            asked = {each["name"] for each in paths["/v1/fs/watch"]["get"]["parameters"]}
            assert {"path", "sessionId", "node"} <= asked
            page = await gateway.http.get("/ui/")
            assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")

    run(main())


def test_opencode_works_with_the_node_that_its_address_names(fleet: Fleet) -> None:
    async def main() -> None:
        async with Client(fleet.gateways[0]) as gateway:
            await until_joined(gateway, 2)
            answer = await gateway.http.get("/opencode/config")
            assert (answer.status_code, slug(answer.json())) == (400, "missing-node")
            for name, root in zip(("n1", "n2"), fleet.roots, strict=True):
                place = {"directory": str(root)}
                path = (await gateway.http.get(f"/opencode/@{name}/path", params=place)).json()
                assert path["directory"] == str(root)
                made = await gateway.http.post(f"/opencode/@{name}/session", params=place, json={})
                assert made.status_code == 200
                listed = (await gateway.http.get(f"/opencode/@{name}/session", params=place)).json()
                assert made.json()["id"] in [each["id"] for each in listed]
            assert (await gateway.http.get("/global/health")).json()["healthy"]
            answer = await gateway.http.get("/opencode/@n9/path")
            assert slug(answer.json()) == "node-unreachable"
            gateway.http.headers["Authorization"] = "Bearer of-n1"
            assert (await gateway.http.get("/opencode/@n1/path")).status_code == 401

    run(main())
