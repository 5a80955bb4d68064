"""What a prompt wants attached, how it is refused, and that prompts keep their order."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from sandboxagent.core.threads import Pool
from sandboxagent.protocol.errors import FileFailed, InvalidParams, SandboxAgentError
from sandboxagent.server.files.attached import AttachedFiles
from sandboxagent.server.files.confined import Confined
from sandboxagent.server.sessions.attachments import (
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    MAX_TEXT_BYTES,
    AcceptedContent,
    Attachment,
    AttachmentLimits,
    Attachments,
)
from tests.support.client import META, Json, run
from tests.support.pictures import large, png

POOL = Pool("test", 4)

LIMITS = AttachmentLimits(count=100, image_bytes=20 << 20)


@pytest.fixture
def attachments() -> Attachments:
    return Attachments(AttachedFiles(), LIMITS, POOL)


def prompt(entries: object, **meta: object) -> bytes:
    params = {"prompt": [{"type": "text", "text": "look"}], "_meta": {META: {"attachments": entries}, **meta}}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": params}).encode()


def added(
    attachments: Attachments, entries: list[Json], takes: AcceptedContent | None = None, directory: object = "/nowhere"
) -> list[Json]:
    """The blocks that come of these entries, the text left out."""
    line = prompt(entries)
    takes = takes or AcceptedContent(images=True)
    line = run(attachments.add(line, attachments.read_asked(line), str(directory), takes))
    return json.loads(line)["params"]["prompt"][1:]


def refused(attachments: Attachments, entries: object, directory: object = "/nowhere") -> SandboxAgentError:
    line = prompt(entries)
    with pytest.raises(SandboxAgentError) as caught:
        run(attachments.add(line, attachments.read_asked(line), str(directory), AcceptedContent()))
    return caught.value


# What was asked


def test_entries_are_read_and_unknown_members_are_left(attachments: Attachments) -> None:
    entries = [{"path": "a"}, {"path": "b", "mime": "text/plain; charset=utf-8", "filename": "c/d é", "more": 1e9}]

    assert attachments.read_asked(prompt(entries)) == [
        Attachment("a"),
        Attachment("b", "text/plain; charset=utf-8", "c/d é"),
    ]


def test_null_is_as_good_as_nothing(attachments: Attachments) -> None:
    assert attachments.read_asked(prompt([{"path": "a", "mime": None, "filename": None}])) == [Attachment("a")]
    assert attachments.read_asked(prompt(None)) == []
    assert attachments.read_asked(prompt([])) == []


@pytest.mark.parametrize("meta", [b"null", b"[]", b'"sandboxagent.dev"', b'{"sandboxagent.dev": 7}', b"{}"])
def test_meta_of_another_shape_attaches_nothing(attachments: Attachments, meta: bytes) -> None:
    line = b'{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"_meta":%b}}' % meta

    assert attachments.read_asked(line) == []
    assert attachments.read_asked(b'{"jsonrpc":"2.0","id":1,"method":"session/prompt"}') == []


@pytest.mark.parametrize("entries", [{}, {"path": "a"}, "a", 7, True])
def test_attachments_must_be_a_list(attachments: Attachments, entries: object) -> None:
    with pytest.raises(InvalidParams, match="array"):
        attachments.read_asked(prompt(entries))


@pytest.mark.parametrize(
    "entry",
    [
        "a",
        None,
        ["a"],
        {},
        {"path": None},
        {"path": 7},
        {"path": ""},
        {"path": "a\0b"},
        {"path": "a" * 20_000},
        {"path": "a", "mime": 7},
        {"path": "a", "mime": ""},
        {"path": "a", "mime": "text"},
        {"path": "a", "mime": "text/plain\nx"},
        {"path": "a", "filename": 7},
        {"path": "a", "filename": ""},
        {"path": "a", "filename": "a\tb"},
        {"path": "a", "filename": "a" * 256},
    ],
)
def test_wrong_entry_is_named(attachments: Attachments, entry: object) -> None:
    with pytest.raises(InvalidParams, match=r"attachments\[1\]") as caught:
        attachments.read_asked(prompt([{"path": "fine"}, entry]))

    assert caught.value.fields["index"] == 1
    assert len(str(caught.value)) < 200


def test_too_many_are_refused_before_any_is_looked_at(attachments: Attachments) -> None:
    assert len(attachments.read_asked(prompt([{"path": str(number)} for number in range(100)]))) == 100
    with pytest.raises(InvalidParams, match=r"attachments\[100\]") as caught:
        attachments.read_asked(prompt([{"path": str(number)} for number in range(1000)]))

    assert caught.value.fields == {"index": 100, "limit": 100}


# What comes of it


def test_all_but_the_prompt_keeps_its_bytes(attachments: Attachments, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    line = prompt([{"path": "a"}], other=1.0)

    changed = run(attachments.add(line, attachments.read_asked(line), str(tmp_path), AcceptedContent()))

    assert json.dumps({META: {"attachments": [{"path": "a"}]}, "other": 1.0}).encode() in changed
    assert json.loads(changed)["params"]["_meta"] == json.loads(line)["params"]["_meta"]


def test_paths_are_relative_to_the_directory(attachments: Attachments, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "b b").write_text("x")
    (tmp_path / "c").write_text("x")

    entries = [{"path": "a"}, {"path": str(tmp_path / "b b")}, {"path": (tmp_path / "c").as_uri()}]
    links = added(attachments, entries, directory=tmp_path)

    assert [link["uri"] for link in links] == [(tmp_path / name).as_uri() for name in ("a", "b b", "c")]
    assert [link["name"] for link in links] == ["a", "b b", "c"]


def test_image_up_to_the_limit_is_put_into_the_prompt(attachments: Attachments, tmp_path: Path) -> None:
    (tmp_path / "fits").write_bytes(large(MAX_IMAGE_BYTES))
    (tmp_path / "over").write_bytes(large(MAX_IMAGE_BYTES + 1))

    blocks = added(attachments, [{"path": "fits"}, {"path": "over"}], directory=tmp_path)

    assert [block["type"] for block in blocks] == ["image", "resource_link"]
    assert blocks[1]["mimeType"] == "image/png"


def test_images_together_have_a_limit_and_later_ones_are_links(tmp_path: Path) -> None:
    attachments = Attachments(AttachedFiles(), AttachmentLimits(100, 2500), POOL)
    for name, size in (("a", 1000), ("b", 1000), ("c", 1000), ("d", 500)):
        (tmp_path / name).write_bytes(large(size))

    blocks = added(attachments, [{"path": name} for name in "abcd"], directory=tmp_path)

    assert [block["type"] for block in blocks] == ["image", "image", "resource_link", "image"]


def test_there_is_a_limit_on_the_number_of_images(attachments: Attachments, tmp_path: Path) -> None:
    names = [str(number) for number in range(MAX_IMAGES + 2)]
    for name in names:
        (tmp_path / name).write_bytes(png())

    blocks = added(attachments, [{"path": name} for name in names], directory=tmp_path)

    assert [block["type"] for block in blocks] == ["image"] * MAX_IMAGES + ["resource_link"] * 2


def test_image_is_a_link_for_an_agent_that_takes_none(attachments: Attachments, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())

    (block,) = added(attachments, [{"path": "a.png"}], AcceptedContent(images=False), tmp_path)

    assert (block["type"], block["mimeType"]) == ("resource_link", "image/png")


def test_long_text_is_no_link_for_an_agent_that_would_read_all_of_it(attachments: Attachments, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("x" * MAX_TEXT_BYTES)
    (tmp_path / "long").write_text("x" * (MAX_TEXT_BYTES + 1))

    blocks = added(attachments, [{"path": "short"}, {"path": "long"}], AcceptedContent("text-link"), tmp_path)

    assert [block["name"] for block in blocks] == ["short"]


def test_prompt_without_blocks_is_refused(attachments: Attachments, tmp_path: Path) -> None:
    line = prompt([{"path": str(tmp_path)}]).replace(b'"prompt"', b'"prompts"')

    with pytest.raises(InvalidParams, match="prompt"):
        run(attachments.add(line, attachments.read_asked(line), "/", AcceptedContent()))


# How it is refused


def test_refusal_names_the_entry_and_the_path(attachments: Attachments, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "round").symlink_to("round")
    os.mkfifo(tmp_path / "fifo")
    for path, why in (
        ("gone", "does not exist"),
        (str(tmp_path / "gone" / "déjà vu"), "does not exist"),
        ("fifo", "neither a file nor a directory"),
        ("file/", "Not a directory"),
        ("file/x", "Not a directory"),
        ("round", "symbolic links"),
        ("x" * 300, "too long"),
        ("file://elsewhere/x", "this host"),
        ("file:///a%00b", "NUL"),
    ):
        error = refused(attachments, [{"path": "file"}, {"path": path}], tmp_path)

        assert isinstance(error, InvalidParams)
        assert error.fields == {"index": 1, "path": path}
        assert "attachments[1]" in str(error)
        assert path in str(error)
        assert why in str(error)


def test_path_outside_the_roots_is_refused(tmp_path: Path) -> None:
    attachments = Attachments(AttachedFiles(Confined([str(tmp_path / "root")])), LIMITS, POOL)
    (tmp_path / "root").mkdir()
    (tmp_path / "secret").write_text("x")

    for path in ("../secret", str(tmp_path / "secret"), "/etc/passwd"):
        error = refused(attachments, [{"path": path}], tmp_path / "root")

        assert isinstance(error, InvalidParams)
        assert "--fs-root" in str(error)


@pytest.mark.parametrize("again", ["a", "./a", "sub/../a"])
def test_file_that_is_attached_twice_is_refused(attachments: Attachments, tmp_path: Path, again: str) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "sub").mkdir()

    error = refused(attachments, [{"path": str(tmp_path / "a")}, {"path": again}], tmp_path)

    assert isinstance(error, InvalidParams)
    assert error.fields == {"index": 1, "path": again}


def test_file_that_takes_too_long_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")

    error = refused(Attachments(AttachedFiles(timeout=-1.0), LIMITS, POOL), [{"path": "a"}], tmp_path)

    assert isinstance(error, FileFailed)
    assert error.fields == {"index": 0, "path": "a", "errno": "ETIMEDOUT"}


# Order


def test_prompts_of_a_session_go_one_after_another_as_they_came(attachments: Attachments) -> None:
    order: list[str] = []

    async def one(name: str, session: str, gate: asyncio.Event | None = None) -> None:
        async with attachments.queue(session):
            if gate is not None:
                await gate.wait()
            order.append(name)

    async def scenario() -> None:
        gate = asyncio.Event()
        first = asyncio.create_task(one("first", "s", gate))
        await asyncio.sleep(0)
        assert attachments.is_busy("s")
        others = [asyncio.create_task(one(name, "s")) for name in ("second", "third")]
        await one("other session", "t")
        gate.set()
        await asyncio.gather(first, *others)

    run(scenario())

    assert order == ["other session", "first", "second", "third"]
    assert not attachments.is_busy("s")


def test_failed_prompt_does_not_hold_up_the_next(attachments: Attachments) -> None:
    async def scenario() -> None:
        with pytest.raises(InvalidParams):
            async with attachments.queue("s"):
                raise InvalidParams("wrong")
        async with attachments.queue("s"):
            pass

    run(scenario())

    assert not attachments.is_busy("s")
