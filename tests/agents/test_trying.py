from pathlib import Path

import pytest

from tests.agents.trying import THREE, code, is_whole, left_out, meaning

ROOT = Path(__file__).parents[2]


def test_what_every_app_needs_is_tried_with_three_agents_and_the_rest_with_one() -> None:
    assert [agent for agent in sorted(THREE) if not left_out(agent, every_run=True)] == ["claude", "codex", "opencode"]
    assert [agent for agent in sorted(THREE) if not left_out(agent, every_run=False)] == ["codex"]
    assert left_out("goose", every_run=True)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ('"""Another word."""\n\nX = 1\n"""What it means now."""\n', True),
        ("X   =   1  # a comment", True),
        ("X = 2", False),
    ],
)
def test_other_words_and_another_layout_change_nothing(tmp_path: Path, text: str, same: bool) -> None:
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text('"""A word."""\n\nX = 1\n"""What it means."""\n')
    after.write_text(text)
    assert (meaning(before) == meaning(after)) == same


def test_code_that_agents_depend_on_excludes_views_and_mocks() -> None:
    names = {file.relative_to(ROOT / "src" / "sandboxagent").as_posix() for file in code()}
    assert names >= {
        "server/agents/start.py",
        "server/agents/manifest.toml",
        "server/agents/dialects/opencode.py",
        "server/permissions/rules.py",
    }
    assert not {name for name in names if "mock" in name or name.endswith("views.py")}


@pytest.mark.parametrize(
    ("arguments", "whole"),
    [
        (["tests"], True),
        (["tests/agents"], True),
        (["tests/server/sessions", "tests"], True),
        (["tests/server/sessions"], False),
        (["tests/agents/test_real_pi.py"], False),
    ],
)
def test_all_agents_were_tried_when_all_their_tests_were_run(arguments: list[str], whole: bool) -> None:
    assert is_whole(arguments, ROOT) == whole
