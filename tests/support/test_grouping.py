from pathlib import Path

import pytest

from tests.support.grouping import group_of

MATRIX = "tests/agents/test_matrix_questions.py::test_model_hears_what_was_chosen"
SUITE = "tests/sdk_typescript/test_suites.py::test_the_suite_passes"


@pytest.mark.parametrize(
    ("id", "group"),
    [
        (f"{MATRIX}[questions-claude]", "claude"),
        (f"{MATRIX}[claude-100%25 of #1?.txt]", "claude"),
        ("tests/agents/test_real_pi.py::test_it_works[pi]", "pi"),
        ("tests/server/agents/test_lines.py::test_it_works[no agent]", "tests/server/agents/test_lines.py"),
        ("tests/contract/test_files.py::test_a_file_is_read", "tests/contract/test_files.py"),
        (f"{SUITE}[turns]", f"{SUITE}[turns]"),
    ],
)
def test_tests_that_share_something_are_of_one_group(id: str, group: str) -> None:
    assert group_of(id) == group


def test_modules_that_need_a_browser_have_one_for_all_of_them() -> None:
    modules = ("browser/test_driving.py", "browser/test_typescript_sdk_network.py", "opencode/test_page.py")

    assert len({group_of(f"tests/{module}::test_a") for module in modules}) == 1


def test_two_workers_share_the_modules_of_the_inspector() -> None:
    modules = Path(__file__).parents[1].joinpath("inspector").glob("test_*.py")

    assert len({group_of(f"tests/inspector/{module.name}::test_a") for module in modules}) == 2
