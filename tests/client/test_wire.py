"""The SDK reads what the server writes: its types have the members of `wire`, no more and no fewer.

Two types for one thing, because they promise different things: the server's leave out what is absent and know every
value of an enumeration; the SDK's have defaults, times as `datetime`, and take values that a newer server may send.
"""

from dataclasses import fields, is_dataclass
from typing import Any

import msgspec
import pytest
from msgspec import UnsetType, inspect

from sandboxagent.client import agents as sdk_agents
from sandboxagent.client import files as sdk_files
from sandboxagent.client import session as sdk_sessions
from sandboxagent.client.client import FleetNode
from sandboxagent.client.incoming import LogEvent
from sandboxagent.client.requests import Choice, Question
from sandboxagent.client.updates import Decision, Gap, MetadataUpdated
from sandboxagent.protocol import extensions, files, views

SAME = [
    (sdk_agents.Progress, views.Progress),
    (sdk_agents.Artifact, views.Artifact),
    (sdk_agents.InstallResult, views.InstallResult),
    (sdk_agents.InstallInfo, views.InstallFacts),
    (sdk_agents.Credential, views.Credential),
    (sdk_agents.ServerStatus, views.ServerStatus),
    (sdk_agents.Features, views.Features),
    (sdk_agents.Agent, views.AgentView),
    (sdk_agents.Stderr, views.StderrView),
    (sdk_agents.Model, extensions.Model),
    (sdk_agents.Models, extensions.ModelsResult),
    (sdk_agents.AgentHealth, views.AgentHealth),
    (FleetNode, views.NodeView),
    (sdk_sessions.Context, views.ContextView),
    (sdk_sessions.Cost, views.CostView),
    (sdk_sessions.Activity, views.ActivityView),
    (sdk_files.Entry, files.FileView),
    (sdk_files.Written, files.Written),
    (sdk_files.Match, files.Match),
    (sdk_files.Change, files.Change),
    (LogEvent, extensions.LogEvent),
    (Choice, extensions.QuestionOption),
    (Question, extensions.Question),
]
MORE: list[tuple[Any, Any, set[str]]] = [
    (sdk_agents.Health, views.HealthView, {"gateway", "nodes"}),
    (sdk_files.Uploaded, files.Uploaded, {"leftOut"}),
    (sdk_sessions.SessionInfo, views.SessionView, {"node"}),
    (Gap, extensions.Gap, {"sessionUpdate"}),
]
"""And the members that only a gateway gives, or the SDK itself."""
LESS: list[tuple[Any, Any, set[str], set[str]]] = [
    (Decision, extensions.DecisionParams, {"raw", "sessionUpdate"}, {"sessionId", "agentRequestId"}),
    (MetadataUpdated, extensions.MetadataUpdate, {"sessionUpdate"}, {"sessionId"}),
]
"""Those of the SDK alone, and those that an app finds elsewhere."""


NOW = "2026-01-02T03:04:05.678Z"


def sample(type: inspect.Type, *, is_time: bool = False, whole: bool = True) -> object:
    """Something that a server may write; with all that it may leave out, or without."""
    match type:
        case inspect.StructType(fields=members):
            given = [each for each in members if whole or each.required]
            return {each.encode_name: sample(each.type, is_time=_is_time(each.name), whole=whole) for each in given}
        case inspect.UnionType(types=types):
            return sample(next(each for each in types if not _is_absent(each)), is_time=is_time, whole=whole)
        case inspect.ListType(item_type=item):
            return [sample(item, whole=whole)]
        case inspect.LiteralType(values=values):
            return values[-1]
        case inspect.DictType():
            return {}
        case inspect.BoolType():
            return True
        case inspect.IntType() | inspect.FloatType():
            return 7
        case inspect.StrType():
            return NOW if is_time else "text"
        case inspect.RawType() | inspect.AnyType():
            return {}
        case _:
            raise AssertionError(type)


def _is_time(name: str) -> bool:
    return name.endswith("_at") or name in ("modified", "since", "at")


def _is_absent(type: inspect.Type) -> bool:
    return isinstance(type, inspect.NoneType) or (isinstance(type, inspect.CustomType) and type.cls is UnsetType)


def read_back(ours: Any, written: object) -> object:
    """What the SDK makes of it, as JSON again: what the server left out is None there, or a default."""
    read = msgspec.json.decode(msgspec.json.encode(written), type=ours)
    return msgspec.json.decode(msgspec.json.encode(read).replace(b"678000Z", b"678Z"))


@pytest.mark.parametrize("whole", [True, False], ids=["all", "only what must be there"])
def test_the_sdk_reads_every_value_that_the_server_writes(whole: bool) -> None:
    wrong: list[str] = []
    for ours, wire, *_ in (each for each in (*SAME, *MORE) if not is_dataclass(each[0])):
        written = sample(inspect.type_info(wire), whole=whole)
        assert isinstance(written, dict)
        try:
            found = read_back(ours, written)
        except msgspec.ValidationError as error:
            wrong.append(f"{ours.__name__}: {error}")
            continue
        assert isinstance(found, dict)
        wrong += [f"{ours.__name__}.{name}" for name, value in written.items() if not _has(found[name], value)]
    assert wrong == []


def _has(found: object, written: object) -> bool:
    """Whether it is the same, but for members that were not written."""
    if isinstance(written, dict) and isinstance(found, dict):
        return all(_has(found.get(name), value) for name, value in written.items())
    if isinstance(written, list) and isinstance(found, list):
        return len(found) == len(written) and all(map(_has, found, written))
    return found == written


def members(type: Any) -> set[str]:
    """The members of a type, by their names on the wire."""
    if is_dataclass(type):
        return {msgspec.structs.fields(_camel(each.name))[0].encode_name for each in fields(type)}
    return {each.encode_name for each in msgspec.structs.fields(type)}


def _camel(name: str) -> type[msgspec.Struct]:
    return msgspec.defstruct("Named", [name], rename="camel")


@pytest.mark.parametrize(("ours", "wire"), SAME, ids=lambda each: each.__name__)
def test_a_type_of_the_sdk_has_the_members_that_the_server_writes(ours: Any, wire: Any) -> None:
    assert members(ours) == members(wire)


@pytest.mark.parametrize(("ours", "wire", "added"), MORE, ids=["Health", "Uploaded", "SessionInfo", "Gap"])
def test_a_type_of_the_sdk_may_have_members_that_not_every_server_writes(ours: Any, wire: Any, added: set[str]) -> None:
    assert members(ours) - members(wire) == added
    assert members(wire) <= members(ours)


@pytest.mark.parametrize(("ours", "wire", "added", "left_out"), LESS, ids=["Decision", "MetadataUpdated"])
def test_an_update_leaves_out_what_an_app_knows_already(
    ours: Any, wire: Any, added: set[str], left_out: set[str]
) -> None:
    assert (members(ours) - members(wire), members(wire) - members(ours)) == (added, left_out)
