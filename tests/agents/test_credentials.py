"""Which credentials are there: names and paths, never a value."""

from pathlib import Path

import pytest

from sandbox_agent.agents.facts import find_credentials, has_credentials
from sandbox_agent.agents.manifest import Agent
from sandbox_agent.wire.agents import Credential


def agent(*variables: str, files: tuple[str, ...] = (), **env: str) -> Agent:
    return Agent(
        id="it",
        title="It",
        description="",
        source="path",
        command=("it",),
        env=env,
        credentials=variables,
        credential_files=files,
    )


def test_an_agent_that_needs_none_has_all_it_needs() -> None:
    assert find_credentials(agent(), {}) == []
    assert has_credentials(agent(), {})


def test_one_of_its_variables_is_enough() -> None:
    it = agent("A_KEY", "B_KEY")

    assert find_credentials(it, {"B_KEY": "x"}) == [
        Credential("variable", "A_KEY", found=False),
        Credential("variable", "B_KEY", found=True),
    ]
    assert has_credentials(it, {"B_KEY": "x"})
    assert not has_credentials(it, {"B_KEY": "", "C_KEY": "x"})


def test_what_agents_toml_puts_into_its_environment_counts() -> None:
    assert has_credentials(agent("A_KEY", A_KEY="x"), {})
    assert not has_credentials(agent("A_KEY", A_KEY=""), {"A_KEY": "x"}), "it is taken away there"


def test_one_of_its_files_is_enough_too(tmp_path: Path) -> None:
    it = agent("A_KEY", files=("~/.it/auth.json",))
    environ = {"HOME": str(tmp_path)}
    assert not has_credentials(it, environ)

    (tmp_path / ".it").mkdir()
    assert not has_credentials(it, environ)
    (tmp_path / ".it" / "auth.json").write_text("{}")

    assert find_credentials(it, environ)[1] == Credential("file", "~/.it/auth.json", found=True)
    assert has_credentials(it, environ)


def test_a_path_may_name_variables_and_without_them_there_is_no_such_file(tmp_path: Path) -> None:
    it = agent(files=("$IT/auth", "$IT/$ITS/auth"))
    (tmp_path / "auth").write_text("x")

    assert find_credentials(it, {}) == []
    assert find_credentials(it, {"IT": str(tmp_path)}) == [Credential("file", "$IT/auth", found=True)]
    assert [each.found for each in find_credentials(it, {"IT": str(tmp_path), "ITS": "sub"})] == [True, False]


@pytest.mark.parametrize("home", ["/proc/1/root/no", "/dev/null", "/" + "x" * 5000])
def test_a_home_that_cannot_be_looked_into_has_no_file(home: str) -> None:
    assert not has_credentials(agent(files=("~/auth",)), {"HOME": home})


def test_no_value_is_shown() -> None:
    assert "hush" not in repr(find_credentials(agent("A_KEY"), {"A_KEY": "hush"}))
