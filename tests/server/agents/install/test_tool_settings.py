"""What npm and uv get of a user's own settings: indexes and the way to them, and nothing that could run."""

from pathlib import Path

import pytest

from sandboxagent.server.agents.install.tools import read_tool_settings

NPMRC = """
; where packages come from
registry = https://npm.example.com/
@corp:registry=https://corp.example.com/npm/
//corp.example.com/npm/:_authToken = ${NPM_TOKEN}
"cafile" = "/etc/corp.pem"
ca[]="-----BEGIN"
proxy=http://proxy.example.com:3128
strict-ssl=false

git=./evil.sh
script-shell = ./evil.sh
ignore-scripts=false
node-options=--require=./evil.js
userconfig=/elsewhere
allow-git=all
//corp.example.com/npm/:tokenHelper=/bin/evil
[section]
registry=https://elsewhere.example.com/
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".npmrc").write_text(NPMRC)
    return tmp_path


def test_of_an_npmrc_only_the_way_to_the_index_is_taken(home: Path) -> None:
    assert read_tool_settings({"HOME": str(home)}).npmrc.splitlines() == [
        "registry=https://npm.example.com/",
        "@corp:registry=https://corp.example.com/npm/",
        "//corp.example.com/npm/:_authToken=${NPM_TOKEN}",
        'cafile="/etc/corp.pem"',
        'ca[]="-----BEGIN"',
        "proxy=http://proxy.example.com:3128",
        "strict-ssl=false",
    ]


def test_files_that_variables_name_are_read_and_the_users_wins(home: Path, tmp_path: Path) -> None:
    (tmp_path / "global").write_text("registry=one\ngit=evil\n")
    (tmp_path / "own").write_text("registry=two\n")
    environ = {
        "HOME": str(home),
        "NPM_CONFIG_GLOBALCONFIG": str(tmp_path / "global"),
        "npm_config_userconfig": str(tmp_path / "own"),
    }

    settings = read_tool_settings(environ)

    assert settings.npmrc == "registry=one\nregistry=two\n"
    assert settings.environment == {"HOME": str(home)}


@pytest.mark.parametrize(
    "name",
    [
        *("npm_config_registry", "NPM_CONFIG_REGISTRY", "npm_config_https_proxy", "npm_config_fetch_retries"),
        *("npm_config_cache", "npm_config_@corp:registry", "npm_config_//corp.example.com/:_authToken"),
        *("NPM_TOKEN", "NODE_AUTH_TOKEN", "PIP_CERT", "HTTPS_PROXY", "NODE_EXTRA_CA_CERTS"),
        *("UV_DEFAULT_INDEX", "UV_INDEX_CORP_PASSWORD", "UV_HTTP_TIMEOUT", "UV_CACHE_DIR", "UV_SYSTEM_CERTS"),
    ],
)
def test_variables_that_lead_to_an_index_are_passed_on(name: str) -> None:
    assert read_tool_settings({name: "x"}).environment == {name: "x"}


@pytest.mark.parametrize(
    "name",
    [
        *("npm_config_git", "NPM_CONFIG_GIT", "npm_config_script_shell", "npm_config_node_options"),
        *("npm_config_userconfig", "npm_config_globalconfig", "npm_config_prefix", "npm_config_ignore_scripts"),
        *("npm_config_allow_git", "npm_config__auth_helper", "npm_config_//host/:tokenHelper"),
        *("UV_CONFIG_FILE", "UV_KEYRING_PROVIDER", "UV_PYTHON", "UV_OVERRIDE", "UV_NO_VERIFY_HASHES", "NODE_OPTIONS"),
    ],
)
def test_other_variables_are_not_passed_on(name: str) -> None:
    assert read_tool_settings({name: "x"}).environment == {}


def test_indexes_of_a_uv_toml_become_variables_and_the_rest_of_it_stays_behind(tmp_path: Path) -> None:
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv" / "uv.toml").write_text(
        'keyring-provider = "subprocess"\nno-verify-hashes = true\n'
        'extra-index-url = ["https://more.example.com/simple"]\n'
        '[[index]]\nname = "corp"\nurl = "https://corp.example.com/simple"\ndefault = true\n'
        '[[index]]\nname = "lab"\nurl = "https://lab.example.com/simple"\n'
        '[[index]]\nname = "torch"\nurl = "https://torch.example.com"\nexplicit = true\n'
    )

    environ = {"XDG_CONFIG_HOME": str(tmp_path)}

    assert read_tool_settings(environ).environment == environ | {
        "UV_DEFAULT_INDEX": "corp=https://corp.example.com/simple",
        "UV_INDEX": "https://more.example.com/simple lab=https://lab.example.com/simple",
    }
    given = environ | {"UV_INDEX_URL": "https://own.example.com/simple"}
    assert read_tool_settings(given).environment == given


@pytest.mark.parametrize(
    "content", ["", "{", "index = 3", "index = [3]", "extra-index-url = 3", '[[index]]\nname = "x"']
)
def test_a_uv_toml_that_makes_no_sense_says_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "uv.toml").write_text(content)

    assert read_tool_settings({"UV_CONFIG_FILE": str(tmp_path / "uv.toml")}).environment == {}
