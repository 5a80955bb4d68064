"""Every real agent: what its model gets of a file that a prompt attaches."""

import base64
import json
import subprocess
from pathlib import Path

import pytest

from tests.agents.real import TERMINATE, Prompt, RealAgent, Session, Turn, told_now
from tests.support.client import META, run
from tests.support.model.script import Say, Script
from tests.support.pictures import png

LARGE = 100 << 20
SMALL = 1 << 20
"""More than any agent sends of its own accord."""
PICTURE = base64.b64encode(png()).decode()


async def attach(session: Session, script: Script, *paths: object) -> Turn:
    """A turn with these attached."""
    prompt = [{"type": "text", "text": f"Please do what {script.marker} says"}]
    entries = [{"path": str(path)} for path in paths]
    params = {"sessionId": session.id, "prompt": prompt, "_meta": {META: {"attachments": entries}}}
    return await Prompt(session, params).ended()


def reads_texts(real: RealAgent) -> bool:
    """Whether a link to a text makes it put the text before its model."""
    return real.recipe.manifest["features"].get("attachments", "link") in ("file-link", "text-link")


def name_of(real: RealAgent, path: Path) -> str:
    """How its model learns of a file that was not read."""
    passes_on = real.recipe.manifest["features"].get("attachments", "link") == "link"
    return path.as_uri() if passes_on else str(path)


@pytest.mark.every_run
def test_attached_texts_reach_the_model_whatever_they_are_called(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Say("I know those files"))
        async with real.any_session() as session:
            files = [session.folder / name for name in ("plain.txt", "déjà vu.txt", "100%25 of #1?.txt")]
            for number, file in enumerate(files):
                file.write_text(f"what file {number} says")
            turn = await attach(session, script, *(file.name for file in files))

        text = told_now(script.requests[0])
        assert turn.stop_reason == "end_turn"
        for number, file in enumerate(files):
            assert name_of(real, file) in text
            assert (f"what file {number} says" in text) == reads_texts(real)

    run(scenario())


def test_attached_image_reaches_the_model(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Say("a small picture"))
        async with real.session() as session:
            (session.folder / "a picture.png").write_bytes(png())
            turn = await attach(session, script, "a picture.png")

        assert turn.stop_reason == "end_turn"
        assert json.dumps(script.requests[0].body).count(PICTURE) == 1

    run(scenario())


def test_attached_image_and_text_both_reach_the_model(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Say("a picture and a text"))
        async with real.session() as session:
            file = session.folder / "plain.txt"
            file.write_text("what the file says")
            (session.folder / "picture.png").write_bytes(png())
            turn = await attach(session, script, "picture.png", file)

        text = told_now(script.requests[0])
        mixes = real.recipe.manifest["features"].get("mixes", True)
        assert turn.stop_reason == "end_turn"
        assert PICTURE in json.dumps(script.requests[0].body)
        assert name_of(real, file) in text
        assert ("what the file says" in text) == (reads_texts(real) and mixes)

    run(scenario())


def test_attached_binary_is_named_to_the_model(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Say("I know that file"))
        async with real.any_session() as session:
            file = session.folder / "data.bin"
            file.write_bytes(bytes(range(256)) * 16 + b"the end")
            turn = await attach(session, script, file)

        text = told_now(script.requests[0])
        assert turn.stop_reason == "end_turn"
        assert name_of(real, file) in text
        assert "the end" not in text

    run(scenario())


def test_attached_directory_is_named_to_the_model(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Say("I know that folder"))
        async with real.any_session() as session:
            folder = session.folder / "some folder"
            folder.mkdir()
            (folder / "inner.txt").write_text("what the file says")
            turn = await attach(session, script, folder)

        text = told_now(script.requests[0])
        assert turn.stop_reason == "end_turn"
        assert name_of(real, folder) in text
        assert "what the file says" not in text

    run(scenario())


def test_attached_file_of_100_mib_is_named_to_the_model(real: RealAgent) -> None:
    async def scenario() -> None:
        script = real.model.script(Say("that is a long file"))
        async with real.any_session() as session:
            file = session.folder / "long.txt"
            file.write_bytes(b"what the file says, line by line\n".ljust(64) * (LARGE // 64))
            turn = await attach(session, script, file)
            file.unlink()

        (request,) = script.requests
        assert turn.stop_reason == "end_turn"
        assert name_of(real, file) in told_now(request)
        assert len(json.dumps(request.body)) < SMALL

    run(scenario())


def test_missing_attachment_is_refused_and_the_model_hears_nothing(real: RealAgent) -> None:
    async def scenario() -> None:
        script, after = real.model.script(Say("never")), real.model.script(Say("still here"))
        async with real.any_session() as session:
            params = {"sessionId": session.id, "prompt": [{"type": "text", "text": script.marker}]}
            meta = {META: {"attachments": [{"path": "gone.txt"}]}}
            error = await session.client.error("session/prompt", params | {"_meta": meta})
            turn = await session.turn(after)

        assert error["code"] == -32602
        assert "gone.txt" in error["message"]
        assert script.requests == []
        assert turn.text.endswith("still here")

    run(scenario())


def test_attached_file_that_git_ignores_is_not_lost(real: RealAgent) -> None:
    folder = Path(real.server.work) / "repository"
    file = folder / "build.log"
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    (folder / ".gitignore").write_text("*.log\n")
    file.write_text("what the file says")

    async def scenario() -> None:
        script = real.model.script(Say("I know that file"))
        async with real.client() as client, client.stream() as stream:
            settings = await client.result("session/new", {"cwd": str(folder), "mcpServers": []})
            session = Session(settings["sessionId"], client, stream, folder, settings)
            turn = await attach(session, script, "build.log")
            await client.call(TERMINATE, {"sessionId": session.id})

        assert turn.stop_reason == "end_turn"
        assert name_of(real, file) in told_now(script.requests[0])

    run(scenario())
