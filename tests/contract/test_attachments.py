"""Attachments, down to the line that the agent gets. Contract, section 8."""

import base64
import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.asking import received, texts
from tests.support.client import META, Client, Json, run
from tests.support.history import events_of
from tests.support.pictures import large, png
from tests.support.running import Server, scripted

LIMIT = 10 << 20
BLIND = '{"promptCapabilities": {"image": false}, "loadSession": true}'


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    """A server with an agent for every way in which attachments are taken."""
    agents = {
        "blind": scripted("--capabilities", BLIND),
        # Apart from the others: a test that asks what an agent has received gets all of it.
        "large": scripted(),
        "files": scripted(attachments="file-link"),
        "texts": scripted(attachments="text-link"),
        "words": scripted(attachments="text"),
    }
    with Server(agents=agents) as running:
        yield running


async def session_in(client: Client, folder: Path) -> str:
    return (await client.result("session/new", {"cwd": str(folder), "mcpServers": []}))["sessionId"]


def params(session: str, *entries: object, text: str = "look") -> Json:
    prompt = [{"type": "text", "text": text}]
    return {"sessionId": session, "prompt": prompt, "_meta": {META: {"attachments": list(entries)}}}


async def prompts(client: Client, session: str) -> list[str]:
    """The lines of prompts that a session's agent has got."""
    lines = [line for line in await received(client) if '"session/prompt"' in line]
    return [line for line in lines if json.loads(line)["params"]["sessionId"] == session]


async def sent(client: Client, folder: Path, *entries: object) -> list[Json]:
    """The blocks that reach the agent in a prompt with these attachments."""
    session = await session_in(client, folder)
    await client.result("session/prompt", params(session, *entries))
    (line,) = await prompts(client, session)
    return json.loads(line)["params"]["prompt"]


async def refused(client: Client, folder: Path, *entries: object) -> Json:
    """The error of such a prompt, which must not have done anything."""
    session = await session_in(client, folder)
    before = await events_of(client, session)
    error = await client.error("session/prompt", params(session, *entries))
    assert error["code"] == -32602
    assert await prompts(client, session) == []
    assert await events_of(client, session) == before
    return error


def link(path: Path, mime: str, name: str | None = None) -> Json:
    return {"type": "resource_link", "uri": path.as_uri(), "name": name or path.name, "mimeType": mime}


# What the agent gets


@pytest.mark.requirement("8.link", "8.meta")
def test_attachment_is_a_link_and_all_else_keeps_its_bytes(server: Server, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")

    async def main() -> None:
        async with Client(server) as client:
            session = await session_in(client, tmp_path)
            meta = '{"other": 1.0, "sandboxagent.dev": {"attachments": [{"path": "notes.txt", "own": 1e3}], "x": null}}'
            said = '{"type": "text",  "text": "caf\\u00e9", "_meta": {"n": 1.50}}'
            inner = f'{{"sessionId":"{session}","prompt":[{said}],"_meta":{meta}}}'
            body = f'{{"jsonrpc":"2.0","id":7,"method":"session/prompt","params":{inner}}}'
            assert (await client.post(body)).json()["result"]["stopReason"] == "end_turn"
            (line,) = await prompts(client, session)

        assert meta in line
        assert said in line
        assert json.loads(line)["params"]["prompt"][1:] == [link(tmp_path / "notes.txt", "text/plain")]

    run(main())


@pytest.mark.requirement("8.link", "6.prompt-content")
def test_content_may_stand_for_the_prompt(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")

    async def main() -> None:
        async with Client(server) as client:
            session = await session_in(client, tmp_path)
            asked = params(session, {"path": "a.txt"}) | {"content": "look"}
            del asked["prompt"]
            await client.result("session/prompt", asked)
            (line,) = await prompts(client, session)

        blocks = [{"type": "text", "text": "look"}, link(tmp_path / "a.txt", "text/plain")]
        assert json.loads(line)["params"]["prompt"] == blocks

    run(main())


@pytest.mark.requirement("8.paths", "8.link")
def test_paths_may_be_absolute_relative_or_uris(server: Server, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    files = [tmp_path / "plain.txt", tmp_path / "sub" / "déjà vu.txt", tmp_path / "a#b?c%20d.txt"]
    for file in files:
        file.write_text("x")

    async def main() -> None:
        async with Client(server) as client:
            entries = [{"path": str(files[0])}, {"path": "./sub/déjà vu.txt"}, {"path": files[2].as_uri()}]
            blocks = await sent(client, tmp_path, *entries)

        assert blocks[1:] == [link(file, "text/plain") for file in files]

    run(main())


@pytest.mark.requirement("8.type")
def test_type_is_the_given_one_or_follows_from_the_file(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b").write_bytes(b"\0")
    (tmp_path / "c.pdf").write_text("no pdf")
    (tmp_path / "picture").write_bytes(png())

    async def main() -> None:
        async with Client(server, "blind") as client:
            names = ("a.json", "b", "picture", "c.pdf")
            entries = [{"path": name} for name in names]
            entries[3] |= {"mime": "text/x-own; charset=utf-8", "filename": "what I call it"}
            blocks = await sent(client, tmp_path, *entries)

        types = ["application/json", "application/octet-stream", "image/png", "text/x-own; charset=utf-8"]
        assert [block["mimeType"] for block in blocks[1:]] == types
        assert [block["name"] for block in blocks[1:]] == ["a.json", "b", "picture", "what I call it"]

    run(main())


@pytest.mark.requirement("8.image")
@pytest.mark.parametrize(
    ("agent", "size", "type"),
    [
        ("large", 1000, "image"),
        ("large", LIMIT, "image"),
        ("large", LIMIT + 1, "resource_link"),
        ("blind", 1000, "resource_link"),
    ],
)
def test_image_is_sent_along_when_it_can_be(server: Server, tmp_path: Path, agent: str, size: int, type: str) -> None:
    (tmp_path / "picture").write_bytes(large(size))

    async def main() -> None:
        async with Client(server, agent) as client:
            (_, block) = await sent(client, tmp_path, {"path": "picture"})

        assert (block["type"], block["mimeType"], block["uri"]) == (type, "image/png", (tmp_path / "picture").as_uri())
        if type == "image":
            assert base64.b64decode(block["data"]) == large(size)

    run(main())


@pytest.mark.requirement("8.text")
def test_agent_without_links_gets_them_in_the_text(server: Server, tmp_path: Path) -> None:
    (tmp_path / "déjà vu.txt").write_text("x")
    (tmp_path / "b").write_bytes(b"\0")
    (tmp_path / "picture").write_bytes(png())

    async def main() -> None:
        async with Client(server, "words") as client:
            blocks = await sent(client, tmp_path, {"path": "déjà vu.txt"}, {"path": "picture"}, {"path": "b"})

        assert blocks[0] == {
            "type": "text",
            "text": f"look\n\nAttachments:\n- {tmp_path}/déjà vu.txt\n- {tmp_path}/b\n",
        }
        assert [block["type"] for block in blocks] == ["text", "image"]

    run(main())


@pytest.mark.requirement("8.styles", "8.directory", "8.text")
@pytest.mark.parametrize(
    ("agent", "linked"),
    [
        ("scripted", ["text", "binary", "folder"]),
        ("files", ["text", "binary"]),
        ("texts", ["text"]),
        ("words", []),
    ],
)
def test_style_says_what_is_a_link(server: Server, tmp_path: Path, agent: str, linked: list[str]) -> None:
    (tmp_path / "text").write_text("x")
    (tmp_path / "binary").write_bytes(b"\0")
    (tmp_path / "folder").mkdir()

    async def main() -> None:
        names = ["text", "binary", "folder"]
        async with Client(server, agent) as client:
            said, *links = await sent(client, tmp_path, *({"path": name} for name in names))

        assert [block["name"] for block in links] == linked
        assert [name for name in names if f"- {tmp_path}/{name}\n" in said["text"]] == [
            n for n in names if n not in linked
        ]
        types = {block["name"]: block["mimeType"] for block in links}
        assert types.get("folder", "inode/directory") == "inode/directory"
        # An agent that reads only texts gets it as one.
        assert types.get("text") in (None, "text/plain" if agent == "texts" else "application/octet-stream")

    run(main())


@pytest.mark.requirement("8.nothing-attached")
@pytest.mark.parametrize("ours", ["{}", '{"attachments":[]}', '{"attachments":null}', '{"agent":"x"}', "7"])
def test_prompt_that_attaches_nothing_keeps_its_bytes(server: Server, tmp_path: Path, ours: str) -> None:
    async def main() -> None:
        async with Client(server) as client:
            session = await session_in(client, tmp_path)
            meta = f'{{"sandboxagent.dev":{ours}}}'
            inner = f'{{"prompt":[ {{"type":"text","text":"x"}} ],"sessionId":"{session}","_meta":{meta}}}'
            rest = f'"method" : "session/prompt","params":{inner}}}'
            assert (await client.post('{"jsonrpc":"2.0","id":99,' + rest)).status_code == 200
            (line,) = await prompts(client, session)

        assert line.endswith(rest)

    run(main())


# Refusals


@pytest.mark.requirement("8.missing")
def test_missing_path_is_named_and_nothing_is_sent(server: Server, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")

    async def main() -> None:
        async with Client(server) as client:
            for path in ("gone.txt", f"{tmp_path}/gone dir/é.txt", (tmp_path / "gone").as_uri()):
                error = await refused(client, tmp_path, {"path": "there"}, {"path": path})

                assert path in error["message"]
                assert error["data"] == {"type": "invalid-params", "index": 1, "path": path}

    run(main())


@pytest.mark.requirement("8.not-a-file")
def test_pipe_and_device_are_refused_at_once(server: Server, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    async def main() -> None:
        async with Client(server) as client:
            for path in ("pipe", "/dev/zero"):
                error = await refused(client, tmp_path, {"path": path})

                assert "neither a file nor a directory" in error["message"]

    run(main())


@pytest.mark.requirement("8.wrong-entry")
def test_wrong_entries_are_named_by_index(server: Server, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")
    wrong: list[object] = ["there", None, [], {}, {"path": 7}, {"path": ""}, {"path": "a\0b"}, {"path": "./there"}]
    wrong += [{"path": "x", "mime": "nonsense"}, {"path": "x", "filename": ""}, {"path": "x" * 5000}]

    async def main() -> None:
        async with Client(server) as client:
            for entry in wrong:
                error = await refused(client, tmp_path, {"path": "there"}, entry)

                assert "attachments[1]" in error["message"]
                assert error["data"]["index"] == 1

    run(main())


@pytest.mark.requirement("8.wrong-entry")
def test_attachments_must_be_a_list_and_the_prompt_too(server: Server, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")

    async def main() -> None:
        async with Client(server) as client:
            session = await session_in(client, tmp_path)
            for entries in ({"path": "there"}, "there", 7):
                asked = params(session) | {"_meta": {META: {"attachments": entries}}}
                assert (await client.error("session/prompt", asked))["code"] == -32602
            asked = params(session, {"path": "there"}) | {"prompt": "look"}
            assert (await client.error("session/prompt", asked))["code"] == -32602
            assert await prompts(client, session) == []

    run(main())


@pytest.mark.requirement("8.count")
def test_number_of_attachments_is_bounded(server: Server, tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / str(number)).write_text("x")

    async def main() -> None:
        async with Client(server) as client:
            assert len(await sent(client, tmp_path, *({"path": str(number)} for number in range(100)))) == 101
            error = await refused(client, tmp_path, *({"path": str(number)} for number in range(1000)))
            assert error["data"] == {"type": "invalid-params", "index": 100, "limit": 100}

    run(main())


# What others see


@pytest.mark.requirement("8.shown")
def test_log_and_others_have_what_was_sent(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "picture").write_bytes(png())

    async def main() -> None:
        async with Client(server) as client, Client(server) as other, other.stream() as events:
            session = await session_in(client, tmp_path)
            await other.result("_sandboxagent/session/attach", {"sessionId": session})
            await client.result("session/prompt", params(session, {"path": "a.txt"}, {"path": "picture"}))
            (line,) = await prompts(client, session)
            blocks = json.loads(line)["params"]["prompt"]
            shown = [event.update for event in await events.turn_ended()]
            kept = [event["envelope"] for event in await events_of(client, session)]

        assert [block["type"] for block in blocks] == ["text", "resource_link", "image"]
        assert [one["content"] for one in shown if one.get("sessionUpdate") == "user_message_chunk"] == blocks
        assert [one["params"]["prompt"] for one in kept if one.get("method") == "session/prompt"] == [blocks]

    run(main())


@pytest.mark.requirement("8.repeat")
def test_repeat_is_not_sent_again_whatever_became_of_its_file(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")

    async def main() -> None:
        async with Client(server) as client:
            session = await session_in(client, tmp_path)
            body = json.dumps(
                {"jsonrpc": "2.0", "id": 5, "method": "session/prompt", "params": params(session, {"path": "a.txt"})}
            )
            first = await client.post(body, Idempotency_Key="once")
            (tmp_path / "a.txt").unlink()
            again = await client.post(body, Idempotency_Key="once")

            assert first.json()["result"]["stopReason"] == "end_turn"
            assert again.content == first.content
            assert len(await prompts(client, session)) == 1

    run(main())


@pytest.mark.requirement("8.resumed")
def test_session_without_a_process_is_brought_back_first(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")

    async def main() -> None:
        async with Client(server, "files") as client, client.stream() as events:
            session = await session_in(client, tmp_path)
            await client.prompt(session, [["exit", 1]])
            await events.method("_sandboxagent/session/ended")
            await client.result("session/prompt", params(session, {"path": "a.txt"}, text='[["say", "back"]]'))
            (line,) = await prompts(client, session)

            assert json.loads(line)["params"]["prompt"][1:] == [link(tmp_path / "a.txt", "text/plain")]
            assert texts(await events.turn_ended()) == ["back"]

    run(main())


# Settings


@pytest.fixture(scope="module")
def confined(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """A server that attaches little, from few places."""
    root = tmp_path_factory.mktemp("root")
    server = Server("--no-persist", "--attachments", "2", "--attached-images", "1500", "--fs-root", str(root))
    server.flags = [*server.flags, "--fs-root", server.work]
    with server as running:
        yield running


@pytest.mark.requirement("8.fs-root")
def test_roots_confine(confined: Server, tmp_path: Path) -> None:
    root, work = Path(confined.flags[6]), Path(confined.work)
    for folder in (root, work, tmp_path):
        (folder / "file").write_text("x")
    (work / "link").symlink_to(tmp_path / "file")

    async def main() -> None:
        async with Client(confined) as client:
            assert len(await sent(client, work, {"path": "file"}, {"path": str(root / "file")})) == 3
            for path in (str(tmp_path / "file"), str(tmp_path / "gone"), "link", f"{root}/../x", "/etc/passwd"):
                error = await refused(client, work, {"path": path})

                assert "--fs-root" in error["message"]

    run(main())


@pytest.mark.requirement("8.count", "8.image-limit")
def test_limits_are_settings(confined: Server) -> None:
    work = Path(confined.work)
    for name in ("one", "two"):
        (work / name).write_bytes(large(1000))

    async def main() -> None:
        async with Client(confined) as client:
            blocks = await sent(client, work, {"path": "one"}, {"path": "two"})
            assert [block["type"] for block in blocks] == ["text", "image", "resource_link"]
            assert (await refused(client, work, *({"path": name} for name in "abc")))["data"]["limit"] == 2

    run(main())
