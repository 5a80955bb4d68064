"""Which dialects there are."""

from typing import get_args

from sandbox_agent.agents.dialects.dialect import Plain, companion_of, dialect_of
from sandbox_agent.agents.manifest import Dialect, load_manifest
from sandbox_agent.envelope import parse


def test_an_agent_without_a_dialect_is_taken_at_its_word() -> None:
    request = parse(b'{"jsonrpc":"2.0","id":0,"method":"session/request_permission","params":{}}')
    plain = dialect_of(None)

    assert companion_of(None) is None
    assert plain.translate_request(request) is request
    assert plain.translate_answer(request, b"{}") == b"{}"


def test_every_name_means_something_and_is_some_agents() -> None:
    names = get_args(Dialect)

    assert [name for name in names if isinstance(dialect_of(name), Plain) and companion_of(name) is None] == []
    assert {agent.dialect for agent in load_manifest(None).agents} == {*names, None}


def test_every_process_has_a_companion_of_its_own() -> None:
    assert companion_of("opencode") is not companion_of("opencode")
