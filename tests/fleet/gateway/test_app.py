"""What a gateway learns of capabilities: which requests nodes answer, and what the document says of them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sandboxagent.core.settings import load
from sandboxagent.fleet.gateway.app import Forwarding, describe_forwarded
from sandboxagent.protocol.errors import MissingNode
from sandboxagent.server.build import list_capabilities
from sandboxagent.server.capability import Capability, ServerCore
from sandboxagent.server.http.asgi import Receive, Scope, Send, group_headers, respond
from sandboxagent.server.http.auth import Access
from tests.support.client import run
from tests.support.flows import Client, in_memory

if TYPE_CHECKING:
    from sandboxagent.server.http.views import Endpoint


def directory_of(scope: Scope) -> str | None:
    found: bytes | None = scope["headers_by_name"].get(b"x-where")
    return None if found is None else found.decode()


class Ports(Capability):
    """A capability as one to come."""

    name = "ports"
    access = Access("/ports", "/ports-health", headers=("X-Where",), find_directory=directory_of)
    forwarded = ("/v1/ports",)

    def __init__(self, core: ServerCore) -> None:
        self._core = core

    def endpoints(self) -> "Sequence[Endpoint]":
        from sandboxagent.server.http.views import Endpoint

        async def show(*_: object) -> Any: ...

        meaning = {"port": "Its number."}
        return [
            Endpoint("GET", path, show, "A port.", path_parameters=meaning)
            for path in ("/v1/ports/{port}", "/v1/own-ports/{port}")
        ]


def forwarding(*capabilities: type[Capability]) -> Forwarding:
    """To two nodes, of which the first has all sessions of /a."""
    owned = {"/a": {"n1"}, "/b": {"n1", "n2"}}
    registry: Any = SimpleNamespace(leases={"n2": 0, "n1": 0}, owners=lambda directory: set(owned.get(directory, ())))
    flows: Any = SimpleNamespace(asked=[])

    async def proxy(node: str, scope: Scope, *_: object) -> None:
        flows.asked.append((node, scope["raw_path"].decode()))

    flows.proxy = proxy
    return Forwarding(registry, flows, capabilities)


async def node_of(path: str, query: bytes = b"", **headers: str) -> tuple[str, str]:
    found = forwarding(Ports)
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": pairs,
        "headers_by_name": group_headers(pairs),
    }
    nothing: Any = None
    await found(scope, nothing, nothing)
    flows: Any = found.flows
    [asked] = flows.asked
    return asked


def test_nodes_answer_what_capabilities_declare_and_requests_about_agents() -> None:
    paths = ("/v1/agents", "/v1/agents/a/stderr", "/v1/ports", "/v1/ports/1", "/ports", "/ports/x", "/ports-health")
    others = ("/v1/portsmouth", "/v1/own-ports/1", "/v1/health", "/v1/sessions", "/portsmouth", "/ui/", "/v1/fs/file")

    assert [path for path in paths if not forwarding(Ports).has(path)] == []
    assert [path for path in others if forwarding(Ports).has(path)] == []
    assert forwarding(*list_capabilities()).has("/v1/fs/file")


def test_the_node_of_an_app_is_named_by_path_query_or_directory() -> None:
    async def main() -> None:
        assert await node_of("/ports/@n2/x/y") == ("n2", "/ports/x/y")
        assert await node_of("/ports/@n2") == ("n2", "/ports")
        assert await node_of("/ports/x", b"node=n2") == ("n2", "/ports/x")
        assert await node_of("/ports/x", x_where="/a") == ("n1", "/ports/x")
        assert await node_of("/ports-health") == ("n1", "/ports-health")
        for where in ({}, {"x_where": "/b"}, {"x_where": "/c"}):
            with pytest.raises(MissingNode):
                await node_of("/ports/x", **where)

    run(main())


def test_the_document_has_the_forwarded_routes_of_every_capability_with_a_node() -> None:
    settings = load({}, {}, file=False)
    found = {each.path: each for each in describe_forwarded((*list_capabilities(), Ports), settings)}

    assert {"/v1/ports/{port}", "/v1/fs/file", "/v1/agents/{agent}"} <= set(found)
    assert not {"/v1/own-ports/{port}", "/v1/health", "/v1/sessions"} & set(found)
    assert [path for path, each in found.items() if "node" not in each.query] == []


def test_headers_that_capabilities_declare_reach_the_node() -> None:
    async def main() -> None:
        async with in_memory(further=["X-Where"]) as fleet:
            seen: list[Scope] = []

            async def look(scope: Scope, receive: Receive, send: Send) -> None:
                seen.append(scope)
                await respond(send, 204, [])

            await fleet.join("n1", look)
            await Client("GET", "/ports", headers=[(b"x-where", b"/a"), (b"x-secret", b"s")]).ask(fleet.gateway)
            assert seen[0]["headers"] == [(b"x-where", b"/a")]

    run(main())
