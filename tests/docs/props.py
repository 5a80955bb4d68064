"""What must be there for a page's snippets to make sense: the files that it speaks of."""

from collections.abc import Callable

from tests.docs.stage import Stage
from tests.support.client import Client, run


def _files(stage: Stage) -> None:
    (stage.here / "model.bin").write_bytes(b"\0" * 4096)
    (stage.here / "notes.txt").write_text("notes")
    for name in ("src/main.py", "tests/test_main.py"):
        for top in (stage.here, stage.project):
            (top / name).parent.mkdir(exist_ok=True)
            (top / name).write_text("# TODO\ndef main(): ...\n")
    (stage.here / "copy").mkdir()
    (stage.here / "app").mkdir()
    stage.variables["SESSION"] = run(_session(stage))


async def _session(stage: Stage) -> str:
    """A session whose directory is the project."""
    async with Client(stage.server, "mock") as client:
        params = {"cwd": str(stage.project), "mcpServers": []}
        return (await client.result("session/new", params))["sessionId"]


PROPS: dict[str, Callable[[Stage], None]] = {"docs/files.md": _files}
