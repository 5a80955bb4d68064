"""The file of rules: mistakes are named with their line and their rule."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxagent.protocol.errors import SettingsError
from sandboxagent.server.permissions.file import load_rules


def test_a_file_that_is_not_there_has_no_rules(tmp_path: Path) -> None:
    assert load_rules(tmp_path / "permissions.toml") == ()


def test_rules_come_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "permissions.toml"
    file.write_text('[[rules]]\ntool = "a"\naction = "ask"\n\n[[rules]]\ntool = "b"\naction = "reject"\n')
    assert [(rule.number, rule.action, rule.source) for rule in load_rules(file)] == [
        (1, "ask", "server"),
        (2, "reject", "server"),
    ]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('# hello\n[[rules]]\ntool = "a"\naction = "ask"\n[[rules]]\ntool = "b"\nactoin = "ask"\n', "line 7, rule 2: "),
        ('[[rules]]\ntool = "a"\n\n[[rules]]\ntool = "b"\naction = "ask"\n', "line 1, rule 1: "),
        ('[[rules]]\naction = "ask"\n[rules.matches]\ncmd = 5\n', "line 3, rule 1: "),
        ('[[rules]]\n"tool" = 5\naction = "ask"\n', "line 2, rule 1: "),
        ('rules = [\n  { tool = "a" },\n]\n', "line 1, rule 1: "),
        ('[[rule]]\ntool = "a"\n', "line 1: unknown key rule; did you mean rules?"),
        ('[[rules]]\ntool = "a"\naction = "ask"\n[other]\n', "line 4: unknown key other"),
        ('rules = "x"\n', "line 1: "),
        ('[[rules]]\ntool = "a', "is not TOML"),
    ],
)
def test_a_mistake_names_its_place(tmp_path: Path, text: str, where: str) -> None:
    file = tmp_path / "permissions.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_rules(file)
    assert str(file) in str(caught.value)
    assert where in str(caught.value)


_VALID = '[[rules]]\ntool = "Bash"\naction = "reject"\n\n[[rules]]\npath = "src/**"\naction = "ask"\n'


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.integers(0, len(_VALID)),
    cut=st.integers(0, 12),
    piece=st.text(alphabet='[]="rulesaction.\n#{}', max_size=8) | st.text(max_size=3),
)
def test_a_file_with_a_slip_of_the_pen_never_allows(tmp_path: Path, at: int, cut: int, piece: str) -> None:
    file = tmp_path / "permissions.toml"
    file.write_text(_VALID[:at] + piece + _VALID[at + cut :], "utf-8", "surrogatepass")
    try:
        rules = load_rules(file)
    except SettingsError:
        return
    assert all(rule.action != "allow" for rule in rules)
    assert all(rule.conditions for rule in rules)
