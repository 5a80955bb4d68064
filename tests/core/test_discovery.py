"""What a server writes about itself, what is believed of that, and which server a program finds."""

import os
import tempfile
from pathlib import Path

import msgspec
import pytest

from sandboxagent.core.data_directory import LOCK, find_lock_owner, lock_directory
from sandboxagent.core.discovery import (
    RECORD,
    USUAL_SERVER,
    USUAL_URL,
    ServerRecord,
    find_server,
    read_server_record,
    write_server_record,
)
from sandboxagent.core.process_id import read_process
from sandboxagent.protocol.errors import SettingsError


def mine(**changes: object) -> ServerRecord:
    process = read_process(os.getpid())
    assert process is not None
    about = ServerRecord(os.getpid(), process.start, "http://127.0.0.1:1", "1", "2026-01-31T12:00:00.000Z", None, False)
    return msgspec.structs.replace(about, **changes)


def leave(directory: Path, about: ServerRecord) -> None:
    (directory / RECORD).write_bytes(msgspec.json.encode(about))


def test_record_of_a_server_is_there_as_long_as_it_runs(tmp_path: Path) -> None:
    with lock_directory(tmp_path):
        assert read_server_record(tmp_path) is None
        with write_server_record(tmp_path, mine()):
            assert read_server_record(tmp_path) == mine()
            assert (tmp_path / RECORD).stat().st_mode & 0o777 == 0o600
        assert read_server_record(tmp_path) is None
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_what_a_crash_has_left_is_not_believed(tmp_path: Path) -> None:
    leave(tmp_path, mine())
    # No process holds the directory.
    (tmp_path / LOCK).write_text(str(os.getpid()))
    assert read_server_record(tmp_path) is None
    with lock_directory(tmp_path):
        # A process does, and the rest is true.
        assert read_server_record(tmp_path) is not None
        # Another one has left it, or one who had the same process id.
        for change in ({"pid": 1}, {"process_start": 1}):
            leave(tmp_path, mine(**change))
            assert read_server_record(tmp_path) is None
        for content in (b"", b"{}", b"\xff", b"[1]"):
            (tmp_path / RECORD).write_bytes(content)
            assert read_server_record(tmp_path) is None


def test_a_record_that_cannot_be_written_is_no_reason_to_end(tmp_path: Path) -> None:
    (tmp_path / RECORD).mkdir()
    with lock_directory(tmp_path), write_server_record(tmp_path, mine()):
        assert read_server_record(tmp_path) is None


def test_links_in_place_of_server_records_are_replaced_and_not_followed(tmp_path: Path) -> None:
    """Both the record and the file that becomes the record are replaced."""
    precious, data = tmp_path / "precious", tmp_path / "data"
    precious.write_text("precious")
    data.mkdir()
    for name in (RECORD, "server.new"):
        (data / name).symlink_to(precious)

    with lock_directory(data), write_server_record(data, mine()):
        assert read_server_record(data) == mine()

    assert precious.read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_record_of_another_user_names_no_secret_of_ours(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_text("our-secret")
    theirs.write_text("their-token")
    os.chown(theirs, 12345, 12345)

    def believed(secret: Path) -> ServerRecord | None:
        leave(tmp_path, mine(needs_token=True, token_file=str(secret)))
        os.chown(tmp_path / RECORD, 12345, 12345)
        return read_server_record(tmp_path)

    with lock_directory(tmp_path):
        to_root = believed(ours)
        assert to_root is not None
        assert (to_root.token_file, to_root.read_token()) == (None, None)
        own = believed(theirs)
        assert own is not None
        assert own.read_token() == "their-token"
        for path in (tmp_path, *tmp_path.parents):
            if path.is_relative_to(tempfile.gettempdir()) and path != Path(tempfile.gettempdir()):
                path.chmod(0o755)
        (tmp_path / LOCK).chmod(0o644)
        os.seteuid(54321)
        try:
            assert find_lock_owner(tmp_path) == os.getpid()
            assert read_server_record(tmp_path) is None
        finally:
            os.seteuid(0)


# --- finding a server -------------------------------------------------------------------------------------------------


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """That of a user who has this data directory, and nothing else."""
    return {"SANDBOX_AGENT_CONFIG_DIR": str(tmp_path), "SANDBOX_AGENT_DATA_DIR": str(tmp_path)}


def test_server_is_found_by_flag_then_variable_then_record_then_usual_port(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / "token-2468").write_text("of-the-port")
    variable = {**environ, "SANDBOX_AGENT_ENDPOINT": "http://b/"}

    def found(flags: dict[str, object], environ: dict[str, str]) -> tuple[str, str]:
        server = find_server(flags, environ)
        assert server is not None
        return server.url, server.source

    with lock_directory(tmp_path), write_server_record(tmp_path, mine()):
        assert found({"endpoint": "http://a"}, variable) == ("http://a", "flag")
        assert found({"endpoint": None}, variable) == ("http://b", "environment")
        assert found({}, environ) == ("http://127.0.0.1:1", "record")
    assert found({}, environ) == (USUAL_URL, "usual port")


def test_without_a_record_and_a_token_no_server_is_found(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "token").write_text("of the next server here, which whoever listens at the usual port must not get")

    assert find_server({}, environ) is None
    assert USUAL_SERVER.token is None


def test_a_programs_own_server_is_not_found(tmp_path: Path, environ: dict[str, str]) -> None:
    with lock_directory(tmp_path), write_server_record(tmp_path, mine(embedded=True)):
        assert find_server({}, environ) is None


def test_token_is_that_of_a_flag_then_the_servers_own_then_a_given_one(tmp_path: Path, environ: dict[str, str]) -> None:
    own = tmp_path / "own"
    (tmp_path / "config.toml").write_text('token = "configured"')
    variable = {**environ, "SANDBOX_AGENT_TOKEN": "of-the-environment"}

    def found(flags: dict[str, object], environ: dict[str, str]) -> tuple[str | None, str | None]:
        server = find_server(flags, environ)
        assert server is not None
        return server.token, server.token_source

    with lock_directory(tmp_path):
        with write_server_record(tmp_path, mine(needs_token=True, token_file=str(own))):
            assert found({}, environ) == ("configured", "config.toml")
            assert found({}, variable) == ("of-the-environment", "SANDBOX_AGENT_TOKEN")
            own.write_text("own")
            assert found({}, variable) == ("own", "the data directory")
            assert found({"token": "of-a-flag"}, variable) == ("of-a-flag", "--token")
        with write_server_record(tmp_path, mine()):
            assert found({}, variable) == (None, None), "it needs none"
    assert found({}, environ) == ("configured", "config.toml")
    assert found({"token_file": str(own)}, variable) == ("own", "--token-file")


def test_a_server_that_is_named_here_gets_the_token_that_is_kept_for_its_port(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    own = tmp_path / "own"
    own.write_text("own")
    (tmp_path / "token-7").write_text("of-port-7")

    def token(url: str) -> str | None:
        server = find_server({"endpoint": url}, environ)
        assert server is not None
        return server.token

    with lock_directory(tmp_path), write_server_record(tmp_path, mine(needs_token=True, token_file=str(own))):
        assert token("http://127.0.0.1:1") == "own"
        assert token("http://127.0.0.1:7") == "of-port-7"
        assert token("http://127.0.0.1:8") is None


def test_another_machine_gets_no_token_that_was_not_meant_for_it(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "token").write_text("of-this-machine")
    (tmp_path / "config.toml").write_text('token = "of-this-machine"')

    def token(url: str, **more: str) -> str | None:
        server = find_server({"endpoint": url}, {**environ, **more})
        assert server is not None
        return server.token

    assert token("http://127.0.0.1:2468") == token("http://[::1]:1") == token("http://localhost") == "of-this-machine"
    assert token("http://box.example:2468") is None
    assert token("http://127.0.0.1.example:2468") is None
    assert token("https://box.example", SANDBOX_AGENT_TOKEN="theirs") == "theirs"
    assert "theirs" not in repr(find_server({}, {**environ, "SANDBOX_AGENT_TOKEN": "theirs"}))


@pytest.mark.parametrize(
    "url", ["box", "box:2468", "ftp://box", "http://", "http://box:x", "http://a:b@box", "http://box?x=1"]
)
def test_what_is_no_address_is_a_mistake(url: str) -> None:
    with pytest.raises(SettingsError, match="--endpoint: expected an address such as"):
        find_server({"endpoint": url}, {})


def test_settings_that_mean_nothing_are_told(environ: dict[str, str]) -> None:
    told: list[str] = []

    find_server({}, {**environ, "SANDBOX_AGENT_TOKN": "x"}, told.append)

    assert told == ["the environment variable SANDBOX_AGENT_TOKN is unknown; did you mean SANDBOX_AGENT_TOKEN?"]
