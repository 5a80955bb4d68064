"""The lock of a data directory, the token in it, and what is refused there."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxagent.core.archives.remove import discard
from sandboxagent.core.data_directory import (
    LOCK,
    DirectoryLocked,
    Untrusted,
    check_content,
    check_owner,
    find_leftovers,
    find_lock_owner,
    keep_token,
    lock_directory,
    make_temporary,
)

LOOKING = """
import sys
from pathlib import Path
from sandboxagent.core.data_directory import find_lock_owner
while True:
    find_lock_owner(Path(sys.argv[1]))
"""


def test_it_is_held_by_one_at_a_time_who_is_named(tmp_path: Path) -> None:
    assert find_lock_owner(tmp_path) is None
    with lock_directory(tmp_path):
        assert find_lock_owner(tmp_path) == os.getpid()
        with pytest.raises(DirectoryLocked) as refused, lock_directory(tmp_path):
            pass
        assert refused.value.pid == os.getpid()
    assert find_lock_owner(tmp_path) is None
    with lock_directory(tmp_path):
        assert find_lock_owner(tmp_path) == os.getpid()


def test_looking_does_not_keep_a_server_from_taking_it(tmp_path: Path) -> None:
    (tmp_path / LOCK).touch()
    process = subprocess.Popen([sys.executable, "-c", LOOKING, str(tmp_path)])
    try:
        for _ in range(200):
            with lock_directory(tmp_path):
                pass
    finally:
        process.kill()
        process.wait()


def test_a_lock_without_a_number_is_held(tmp_path: Path) -> None:
    with lock_directory(tmp_path):
        (tmp_path / LOCK).write_text("")
        assert find_lock_owner(tmp_path) == 0


# Links and other users


@pytest.mark.requirement("11.data-directory-trust")
@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symlink", "hard link"])
def test_a_lock_that_is_a_link_is_refused_and_what_it_leads_to_stays(
    tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    precious, data = tmp_path / "precious", tmp_path / "data"
    precious.write_text("precious")
    data.mkdir()
    link(precious, data / LOCK)

    with pytest.raises((Untrusted, OSError)), lock_directory(data):
        pass

    assert precious.read_text() == "precious"


def test_a_lock_that_another_server_holds_keeps_its_content(tmp_path: Path) -> None:
    with lock_directory(tmp_path):
        with pytest.raises(DirectoryLocked), lock_directory(tmp_path):
            pass
        assert (tmp_path / LOCK).read_text() == str(os.getpid())


def test_a_lock_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK)

    assert find_lock_owner(tmp_path) is None
    with pytest.raises(Untrusted), lock_directory(tmp_path):
        pass


@pytest.mark.parametrize("name", ["log.db", "log.db-wal", "log.db.witness"])
@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symlink", "hard link"])
def test_a_link_in_place_of_a_file_of_the_log_is_refused(
    tmp_path: Path, name: str, link: Callable[[Path, Path], None]
) -> None:
    precious, data = tmp_path / "precious", tmp_path / "data"
    precious.write_text("precious")
    data.mkdir()
    link(precious, data / name)

    with pytest.raises(Untrusted, match=name):
        check_content(data, [name], [])


def test_a_link_in_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "logs").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(Untrusted, match="logs"):
        check_content(tmp_path, [], ["logs"])


@pytest.mark.requirement("11.data-directory-trust")
def test_a_world_writable_directory_is_refused_with_what_to_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)

    with pytest.raises(Untrusted, match="chmod"):
        check_owner(tmp_path)


def test_a_directory_that_ones_own_group_can_write_is_used_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o775)

    check_owner(tmp_path)

    assert caplog.records == []


@pytest.mark.requirement("11.data-directory-trust")
@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_directory_of_another_user_is_refused_and_root_is_only_warned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.chown(tmp_path, 12345, 12345)

    check_owner(tmp_path)

    assert "another user" in caplog.text
    for above in tmp_path.parents:
        if above.is_relative_to(tempfile.gettempdir()) and above != Path(tempfile.gettempdir()):
            above.chmod(0o755)
    os.seteuid(54321)
    try:
        with pytest.raises(Untrusted, match="12345"):
            check_owner(tmp_path)
    finally:
        os.seteuid(0)


def test_a_temporary_directory_that_is_a_link_is_never_swept(tmp_path: Path) -> None:
    with make_temporary(discard) as directory:
        (directory / LOCK).write_text("1")
        link = directory.with_name(directory.name + "-link")
        link.symlink_to(directory)
        try:
            assert directory in find_leftovers()
            assert link not in find_leftovers()
        finally:
            link.unlink()


# --- the token --------------------------------------------------------------------------------------------------------


def test_a_token_is_kept_for_its_user_alone_and_used_again(tmp_path: Path) -> None:
    path = tmp_path / "token"

    assert keep_token(path, "first") == "first"
    assert path.stat().st_mode & 0o777 == 0o600
    assert keep_token(path, "second") == "first"
    assert keep_token(path, "second", rotate=True) == "second"
    assert path.read_text() == "second\n"


@pytest.mark.parametrize("content", ["", "two words", "\0", "ümlaut", "x" * 5000])
def test_what_is_no_token_is_replaced(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(0o600)

    assert keep_token(path, "new") == "new"


def test_a_token_that_others_could_read_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "token"
    path.write_text("seen")
    path.chmod(0o640)

    assert keep_token(path, "new") == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert "other users could read the token" in caplog.text
    assert "seen" not in caplog.text


def test_a_link_to_a_token_is_replaced_and_not_followed(tmp_path: Path) -> None:
    path, target = tmp_path / "token", tmp_path / "target"
    target.write_text("theirs")
    target.chmod(0o600)
    path.symlink_to(target)

    assert keep_token(path, "new") == "new"
    assert not path.is_symlink()
    assert target.read_text() == "theirs"
