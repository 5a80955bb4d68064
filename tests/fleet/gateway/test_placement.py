"""On which node a session is opened: one that fits, and of two the less busy one."""

import random
from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from sandboxagent.fleet.gateway.placement import PlacementRequest, place
from sandboxagent.fleet.messages import Lease
from sandboxagent.protocol.envelope import META
from sandboxagent.protocol.errors import InvalidParams, NoNode

LEASES = {
    name: Lease(name, "", "", {"zone": zone}, agents, running)
    for name, zone, agents, running in (
        ("a", "eu", ["claude"], 3),
        ("b", "eu", ["claude", "codex"], 1),
        ("c", "us", ["codex"], 0),
    )
}


def places(draining: set[str] | None = None, leases: Mapping[str, Lease] = LEASES, **request: object) -> set[str]:
    closed = dict.fromkeys(draining or (), "drains")
    return {place(leases, closed, PlacementRequest(**request), random.Random(seed)) for seed in range(50)}  # type: ignore[arg-type]


def test_of_two_nodes_that_fit_the_less_busy_one_gets_it() -> None:
    assert places(agent="claude") == {"b"}
    assert places(agent="codex") == {"c"}
    # Of three, the busiest one is never the less busy one of two.
    assert places() == {"b", "c"}


def test_labels_and_names_decide() -> None:
    assert places(labels={"zone": "eu"}) == {"b"}
    assert places(node="a") == {"a"}
    assert places(agent="codex", labels={"zone": "eu"}) == {"b"}
    for request in (
        PlacementRequest(node="z"),
        PlacementRequest(labels={"zone": "moon"}),
        PlacementRequest(node="c", labels={"zone": "eu"}),
    ):
        with pytest.raises(NoNode):
            place(LEASES, {}, request, random.Random(1))


def test_a_node_that_drains_gets_no_session() -> None:
    assert places({"b"}, agent="claude") == {"a"}
    with pytest.raises(NoNode):
        places({"a", "b", "c"})
    with pytest.raises(NoNode):
        places({"a"}, node="a")


def test_a_node_gets_no_session_of_an_agent_that_its_operator_does_not_let_it_have() -> None:
    pinned = {**LEASES, "b": replace(LEASES["b"], agents=["claude"], allowed=["claude", "amp"])}
    assert places(leases=pinned, agent="codex") == {"c"}
    assert places(leases=pinned, agent="claude") == {"b"}
    # It may have an agent that is not installed there yet, as any other node.
    assert "b" in places(leases=pinned, agent="amp")
    assert "b" not in places(leases=pinned, agent="goose")
    with pytest.raises(NoNode):
        places(leases=pinned, agent="codex", node="b")


def test_a_silent_node_is_chosen_when_no_other_fits_as_well() -> None:
    def placed(silent: set[str], request: PlacementRequest) -> set[str]:
        return {place(LEASES, {}, request, random.Random(seed), silent) for seed in range(50)}

    assert placed({"b"}, PlacementRequest("claude")) == {"a"}
    assert placed({"b", "c"}, PlacementRequest()) == {"a"}
    assert placed({"c"}, PlacementRequest(node="c")) == {"c"}
    # Not one that would have to install the agent first.
    assert placed({"a", "b"}, PlacementRequest("claude")) == {"b"}


def test_an_agent_that_no_node_has_may_be_installed_on_any() -> None:
    assert places(agent="gemini", node="a") == {"a"}
    assert places(agent="gemini") <= {"a", "b", "c"}


def test_a_wish_is_read_from_our_meta() -> None:
    ours = {"agent": "codex", "node": "b", "labels": {"zone": "eu"}}
    assert PlacementRequest.read({"_meta": {META: ours}}, "claude") == PlacementRequest("codex", "b", {"zone": "eu"})
    assert PlacementRequest.read({}, "claude") == PlacementRequest("claude")
    for wrong in ({"labels": {"zone": 1}}, {"labels": []}, {"labels": {}}, {"node": 1}):
        with pytest.raises(InvalidParams):
            PlacementRequest.read({"_meta": {META: wrong}}, None)
