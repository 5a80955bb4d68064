"""A small file system of its own, for what happens when a disk is full."""

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(directory: Path, options: str) -> Generator[Path]:
    """A new directory with a tmpfs in it; the test is skipped, with the reason, where that cannot be had."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"{options},mode=0700", "tmpfs", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
