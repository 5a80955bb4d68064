"""The Node that comes with us, and the folder that has it for others."""

import subprocess
import threading
from pathlib import Path

import pytest

from sandboxagent.server.agents.install.tools import bundled_node, make_shims


def output_of(*command: str, path: str = "/usr/bin:/bin") -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd="/", env={"PATH": path})
    return done.stdout.strip()


def test_bundled_node_is_there_and_has_its_version() -> None:
    node = bundled_node()

    assert output_of(str(node.program), "--version") == f"v{node.version}"
    assert node.npm.is_file()


@pytest.mark.parametrize("name", ["npm", "npx"])
def test_npm_and_npx_of_the_shims_run_with_our_node(tmp_path: Path, name: str) -> None:
    shims = make_shims(tmp_path / "with space" / "shims")

    assert output_of(str(shims / name), "--version") == output_of(
        str(bundled_node().program), str(bundled_node().npm), "--version"
    )
    assert output_of("node", "--version", path=f"{shims}:/usr/bin:/bin") == f"v{bundled_node().version}"


def test_shims_that_are_right_are_left_alone_and_wrong_ones_replaced(tmp_path: Path) -> None:
    shims = make_shims(tmp_path)
    before = {path.name: path.lstat().st_ino for path in shims.iterdir()}

    make_shims(tmp_path)
    assert {path.name: path.lstat().st_ino for path in shims.iterdir()} == before

    (shims / "node").unlink()
    (shims / "node").symlink_to("/nowhere")
    (shims / "npm").write_text("#!/bin/sh\nfalse\n")
    (shims / "npx").unlink()
    make_shims(tmp_path)
    assert set(before) == {path.name for path in shims.iterdir()} == {"node", "npm", "npx"}
    assert (shims / "node").resolve() == bundled_node().program.resolve()
    assert output_of(str(shims / "npm"), "--version")


def test_concurrent_makers_of_shims_do_not_fail(tmp_path: Path) -> None:
    failures: list[Exception] = []

    def make() -> None:
        try:
            make_shims(tmp_path)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=make) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert {path.name for path in tmp_path.iterdir()} == {"node", "npm", "npx"}
