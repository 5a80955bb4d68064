"""Suites of OpenCode's SDK (the folder `sdk`), run by Node: what they found, and what the server answered them."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sandboxagent.server.agents.install.tools import bundled_node
from tests.opencode.document import Document
from tests.opencode.host import Host

SDK = Path(__file__).with_name("sdk")
LONGEST = 600.0
"""Seconds that a suite may take."""

Record = dict[str, Any]


class Suite:
    """A suite that Node has run, and what the server answered it; `can` is what to say when it is not the host's."""

    def __init__(self, name: str, host: Host, folder: Path, can: Record | None = None) -> None:
        record = folder / f"{name}.jsonl"
        record.touch()
        elsewhere = folder / f"elsewhere-{name}"
        elsewhere.mkdir()
        given = {
            "url": host.url,
            "password": host.password,
            "directory": host.directory,
            "other_directory": str(elsewhere),
            "bridge": not host.is_opencode_itself,
            "record": str(record),
            "can": can or asdict(host.can),
        }
        # A test that fails may leave something open; that is no reason to wait for it.
        # Without `--test`, which is for many files: it would start a second process for this one.
        flags = ["--test-force-exit", "--test-reporter=spec"]
        self.done = subprocess.run(
            [bundled_node().program, *flags, SDK / f"{name}.test.ts"],
            env={**os.environ, "OPENCODE_GIVEN": json.dumps(given), "NO_COLOR": "1", "FORCE_COLOR": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST,
        )
        self.record: list[Record] = [json.loads(line) for line in record.read_text().splitlines()]


def faults_of(record: list[Record], document: Document) -> Iterator[str]:
    for line in record:
        match line:
            case {"method": method, "path": path, "status": status, "body": body}:
                for fault in document.faults_of_answer(method, path, status, body):
                    yield f"{document.operation(method, path) or path} {method} {status}: {fault}"
            case {"event": event}:
                for fault in document.faults_of_event(event):
                    yield f"event {event['type']}: {fault}"
            case {"globalEvent": event}:
                for fault in document.faults_of_global_event(event):
                    yield f"global event {event['payload']['type']}: {fault}"
            case _:
                raise AssertionError(line)
