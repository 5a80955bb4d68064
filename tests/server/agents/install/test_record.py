"""What is installed, and where: in place at once, never half; nothing that is not ours is ever touched."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from sandboxagent.protocol.views import Artifact
from sandboxagent.server.agents.install.record import Record, Store
from sandboxagent.server.agents.install.tools import bundled_node
from sandboxagent.server.agents.launch import FolderLock
from sandboxagent.server.agents.manifest import Agent

LOCKER = """
import sys
from pathlib import Path
from sandboxagent.server.agents.install.record import Store
with Store(Path(sys.argv[1])).locked("it") as ours:
    print(ours, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "agents")


def agent(**more: object) -> Agent:
    facts = {"title": "It", "description": "", "source": "registry", "command": (), "env": {}, "registry": ("it",)}
    return Agent(id="it", **{**facts, **more})  # type: ignore[arg-type]


def record(folder: Path, version: str = "1.0.0", **more: object) -> Record:
    path = "{folder}/bin/it"
    made = Record(
        agent="it",
        folder=folder.name,
        title="It",
        description="",
        source="registry",
        version=version,
        command=("{node}", path, "acp"),
        env={"IT_HOME": "{folder}/home"},
        artifacts=[Artifact(kind="agent_process", name="it", version=version, path=path, source="registry")],
        installed_at="2026-01-01T00:00:00.000Z",
        verified_at="2026-01-01T00:00:00.000Z",
        platform="linux-x86_64",
        node="24.0.0",
        registry_slug="it",
    )
    return structs.replace(made, **more)


def installed(store: Store, version: str = "1.0.0") -> Record:
    """Do what an install does."""
    folder = store.begin("it")
    (folder / "bin").mkdir()
    (folder / "bin" / "it").write_text(version)
    made = record(folder, version)
    store.write(made)
    return store.commit(made)


def ids(store: Store) -> list[str]:
    return [record.agent for record in store.records()]


def folders(store: Store) -> list[str]:
    return sorted(path.name for path in (store.directory / "it").iterdir() if path.is_dir())


# --- reading ----------------------------------------------------------------------------------------------------------


def test_an_empty_or_missing_directory_has_nothing_installed(store: Store) -> None:
    assert (store.record("it"), ids(store)) == (None, [])
    store.directory.mkdir()
    assert (store.record("it"), ids(store)) == (None, [])


def test_what_is_committed_is_installed_for_everybody_who_looks(store: Store) -> None:
    made = installed(store)

    for other in (store, Store(store.directory)):
        assert other.record("it") == made
        assert ids(other) == ["it"]
    assert made.artifacts[0].path == str(store.folder(made) / "bin" / "it")


def test_another_servers_install_is_seen_at_once(store: Store) -> None:
    assert installed(store).version == "1.0.0"
    other = Store(store.directory)
    assert other.record("it") is not None

    for number in range(5):
        installed(store, f"2.0.{number}")
        found = other.record("it")
        assert found is not None
        assert found.version == f"2.0.{number}"


def test_nothing_is_installed_before_the_commit(store: Store) -> None:
    folder = store.begin("it")
    store.write(record(folder))

    assert store.record("it") is None
    assert ids(Store(store.directory)) == []


def test_an_installation_whose_folder_is_gone_is_none(store: Store) -> None:
    made = installed(store)
    (store.folder(made) / "bin" / "it").unlink()
    (store.folder(made) / "bin").rmdir()
    store.folder(made).rmdir()

    assert (store.record("it"), ids(store)) == (None, [])


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "null", "{}", '{"agent": "it"}', "\0" * 100),
        *('"agent": "other"', '"agent": "../it"', '"folder": ".."', '"folder": "../it/x"', '"folder": "/tmp"'),
        *('"artifacts": []', '"version": 3'),
    ],
)
def test_a_broken_record_counts_as_not_installed_and_the_next_install_mends_it(store: Store, content: str) -> None:
    made = installed(store)
    file = store.directory / "it" / "installed.json"
    if content.startswith('"'):
        changed = json.loads(file.read_text()) | json.loads("{" + content + "}")
        content = json.dumps(changed)
    file.write_text(content)

    assert (store.record("it"), ids(Store(store.directory))) == (None, [])
    store.clean("it")
    assert not store.folder(made).exists(), "no process can use it any more"
    assert installed(store, "2.0.0") == Store(store.directory).record("it")


def test_all_of_it_may_be_moved(store: Store, tmp_path: Path) -> None:
    made = installed(store)
    moved = Store(store.directory.rename(tmp_path / "elsewhere"))

    found = moved.record("it")

    assert found is not None
    assert found.artifacts[0].path == str(tmp_path / "elsewhere" / "it" / made.folder / "bin" / "it")
    assert moved.launch(found, agent(), {}).command[1] == found.artifacts[0].path


def test_other_things_in_the_directory_are_no_agents(store: Store) -> None:
    installed(store)
    for name in (".node", ".registry", "empty"):
        (store.directory / name).mkdir()
    (store.directory / "file").write_text("x")

    assert ids(store) == ["it"]


# --- starting ---------------------------------------------------------------------------------------------------------


def test_a_launch_has_the_places_filled_in_and_our_node_last_on_the_path(store: Store) -> None:
    made = installed(store)

    launch = store.launch(made, agent(), {"PATH": "/usr/bin"})

    folder = store.folder(made)
    assert launch.command == (str(bundled_node().program), f"{folder}/bin/it", "acp")
    assert launch.env == {"IT_HOME": f"{folder}/home", "PATH": f"/usr/bin:{store.directory}/.node"}
    assert launch.folder == folder


def test_what_the_user_says_of_the_environment_wins_over_the_record(store: Store) -> None:
    own = agent(env={"IT_HOME": "/mine", "PATH": "/my/bin"})

    launch = store.launch(installed(store), own, {"PATH": "/usr/bin"})

    assert launch.env == {"PATH": f"/my/bin:{store.directory}/.node"}, "the rest is the agent's own"


def test_a_record_is_of_what_the_agents_slugs_or_pins_mean_today(store: Store) -> None:
    made = installed(store)
    pinned = structs.replace(made, registry_slug=None, source="fallback")
    packages = {"packages": ("a package",)}

    assert made.is_of(agent())
    assert not made.is_of(agent(registry=("another",)))
    assert pinned.is_of(agent(**packages))
    assert not pinned.is_of(agent()), "its pins are gone: the user wants another slug"


# --- locks ------------------------------------------------------------------------------------------------------------


def test_one_at_a_time_has_the_lock_of_an_agent(store: Store) -> None:
    with store.locked("it") as first, store.locked("it") as second, store.locked("other") as another:
        assert (first, second, another) == (True, False, True)
    with store.locked("it") as again:
        assert again is True


def test_the_lock_holds_between_processes_and_ends_with_them(store: Store) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(store.directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        with store.locked("it") as ours:
            assert ours is False
        other.kill()

    with store.locked("it") as ours:
        assert ours is True


# --- cleaning ---------------------------------------------------------------------------------------------------------


def test_half_made_folders_and_predecessors_are_deleted_and_the_installation_stays(store: Store) -> None:
    first = installed(store)
    half = store.begin("it")
    (half / "half").write_text("x")
    second = installed(store, "2.0.0")
    (store.directory / "it" / "installed.new").write_text("{")

    store.clean("it")

    assert folders(store) == [second.folder]
    assert store.record("it") == second
    assert not store.folder(first).exists()
    assert sorted(os.listdir(store.directory / "it")) == sorted(["installed.json", second.folder])


def test_a_predecessor_that_still_runs_is_kept_until_it_has_ended(store: Store) -> None:
    first = installed(store)
    held = FolderLock(store.folder(first))
    second = installed(store, "2.0.0")

    store.clean("it")
    assert folders(store) == sorted([first.folder, second.folder])

    held.release()
    store.clean("it")
    assert folders(store) == [second.folder]


def test_a_removal_that_was_interrupted_is_finished(store: Store) -> None:
    made = installed(store)
    half = store.begin("it")
    (half / "deep" / "down").mkdir(parents=True)
    half.rename(half.with_name(f".removed-{half.name}"))

    store.remove_leftovers()

    assert folders(store) == [made.folder]


def test_no_depth_of_what_an_install_left_stops_a_sweep(store: Store) -> None:
    made = installed(store)
    # One that was cut off, and one whose removal was: both are deeper than recursion reaches.
    for half in (store.begin("it"), store.begin("other")):
        here = os.open(half, os.O_RDONLY)
        for _ in range(1500):
            os.mkdir("d", dir_fd=here)
            below = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(here)
    half.rename(half.with_name(f".removed-{half.name}"))

    store.remove_leftovers()

    assert folders(store) == [made.folder]
    assert not (store.directory / "other").exists()


def test_an_agent_that_cannot_be_swept_does_not_keep_the_others_from_it(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    half, stuck = store.begin("it"), store.begin("a-first-one")
    # Nothing can be locked there.
    (store.directory / ".a-first-one.lock").mkdir()

    store.remove_leftovers()

    assert not half.exists()
    assert stuck.exists()
    assert "agent not swept" in caplog.text


def test_removing_forgets_it_at_once_and_keeps_what_runs(store: Store) -> None:
    made = installed(store)
    held = FolderLock(store.folder(made))

    assert store.remove("it") is True
    assert (store.record("it"), folders(store)) == (None, [made.folder])
    assert store.remove("it") is False

    held.release()
    store.remove_leftovers()
    assert not (store.directory / "it").exists()


def test_a_sweep_leaves_alone_whoever_is_installing_now(store: Store) -> None:
    half = store.begin("it")
    with Store(store.directory).locked("it"):
        store.remove_leftovers()
        assert half.is_dir()

    store.remove_leftovers()
    assert not half.exists()


def test_what_is_not_ours_is_never_deleted(store: Store) -> None:
    theirs = [store.directory / path for path in ("it/work", "home/me/thesis", "home/1794744012-notes", "it/1-2-3")]
    for path in theirs:
        path.mkdir(parents=True)
        (path / "file").write_text("precious")
    (store.directory / "home" / "1794744012-5ecea60a.txt").write_text("precious")
    half = store.begin("it")
    names = set(os.listdir(store.directory))

    store.remove_leftovers()
    assert set(os.listdir(store.directory)) == {*names, ".it.lock"}, "nothing is made beside others' folders either"
    store.remove("home")

    assert [(path / "file").read_text() for path in theirs] == ["precious"] * len(theirs)
    assert (store.directory / "home" / "1794744012-5ecea60a.txt").exists()
    assert not half.exists()


def test_a_sweep_renews_the_shims_and_makes_none_where_there_were_none(store: Store) -> None:
    installed(store)
    store.remove_leftovers()
    assert not (store.directory / ".node").exists()

    node = store.shims() / "node"
    node.unlink()
    node.symlink_to("/nowhere")
    store.remove_leftovers()

    assert node.resolve() == bundled_node().program.resolve()


def test_a_directory_that_cannot_be_swept_is_reported_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("x")

    Store(tmp_path / "file").remove_leftovers()
    Store(tmp_path / "missing").remove_leftovers()

    assert [line.getMessage().partition(" path=")[0] for line in caplog.records] == ["agents not swept"]
