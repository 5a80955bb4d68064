"""Settings (contract, sections 10 to 12): where they come from, how they are written, and the rules for the token."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxagent.core.settings import OPTIONS, Settings, is_loopback, load
from sandboxagent.core.settings.sources import line_of
from sandboxagent.protocol.errors import SettingsError

Load = Callable[..., Settings]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration directory of our own, so that the user's does not matter."""
    directory = tmp_path / "config"
    directory.mkdir()
    return directory


@pytest.fixture
def load_with(config: Path) -> Load:
    """load() with flags as keywords; `environ` and the text of config.toml as `file`."""

    def load_with(environ: dict[str, str] | None = None, file: str = "", **flags: object) -> Settings:
        (config / "config.toml").write_text(file)
        return load({"config_dir": config, **flags}, environ or {})

    return load_with


# --- precedence -------------------------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_contract(load_with: Load) -> None:
    settings = load_with()

    assert (settings.host, settings.port) == ("127.0.0.1", 2468)
    assert (settings.request_timeout, settings.turn_idle_timeout, settings.connection_ttl) == (120, 1800, 1800)
    assert (settings.max_body, settings.permission_timeout, settings.prompt_queue) == (32 * 1024**2, 86400, 16)
    assert (settings.heartbeat, settings.stop_grace, settings.stall_timeout) == (15, 1, 1)
    assert (settings.log_level, settings.log_format, settings.log_max_age) == ("info", "text", 30 * 86400)
    assert (settings.allow_host, settings.cors_origin, settings.fs_root) == ((), (), ())


def test_a_flag_wins_over_the_environment_and_the_environment_over_the_file(load_with: Load) -> None:
    file = "port = 1\nprompt_queue = 1\nmax_body = 1"
    environ = {"SANDBOX_AGENT_PORT": "2", "SANDBOX_AGENT_PROMPT_QUEUE": "2"}

    settings = load_with(environ, file, port="3")

    assert (settings.port, settings.prompt_queue, settings.max_body) == (3, 2, 1)


def test_a_flag_that_is_none_and_a_variable_that_is_empty_are_not_set(load_with: Load) -> None:
    settings = load_with({"SANDBOX_AGENT_PORT": ""}, "port = 1", port=None)

    assert settings.port == 1


def test_the_configuration_directory_can_come_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("port = 7")

    settings = load({}, {"SANDBOX_AGENT_CONFIG_DIR": str(tmp_path)})

    assert (settings.port, settings.config_dir) == (7, tmp_path)
    assert settings.agents_file == tmp_path / "agents.toml"


def test_without_a_configuration_file_there_are_defaults(tmp_path: Path) -> None:
    assert load({"config_dir": tmp_path / "none"}, {}).port == 2468


def test_with_only_some_options_nothing_wrong_with_another_matters(config: Path, tmp_path: Path) -> None:
    (config / "config.toml").write_text('token_file = "missing"\nagents_dir = "here"')
    environ = {"SANDBOX_AGENT_PORT": "x", "SANDBOX_AGENT_DATA_DIR": str(tmp_path)}

    settings = load({"config_dir": config, "host": "::1"}, environ, {"config_dir", "agents_dir"})

    assert (settings.agents_dir, settings.host, settings.port) == (config / "here", "127.0.0.1", 2468)
    assert settings.data_dir != tmp_path


def test_the_agents_directory_follows_the_data_directory(load_with: Load, tmp_path: Path) -> None:
    assert load_with(data_dir=tmp_path).agents_dir == tmp_path / "agents"
    assert load_with(data_dir=tmp_path, agents_dir=tmp_path / "x").agents_dir == tmp_path / "x"


def test_embedded_server_ignores_the_users_address_but_shares_agents(load_with: Load, tmp_path: Path) -> None:
    file = f'port = 1\nhost = "0.0.0.0"\ndata_dir = "{tmp_path}"\ntoken = "users-own"\nmax_body = 5'
    environ = {"SANDBOX_AGENT_PORT": "2", "SANDBOX_AGENT_TOKEN": "secret"}

    settings = load_with(environ, file, embedded=True)

    assert (settings.host, settings.port, settings.token, settings.max_body) == ("127.0.0.1", 0, "secret", 5)
    assert (settings.temporary, settings.agents_dir) == (True, tmp_path / "agents")
    assert not load_with(environ, file).temporary


def test_an_embedded_server_goes_by_its_flags(load_with: Load, tmp_path: Path) -> None:
    settings = load_with(embedded=True, host="::1", port="7", data_dir=tmp_path)

    assert (settings.host, settings.port, settings.data_dir, settings.temporary) == ("::1", 7, tmp_path, False)
    assert settings.agents_dir == tmp_path / "agents"


def test_the_log_is_smaller_in_memory_unless_its_size_is_given(load_with: Load) -> None:
    assert load_with().log_max_bytes == 1024**3
    assert load_with(no_persist=True).log_max_bytes == 64 * 1024**2
    assert load_with(no_persist=True, log_max_bytes="5k").log_max_bytes == 5 * 1024


def test_opencode_shell_is_on_unless_roots_are_set_or_it_is_turned_off(load_with: Load, tmp_path: Path) -> None:
    assert load_with().opencode_shell == "on"
    assert load_with(fs_root=[str(tmp_path)]).opencode_shell == "off"
    assert load_with({"SANDBOX_AGENT_FS_ROOT": str(tmp_path)}).opencode_shell == "off"
    assert load_with(fs_root=[str(tmp_path)], opencode_shell="on").opencode_shell == "on"
    assert load_with(opencode_shell="off").opencode_shell == "off"


# --- how values are written -------------------------------------------------------------------------------------------


SECONDS: dict[str, float] = {"120": 120, "0.5": 0.5, "500ms": 0.5, "30s": 30, "30m": 1800, "1h": 3600, "2d": 172800}
SECONDS.update({"1.5h": 5400, "30 m": 1800, "30M": 1800})


@pytest.mark.parametrize(("written", "seconds"), [*SECONDS.items(), (90, 90), (1.5, 1.5)])
def test_a_duration_is_seconds_or_has_a_unit(load_with: Load, written: object, seconds: float) -> None:
    assert load_with(request_timeout=written).request_timeout == seconds


BYTES = {"100": 100, "100b": 100, "64k": 65536, "64K": 65536, "1KB": 1000, "1KiB": 1024, "10MB": 10_000_000}
BYTES.update({"32MiB": 32 * 1024**2, "1g": 1024**3, "1GB": 1000**3, "1.5 GiB": 3 * 1024**3 // 2, "1t": 1024**4})


@pytest.mark.parametrize(("written", "size"), [*BYTES.items(), (4096, 4096)])
def test_a_size_is_bytes_or_has_a_unit(load_with: Load, written: object, size: int) -> None:
    assert load_with(max_body=written).max_body == size


@pytest.mark.parametrize(
    ("word", "meaning"),
    [(word, True) for word in ("1", "true", "yes", "on", "TRUE", " on ")]
    + [(word, False) for word in ("0", "false", "no", "off", "No")],
)
def test_a_switch_in_the_environment_is_a_word(load_with: Load, word: str, meaning: bool) -> None:
    assert load_with({"SANDBOX_AGENT_NO_PERSIST": word}).no_persist is meaning


def test_list_is_a_repeated_flag_comma_separated_variable_or_file_list(load_with: Load) -> None:
    expected = ("a.example", "b.example")

    assert load_with(allow_host=["a.example", "b.example"]).allow_host == expected
    assert load_with({"SANDBOX_AGENT_ALLOW_HOST": "a.example, B.example,"}).allow_host == expected
    assert load_with(file='allow_host = ["a.example", "b.example"]').allow_host == expected
    assert load_with(file='allow_host = "a.example"').allow_host == ("a.example",)


def test_a_relative_path_starts_where_we_are_and_in_the_file_where_the_file_is(load_with: Load, config: Path) -> None:
    assert load_with(data_dir="x").data_dir == Path.cwd() / "x"
    assert load_with(file='data_dir = "x"\nfs_root = ["y", "/z"]').data_dir == config / "x"
    assert load_with(file='fs_root = ["y", "/z"]').fs_root == (config / "y", Path("/z"))
    assert load_with(data_dir="~/x").data_dir == Path.home() / "x"


def test_hosts_and_origins_are_brought_into_one_form(load_with: Load) -> None:
    assert load_with(host="[::1]").host == "::1"
    assert load_with(cors_origin=["HTTPS://App.example/"]).cors_origin == ("https://app.example",)


# --- what is wrong is named -------------------------------------------------------------------------------------------


WRONG_VALUES: dict[tuple[str, str], list[object]] = {
    ("port", "port number from 0 to 65535"): ["65536", "-1", "http", "80.0", "", True, 1.5],
    ("request_timeout", "30m"): ["0", "-1", "5x", "1h30m", "inf", "", "9" * 400, True, 0, float("inf"), float("nan")],
    ("max_body", "32MiB"): ["0", "0.5", "1XB", "MiB", "1e9", "99999999TiB", [1]],
    ("prompt_queue", "whole number"): ["many", "1_0", "9" * 30],
    ("log_level", "debug, info, warning, error"): ["loud", "", "infos"],
    ("log_format", "text, json"): ["xml"],
    ("no_persist", "true or false"): ["perhaps", 1],
    ("data_dir", "a path"): ["", "a\0b", "~nobody-of-that-name/x", 3],
    ("host", "without scheme or port"): ["", "http://a", "a b", "127.0.0.1:80", "*", "::1::"],
    ("allow_host", "without scheme or port"): [["a.example", "a.example:80"]],
    ("cors_origin", "https://app.example.org"): [["*"], ["app.example"], ["https://a.example/b"]],
}


@pytest.mark.parametrize(
    ("name", "expected", "value"),
    [(name, expected, value) for (name, expected), values in WRONG_VALUES.items() for value in values],
)
def test_a_wrong_value_names_the_flag_the_value_and_what_is_expected(
    load_with: Load, name: str, expected: str, value: object
) -> None:
    with pytest.raises(SettingsError) as wrong:
        load_with(**{name: value})

    message = str(wrong.value)
    assert message.startswith(f"--{name.replace('_', '-')}: expected ")
    assert expected in message
    assert repr(value)[:100] in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "value"),
    [("creds", "box.nk"), ("node", "box"), ("label", ["zone=eu"]), ("join_proxy", "http://proxy:3128")],
)
def test_fleet_flag_without_join_is_an_error_that_names_both(load_with: Load, name: str, value: object) -> None:
    with pytest.raises(SettingsError) as wrong:
        load_with(**{name: value})

    flag = f"--{name.replace('_', '-')}"
    wanted = "is about a fleet, and none is joined; name a NATS server of it, such as --join nats://host:4222"
    assert str(wrong.value) == f"{flag} {wanted}"
    load_with(**{name: value}, join=["nats://host:4222"])
    # What is kept for a server that joins another time says nothing about this one.
    text = value if isinstance(value, str) else "zone=eu"
    load_with({f"SANDBOX_AGENT_{name.upper()}": text}, f"{name} = {json.dumps(value)}")


def test_a_wrong_variable_is_named(load_with: Load) -> None:
    with pytest.raises(SettingsError, match=r"^SANDBOX_AGENT_PORT: expected a port number .* got 'x'$"):
        load_with({"SANDBOX_AGENT_PORT": "x"})


def test_a_wrong_value_in_the_file_is_named_with_file_line_and_key(load_with: Load, config: Path) -> None:
    with pytest.raises(SettingsError) as wrong:
        load_with(file='# a comment about port = 1\nhost = "::1"\n\nport = "x"\n')

    assert str(wrong.value).startswith(f"{config / 'config.toml'}, line 4, port: expected a port number")


@pytest.mark.parametrize(
    ("key", "hint"),
    [("prot", "did you mean port?"), ("request-timeout", "did you mean request_timeout?"), ("zzz", "--help lists")],
)
def test_an_unknown_key_is_named_with_its_line_and_what_was_meant(
    load_with: Load, config: Path, key: str, hint: str
) -> None:
    with pytest.raises(SettingsError) as wrong:
        load_with(file=f"port = 1\n{key} = 2\n")

    assert str(wrong.value).startswith(f"{config / 'config.toml'}, line 2: unknown key {key}; ")
    assert hint in str(wrong.value)


def test_the_file_cannot_say_where_it_is_itself(load_with: Load) -> None:
    with pytest.raises(SettingsError, match="unknown key config_dir"):
        load_with(file='config_dir = "/x"')


def test_a_file_that_is_not_toml_is_named_with_the_line(load_with: Load, config: Path) -> None:
    with pytest.raises(SettingsError, match=r"is not TOML: .*line 2") as wrong:
        load_with(file="port = 1\nhost = localhost\n")

    assert str(config / "config.toml") in str(wrong.value)


def test_a_file_that_cannot_be_read_is_named(config: Path) -> None:
    (config / "config.toml").mkdir()

    with pytest.raises(SettingsError, match=r"config\.toml: cannot be read: "):
        load({"config_dir": config}, {})


def test_a_file_that_is_not_text_is_named(config: Path) -> None:
    (config / "config.toml").write_bytes(b"port = 1 # \xff")

    with pytest.raises(SettingsError, match=r"config\.toml: is not UTF-8"):
        load({"config_dir": config}, {})


@pytest.mark.parametrize("name", ["agents_file", "permissions_file"])
def test_a_file_that_you_name_must_be_there(load_with: Load, config: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=rf"^--{name.replace('_', '-')}: no readable file at "):
        load_with(**{name: config / "none.toml"})
    with pytest.raises(SettingsError, match="no readable file at "):
        load_with(**{name: config})


def test_an_unknown_variable_of_ours_gets_a_warning_and_others_none(load_with: Load) -> None:
    environ = {
        "SANDBOX_AGENT_PROT": "secret-value",
        "SANDBOX_AGENT_ACP_REGISTRY_URL": "x",
        "SANDBOX_AGENT_OWNER": "x",
        "PORT": "x",
    }

    (warning,) = load_with(environ).warnings

    assert warning == "the environment variable SANDBOX_AGENT_PROT is unknown; did you mean SANDBOX_AGENT_PORT?"


# --- the token --------------------------------------------------------------------------------------------------------


def test_without_a_token_one_is_generated_anew_each_time(load_with: Load) -> None:
    first, second = load_with(), load_with()

    assert first.token_generated
    assert len(first.token or "") >= 43
    assert first.token != second.token


def test_a_token_of_your_own_is_not_rotated(load_with: Load) -> None:
    assert load_with(rotate_token=True).token_generated
    with pytest.raises(SettingsError, match=r"--rotate-token: the token is yours \(--token\); change it there"):
        load_with(token="t0ken", rotate_token=True)


def test_a_token_can_be_given_as_flag_variable_key_and_file(load_with: Load, config: Path) -> None:
    (config / "token").write_text("\n t0ken~! \n")

    assert load_with(token="t0ken").token == "t0ken"
    assert load_with({"SANDBOX_AGENT_TOKEN": "t0ken"}).token == "t0ken"
    assert load_with(file='token = "t0ken"').token == "t0ken"
    assert load_with(token_file=config / "token").token == "t0ken~!"
    assert not load_with(token="t0ken").token_generated


def test_of_a_token_and_a_token_file_the_stronger_source_wins(load_with: Load, config: Path) -> None:
    (config / "token").write_text("filed")

    assert load_with({"SANDBOX_AGENT_TOKEN": "given"}, token_file=config / "token").token == "filed"
    assert load_with({"SANDBOX_AGENT_TOKEN_FILE": str(config / "token")}, token="given").token == "given"
    with pytest.raises(SettingsError, match="--token and --token-file both give a token"):
        load_with(token="given", token_file=config / "token")


@pytest.mark.parametrize("token", ["", " ", "two words", "tab\t", "line\n", "ümlaut", "nul\0", "del\x7f"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_repeated(load_with: Load, token: str) -> None:
    with pytest.raises(SettingsError) as wrong:
        load_with(token=token)

    assert str(wrong.value) == "--token: expected printable ASCII characters without spaces"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b" \n", "is empty"),
        (b"\xff\xfe", "is not text"),
        (b"two words", "expected printable ASCII"),
        (None, "No such file"),
    ],
)
def test_a_token_file_must_hold_a_token(load_with: Load, config: Path, content: bytes | None, complaint: str) -> None:
    path = config / "token"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(SettingsError, match=complaint) as wrong:
        load_with(token_file=path)

    assert str(wrong.value).startswith("--token-file: ")
    assert str(path) in str(wrong.value)
    assert "two words" not in str(wrong.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_no_token_serves_loopback(load_with: Load, host: str) -> None:
    settings = load_with(no_token=True, host=host)

    assert (settings.token, settings.token_generated) == (None, False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "box.example", "127.1", "localhost.example"])
def test_no_token_refuses_other_addresses_unless_it_is_called_insecure(load_with: Load, host: str) -> None:
    with pytest.raises(SettingsError, match="--no-token: without a token only a loopback address") as wrong:
        load_with(no_token=True, host=host)

    assert host in str(wrong.value)
    assert load_with(no_token=True, host=host, insecure=True).token is None
    assert not is_loopback(host)


def test_no_token_and_a_token_contradict_each_other_wherever_they_stand(load_with: Load, config: Path) -> None:
    with pytest.raises(SettingsError, match="--no-token and --token contradict each other"):
        load_with(no_token=True, token="t0ken")
    with pytest.raises(SettingsError, match="--no-token and SANDBOX_AGENT_TOKEN contradict each other"):
        load_with({"SANDBOX_AGENT_TOKEN": "t0ken"}, no_token=True)
    with pytest.raises(SettingsError, match="SANDBOX_AGENT_NO_TOKEN and --token-file contradict each other"):
        load_with({"SANDBOX_AGENT_NO_TOKEN": "1"}, token_file=config / "token")


def test_no_token_turned_off_is_no_contradiction(load_with: Load) -> None:
    assert load_with({"SANDBOX_AGENT_NO_TOKEN": "0"}, token="t0ken").token == "t0ken"


def test_the_token_is_not_in_the_representation(load_with: Load) -> None:
    settings = load_with(token="t0ken-of-mine")

    assert "t0ken-of-mine" not in repr(settings)
    assert "2468" in repr(settings)


# --- the table --------------------------------------------------------------------------------------------------------


def test_every_option_has_one_line_of_help_that_is_a_sentence() -> None:
    for option in OPTIONS:
        assert option.text[0].isupper(), option
        assert option.text.endswith("."), option
        assert "\n" not in option.text, option


def test_the_table_names_each_option_in_every_place() -> None:
    options = {option.name: option for option in OPTIONS}

    assert (options["max_body"].flag, options["max_body"].variable) == ("--max-body", "SANDBOX_AGENT_MAX_BODY")
    assert (options["max_body"].kind.metavar, options["no_persist"].kind.metavar) == ("SIZE", "")
    assert options["log_max_bytes"].default == "1GiB, or 64MiB with --no-persist"
    assert len(options) == len(OPTIONS)


def test_every_option_has_a_value_that_its_kind_can_read(load_with: Load) -> None:
    settings = load_with()

    assert {option.name for option in OPTIONS if getattr(settings, option.name) is None} == {
        *("idle_exit", "token_file", "max_file", "default_agent", "creds", "join_proxy")
    }


def test_settings_do_not_change(load_with: Load) -> None:
    settings = load_with()

    with pytest.raises(AttributeError):
        settings.port = 1  # type: ignore[assignment]
    assert (settings.changed(port=1).port, settings.port) == (1, 2468)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (["top"], 1),
        (["agents"], 3),
        (["agents", "echo"], 3),
        (["agents", "echo", "title"], 4),
        (["agents", "a.b"], 6),
        (["agents", "a.b", "env", "X"], 8),
        (["agents", "c", "title"], 10),
        (["agents", "d", "title"], 11),
        (["missing"], 1),
    ],
)
def test_the_line_of_a_key_is_found_however_its_table_is_written(path: list[str], line: int) -> None:
    text = (
        'top = 1\n# title = "no"\n[agents.echo]\n  title = "x" # = y\n\n[agents."a.b"]\ntitle = "y"\nenv.X = "z"\n'
        '[agents]\nc.title = "x"\nd = { title = "x" }\n'
    )

    assert line_of(text, path) == line


def test_without_the_file_the_rest_counts_however_wrong_the_file_is(config: Path) -> None:
    (config / "config.toml").write_text("nonsense")

    settings = load({"config_dir": config, "port": "1"}, {"SANDBOX_AGENT_HOST": "localhost"}, file=False)

    assert (settings.config_dir, settings.port, settings.host) == (config, 1, "localhost")


def test_none_turns_the_time_to_answer_off_and_nothing_else(load_with: Load) -> None:
    assert load_with(permission_timeout="none").permission_timeout is None
    assert load_with({}, 'permission_timeout = "none"').permission_timeout is None
    assert load_with(permission_timeout="2d").permission_timeout == 2 * 86400
    with pytest.raises(SettingsError, match="or none"):
        load_with(permission_timeout="never")
    with pytest.raises(SettingsError):
        load_with(request_timeout="none")
