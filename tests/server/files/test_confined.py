"""Paths beneath directories, under attack: contract, section 5 (an agent's files are those of its session)."""

import errno
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

from sandboxagent.server.files.confined import MAX_LINKS, Confined, Outside
from sandboxagent.server.files.descriptors import NotAFile
from tests.support.running import BOUND

ROUNDS = 3000


def rounds(seen: set[object], wanted: set[object]) -> Generator[int]:
    """So many, and then more until both sides of a swap were seen; a thread may wait long for its turn."""
    ends_at = time.monotonic() + BOUND / 2
    for number in count():
        if number >= ROUNDS and (wanted <= seen or time.monotonic() > ends_at):
            return
        yield number


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("inside")
    return root


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("secret")
    return outside


@pytest.fixture
def confined(root: Path) -> Confined:
    return Confined([str(root)])


def content(confined: Confined, path: object) -> str:
    with confined.open(str(path)) as file:
        return file.read().decode()


def write(confined: Confined, path: object, text: str, *, parents: bool = False) -> None:
    with confined.replace(str(path), parents=parents) as file:
        file.write(text.encode())


@pytest.fixture(autouse=True)
def no_descriptor_stays_open() -> Generator[None]:
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert sorted(os.listdir("/proc/self/fd")) == before


# Where a path leads


@pytest.mark.parametrize("spelling", ["file", "./file", "sub/../file", "sub/./../file", "//file", "sub//..//file"])
def test_a_path_inside_is_opened_however_it_is_spelled(confined: Confined, root: Path, spelling: str) -> None:
    (root / "sub").mkdir()
    assert content(confined, f"{root}/{spelling}") == "inside"


@pytest.mark.parametrize(
    "spelling",
    [
        "../outside/file",
        "sub/../../outside/file",
        "sub/../../../../../../../../etc/passwd",
        "../root/file",
        "../rootling/file",
        "..",
    ],
)
def test_dots_that_lead_out_are_refused_also_when_they_come_back(
    confined: Confined, root: Path, outside: Path, spelling: str
) -> None:
    (root / "sub").mkdir()
    with pytest.raises(Outside) as refused:
        confined.open(f"{root}/{spelling}")
    assert refused.value.errno == errno.EXDEV
    assert refused.value.filename == f"{root}/{spelling}"
    with pytest.raises(Outside), confined.replace(f"{root}/{spelling}"):
        pass


def test_a_sibling_whose_name_begins_the_same_is_outside(confined: Confined, root: Path) -> None:
    sibling = root.with_name("rootling")
    sibling.mkdir()
    (sibling / "file").write_text("secret")
    with pytest.raises(Outside):
        confined.open(str(sibling / "file"))


@pytest.mark.parametrize("path", ["/", "/etc/passwd", "/proc/self/environ", "/dev/null", "/proc/self/root/etc/passwd"])
def test_an_absolute_path_elsewhere_is_outside(confined: Confined, path: str) -> None:
    with pytest.raises(Outside):
        confined.open(path)
    with pytest.raises(Outside), confined.replace(path):
        pass


@pytest.mark.parametrize("path", ["", "file", "./file", "../file", "~/file"])
def test_a_relative_path_is_refused(confined: Confined, path: str) -> None:
    with pytest.raises(OSError, match="absolute") as refused:
        confined.open(path)
    assert refused.value.errno == errno.EINVAL


@pytest.mark.parametrize("name", ["a\0b", "\0", "a\ud800"])
def test_a_name_that_no_file_can_have_is_refused(confined: Confined, root: Path, name: str) -> None:
    with pytest.raises(OSError) as refused:  # noqa: PT011 - the number says it
        confined.open(f"{root}/{name}")
    assert refused.value.errno == errno.EINVAL


def test_names_of_255_bytes_are_names_and_longer_ones_are_not(confined: Confined, root: Path) -> None:
    longest = "ä" * 127 + "x"
    write(confined, root / longest, "long")
    assert content(confined, root / longest) == "long"
    for path in (f"{root}/{longest}y", f"{root}/" + "a/" * 3000):
        with pytest.raises(OSError) as refused:  # noqa: PT011
            confined.open(path)
        assert refused.value.errno == errno.ENAMETOOLONG
        assert refused.value.filename == path


def test_unusable_path_raises_the_error_of_the_system(confined: Confined, root: Path) -> None:
    """The paths are a directory, a missing file, and a file used as a directory."""
    for path, error in [
        (root, IsADirectoryError),
        (f"{root}/", IsADirectoryError),
        (root / "missing", FileNotFoundError),
        (root / "missing" / "deeper", FileNotFoundError),
        (root / "file" / "deeper", NotADirectoryError),
        (f"{root}/file/", NotADirectoryError),
    ]:
        with pytest.raises(error) as refused:
            confined.open(str(path))
        assert refused.value.filename == str(path)


def test_directories_may_be_links_and_are_known_by_both_names(tmp_path: Path, root: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(root)
    confined = Confined([str(link)])
    assert content(confined, link / "file") == content(confined, root / "file") == "inside"


def test_several_directories_are_one_inside_and_links_lead_from_one_to_another(root: Path, outside: Path) -> None:
    confined = Confined([str(root), str(outside)])
    (root / "link").symlink_to(outside / "file")
    assert content(confined, root / "link") == content(confined, outside / "file") == "secret"


def test_a_directory_inside_another_does_not_hide_it(root: Path) -> None:
    (root / "sub").mkdir()
    confined = Confined([str(root), str(root / "sub")])
    assert content(confined, f"{root}/sub/../file") == "inside"


def test_the_whole_file_system_may_be_the_directory() -> None:
    confined = Confined(["/"])
    assert content(confined, "/proc/self/status").startswith("Name:")
    assert content(confined, "/../../proc/self/status").startswith("Name:")
    with pytest.raises(NotAFile):
        confined.open("/dev/null")


# Links


@pytest.mark.parametrize("target", ["file", "./file", "sub/../file", "{root}/file", "sub/up", "{root}/sub/up"])
def test_links_inside_are_followed(confined: Confined, root: Path, target: str) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "up").symlink_to("../file")
    (root / "link").symlink_to(target.format(root=root))
    assert content(confined, root / "link") == "inside"


@pytest.mark.parametrize(
    "target",
    ["../outside/file", "{outside}/file", "/etc/passwd", "/proc/self/root{outside}/file", "sub/out/file", "/"],
)
def test_links_that_lead_out_are_refused(confined: Confined, root: Path, outside: Path, target: str) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "out").symlink_to(outside)
    (root / "link").symlink_to(target.format(outside=outside))
    with pytest.raises(Outside):
        confined.open(str(root / "link"))
    with pytest.raises(Outside), confined.replace(str(root / "link")) as file:
        file.write(b"overwritten")
    with pytest.raises(Outside):
        confined.open_directory(str(root / "sub" / "out"))
    assert (outside / "file").read_text() == "secret"


def test_links_of_proc_are_not_followed_by_the_kernel(root: Path, outside: Path) -> None:
    """/proc/self/cwd and /proc/self/fd/3 jump anywhere; here they are the text that they show."""
    descriptor = os.open(outside, os.O_RDONLY)
    try:
        confined = Confined([str(root), "/proc"])
        for path in (f"/proc/self/fd/{descriptor}/file", f"/proc/self/root{outside}/file"):
            with pytest.raises(Outside):
                confined.open(path)
        (root / "jump").symlink_to(f"/proc/self/fd/{descriptor}/file")
        with pytest.raises(Outside):
            confined.open(str(root / "jump"))
    finally:
        os.close(descriptor)


def test_links_in_a_circle_end(confined: Confined, root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    (root / "deeper").symlink_to("deeper/deeper")
    (root / "chain0").symlink_to("file")
    for index in range(MAX_LINKS + 1):
        (root / f"chain{index + 1}").symlink_to(f"chain{index}")
    for name in ("a", "deeper", f"chain{MAX_LINKS + 1}"):
        with pytest.raises(OSError) as refused:  # noqa: PT011
            confined.open(str(root / name))
        assert refused.value.errno == errno.ELOOP
    assert content(confined, root / f"chain{MAX_LINKS - 1}") == "inside"


def test_a_walk_that_goes_up_and_down_for_ever_ends(confined: Confined, root: Path) -> None:
    (root / "sub").mkdir()
    for index in range(40):
        (root / f"again{index}").symlink_to("sub/../" * 500 + f"again{index + 1}")
    with pytest.raises(OSError) as refused:  # noqa: PT011
        confined.open(str(root / "again0"))
    assert refused.value.errno == errno.ELOOP


def test_writing_a_hard_link_leaves_its_other_names_alone(confined: Confined, root: Path, outside: Path) -> None:
    (root / "hard").hardlink_to(outside / "file")
    assert content(confined, root / "hard") == "secret"
    write(confined, root / "hard", "changed")
    assert (root / "hard").read_text() == "changed"
    assert (outside / "file").read_text() == "secret"


# Not files


def test_what_is_no_regular_file_is_refused_at_once(confined: Confined, root: Path) -> None:
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
        for name in ("fifo", "socket"):
            with pytest.raises(NotAFile), bounded(lambda name=name: confined.open(str(root / name))):
                pass
            with pytest.raises(NotAFile), confined.replace(str(root / name)):
                pass
            assert not stat.S_ISREG((root / name).stat().st_mode)


@contextmanager
def bounded(action: Callable[[], object]) -> Generator[None]:
    """Run something that might block in a thread; raises what it raises, and fails when it does not come back."""
    outcome: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(BOUND)
    assert not thread.is_alive(), "it blocks"
    if outcome:
        raise outcome[0]
    yield


def test_a_file_that_has_nothing_to_say_yet_does_not_block() -> None:
    """/proc/kmsg is a regular file to look at, and waits for the kernel's next line when it is read."""
    try:
        with Confined(["/proc"]).open("/proc/kmsg") as file, bounded(lambda: file.read(1)):
            pass
    except PermissionError:
        pytest.skip("only root may read it")


# Replacing


def test_a_new_file_has_the_usual_mode_and_an_old_one_keeps_its_own(confined: Confined, root: Path) -> None:
    (root / "plain").write_text("")
    write(confined, root / "new", "new")
    assert (root / "new").stat().st_mode == (root / "plain").stat().st_mode
    for mode in (0o600, 0o755, 0o640):
        (root / "file").chmod(mode)
        write(confined, root / "file", "again")
        assert stat.S_IMODE((root / "file").stat().st_mode) == mode
    (root / "file").chmod(0o4755)
    write(confined, root / "file", "again")
    assert stat.S_IMODE((root / "file").stat().st_mode) == 0o755


def test_the_owner_stays_where_that_is_possible(confined: Confined, root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a file away")
    os.chown(root / "file", 4711, 4712)
    write(confined, root / "file", "again")
    assert ((root / "file").stat().st_uid, (root / "file").stat().st_gid) == (4711, 4712)


def test_a_replacement_is_seen_whole_or_not_at_all(confined: Confined, root: Path) -> None:
    with confined.replace(str(root / "file")) as file:
        file.write(b"half")
        assert (root / "file").read_text() == "inside"
    assert (root / "file").read_text() == "half"
    with suppress(ZeroDivisionError), confined.replace(str(root / "file")) as file:
        file.write(b"never")
        file.write(bytes(1 // 0))
    assert (root / "file").read_text() == "half"
    assert os.listdir(root) == ["file"]


def test_a_link_stays_a_link_and_its_target_is_replaced(confined: Confined, root: Path) -> None:
    (root / "link").symlink_to("file")
    (root / "dangling").symlink_to("sub/made")
    write(confined, root / "link", "through")
    write(confined, root / "dangling", "made", parents=True)
    assert (root / "link").is_symlink()
    assert (root / "file").read_text() == "through"
    assert (root / "sub" / "made").read_text() == "made"


def test_parents_are_made_when_asked_and_never_outside(confined: Confined, root: Path, outside: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write(confined, root / "a" / "b" / "new", "text")
    write(confined, root / "a" / "b" / "new", "text", parents=True)
    assert (root / "a" / "b" / "new").read_text() == "text"
    (root / "out").symlink_to(outside)
    for path in (root / "out" / "a" / "new", f"{root}/x/../../outside/a/new"):
        with pytest.raises(Outside):
            write(confined, path, "text", parents=True)
    assert os.listdir(outside) == ["file"]


@pytest.mark.parametrize("path", ["", "/", "/new/", "/sub", "/sub/", "/file/"])
def test_a_directory_is_not_replaced(confined: Confined, root: Path, path: str) -> None:
    (root / "sub").mkdir()
    with pytest.raises((IsADirectoryError, NotADirectoryError)):
        write(confined, f"{root}{path}", "text", parents=True)
    assert (root / "file").read_text() == "inside"


def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path: Path, root: Path) -> None:
    (root / "file").chmod(0o444)
    if os.geteuid() == 0:
        pytest.skip("root may write everything")
    with pytest.raises(PermissionError):
        write(Confined([str(root)]), root / "file", "text")


# Races


@contextmanager
def swapping(*changes: Callable[[], None]) -> Generator[None]:
    """An attacker who changes the tree all the time."""
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for change in changes:
                change()

    thread = threading.Thread(target=swap, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(BOUND)


def relink(link: Path, target: object) -> Callable[[], None]:
    """Put a link in place, atomically."""

    def change() -> None:
        spare = link.with_name(".spare")
        spare.symlink_to(str(target))
        spare.replace(link)

    return change


def exchange(one: Path, other: Path) -> Callable[[], None]:
    """Let a directory and a link to elsewhere change places."""
    spare = one.with_name(".spare")

    def change() -> None:
        one.rename(spare)
        other.rename(one)
        spare.rename(other)

    return change


def test_a_last_name_that_is_swapped_for_a_link_never_leads_out(confined: Confined, root: Path, outside: Path) -> None:
    (root / "inner").write_text("inside")
    swapped = root / "swapped"
    seen: set[object] = set()
    with swapping(relink(swapped, root / "inner"), relink(swapped, outside / "file"), relink(swapped, "inner")):
        for _ in rounds(seen, {"inside", Outside}):
            try:
                seen.add(content(confined, swapped))
            except (Outside, FileNotFoundError) as error:
                seen.add(type(error))
    assert seen <= {"inside", Outside, FileNotFoundError}
    assert {"inside", Outside} <= seen, "nothing was swapped while we looked"


def test_a_directory_that_is_swapped_for_a_link_never_leads_out(confined: Confined, root: Path, outside: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "file").write_text("inside")
    (root / "evil").symlink_to(outside)
    seen: set[object] = set()
    with swapping(exchange(root / "sub", root / "evil")):
        for turn in rounds(seen, {"inside", Outside}):
            path = root / "sub" / ("file" if turn % 2 else "../sub/file")
            try:
                seen.add(content(confined, path))
                write(confined, root / "sub" / "new", "new")
            except (Outside, FileNotFoundError) as error:
                seen.add(type(error))
    assert seen <= {"inside", Outside, FileNotFoundError}
    assert {"inside", Outside} <= seen, "nothing was swapped while we looked"
    assert os.listdir(outside) == ["file"]
    assert (outside / "file").read_text() == "secret"


def test_parents_that_are_swapped_while_they_are_made_are_never_made_outside(
    confined: Confined, root: Path, outside: Path
) -> None:
    made = root / "made"

    def away() -> None:
        if made.is_symlink():
            made.unlink()
        else:
            made.rename(root / f".old{next(numbers)}")

    numbers = count()

    def link() -> None:
        made.symlink_to(outside)

    def tolerant(change: Callable[[], None]) -> Callable[[], None]:
        def changed() -> None:
            # The other side may be faster.
            with suppress(OSError):
                change()

        return changed

    with swapping(tolerant(away), tolerant(link), tolerant(away)):
        for _ in range(ROUNDS // 3):
            with suppress(OSError):
                write(confined, made / "deep" / "new", "text", parents=True)
    assert os.listdir(outside) == ["file"]


def test_a_file_that_is_swapped_for_a_fifo_does_not_block(confined: Confined, root: Path) -> None:
    os.mkfifo(root / "fifo")
    (root / "plain").write_text("inside")
    swapped = root / "swapped"
    (root / "plain").rename(swapped)
    seen: set[object] = set()

    def read() -> None:
        for _ in rounds(seen, {"inside", NotAFile}):
            try:
                seen.add(content(confined, swapped))
            except (NotAFile, FileNotFoundError) as error:
                seen.add(type(error))

    with swapping(exchange(swapped, root / "fifo")), bounded(read):
        pass
    assert seen <= {"inside", NotAFile, FileNotFoundError}
    assert {"inside", NotAFile} <= seen, "nothing was swapped while we looked"
