"""Attached files as blocks of a prompt, for every way in which agents take them."""

import base64
import json

import pytest
from msgspec import Raw

from sandboxagent.protocol.errors import InvalidParams
from sandboxagent.server.files.attached import Attached
from sandboxagent.server.sessions.attachments import AcceptedContent, add_files, kind_of, parse_blocks
from tests.support.client import Json
from tests.support.pictures import png

TEXT = Attached("/w/a.json", "a.json", "application/json", text=True)
BINARY = Attached("/w/a.bin", "a.bin", "application/octet-stream")
FOLDER = Attached("/w/dir", "dir", "inode/directory", directory=True)
PICTURE = Attached("/w/a.png", "a.png", "image/png", image=png())
SAID = b'{"type": "text", "text": "look", "_meta": {"n": 1.0}}'


def composed(takes: AcceptedContent, *files: Attached, given: tuple[bytes, ...] = (SAID,)) -> list[Json]:
    blocks = add_files([Raw(block) for block in given], files, takes)
    return [json.loads(bytes(block)) if isinstance(block, Raw) else block for block in blocks]  # type: ignore[misc]


def shapes(blocks: list[Json]) -> list[str]:
    return [block["type"] for block in blocks]


def test_link_tells_where_what_and_how_it_is_called() -> None:
    named = Attached("/w/déjà vu.txt", "other name", "text/plain")

    assert composed(AcceptedContent(), named)[1:] == [
        {
            "type": "resource_link",
            "uri": "file:///w/d%C3%A9j%C3%A0%20vu.txt",
            "name": "other name",
            "mimeType": "text/plain",
        }
    ]


def test_image_is_sent_along_and_says_where_it_is() -> None:
    (block,) = composed(AcceptedContent(images=True), PICTURE)[1:]

    assert block == {
        "type": "image",
        "mimeType": "image/png",
        "data": base64.b64encode(png()).decode(),
        "uri": "file:///w/a.png",
    }


def test_blocks_that_are_there_keep_their_bytes() -> None:
    blocks = add_files([Raw(SAID)], [BINARY], AcceptedContent())

    assert bytes(blocks[0]) == SAID  # type: ignore[call-overload]


def test_files_come_after_the_prompt_in_their_order() -> None:
    assert shapes(composed(AcceptedContent(images=True), BINARY, PICTURE, FOLDER)) == [
        "text",
        "resource_link",
        "image",
        "resource_link",
    ]


@pytest.mark.parametrize(
    ("style", "linked"),
    [
        ("link", [TEXT, BINARY, FOLDER]),
        ("file-link", [TEXT, BINARY]),
        ("text-link", [TEXT]),
        ("text", []),
    ],
)
def test_what_gets_no_link_is_mentioned_at_the_end_of_the_text(style: str, linked: list[Attached]) -> None:
    files = [TEXT, BINARY, FOLDER]
    blocks = composed(AcceptedContent(style), *files)  # type: ignore[arg-type]

    mentioned = "".join(f"- {file.path}\n" for file in files if file not in linked)
    assert blocks[0]["text"] == ("look\n\nAttachments:\n" + mentioned if mentioned else "look")
    assert [block["name"] for block in blocks[1:]] == [file.name for file in linked]


def test_mention_goes_into_the_last_text_and_leaves_the_rest_of_it() -> None:
    image, last = (
        b'{"type":"image","data":"","mimeType":"image/png"}',
        b'{"type":"text","text":"last","annotations":{}}',
    )

    blocks = composed(AcceptedContent("text"), BINARY, given=(SAID, last, image))

    assert blocks[0] == json.loads(SAID)
    assert blocks[1] == {"type": "text", "text": "last\n\nAttachments:\n- /w/a.bin\n", "annotations": {}}
    assert blocks[2] == json.loads(image)


@pytest.mark.parametrize("given", [(), (b'{"type":"image"}',), (b"7", b"null", b'{"type":3}')])
def test_prompt_without_text_gets_one_for_mentions(given: tuple[bytes, ...]) -> None:
    blocks = composed(AcceptedContent("text"), BINARY, given=given)

    assert blocks[-1] == {"type": "text", "text": "\n\nAttachments:\n- /w/a.bin\n"}
    assert len(blocks) == len(given) + 1


def test_reader_of_texts_gets_a_type_that_is_text() -> None:
    markdown = Attached("/w/a.md", "a.md", "text/markdown", text=True)

    assert [block["mimeType"] for block in composed(AcceptedContent("text-link"), TEXT, markdown)[1:]] == [
        "text/plain",
        "text/markdown",
    ]


def test_uri_is_plain_for_agents_that_do_not_decode() -> None:
    takes = AcceptedContent(plain_uris=True, images=True)
    picture = Attached("/w/ä b.png", "x", "image/png", image=b"x")

    links = composed(takes, Attached("/w/déjà vu#1%20.txt", "x", "text/plain"), picture)[1:]

    assert [block["uri"] for block in links] == ["file:///w/déjà vu#1%20.txt", "file:///w/ä b.png"]


def test_path_that_would_break_a_text_is_encoded_everywhere() -> None:
    line_break, no_text = Attached("/w/a\nb", "x", "text/plain"), Attached("/w/\udcff", "x", "text/plain")

    (said,) = composed(AcceptedContent("text"), line_break, no_text)
    links = composed(AcceptedContent(plain_uris=True), line_break, no_text)[1:]

    assert said["text"] == "look\n\nAttachments:\n- file:///w/a%0Ab\n- file:///w/%FF\n"
    assert [block["uri"] for block in links] == ["file:///w/a%0Ab", "file:///w/%FF"]


def test_agent_that_drops_images_beside_links_gets_files_in_words() -> None:
    takes = AcceptedContent("file-link", images=True, mixes=False)
    own_image = b'{"type":"image","data":"","mimeType":"image/png"}'

    assert shapes(composed(takes, TEXT)) == ["text", "resource_link"]
    for blocks in (composed(takes, TEXT, PICTURE), composed(takes, TEXT, given=(SAID, own_image))):
        assert shapes(blocks) == ["text", "image"]
        assert blocks[0]["text"].endswith("- /w/a.json\n")


def test_images_are_left_out_beside_what_would_drop_them() -> None:
    drops, mixes = AcceptedContent(images=True, mixes=False), AcceptedContent(images=True)

    assert [drops.images_beside(kinds) for kinds in (["text"], ["resource_link"], ["resource"])] == [True, False, False]
    assert mixes.images_beside(["resource_link"])
    assert not AcceptedContent().images_beside([])


def test_prompt_must_be_a_list() -> None:
    assert [kind_of(block) for block in parse_blocks(b'{"params":{"prompt":[{"type":"text"},7]}}')] == ["text", ""]
    for prompt in (b"{}", b'{"prompt":null}', b'{"prompt":{}}', b'{"prompt":"x"}'):
        with pytest.raises(InvalidParams, match="array"):
            parse_blocks(b'{"params":%b}' % prompt)
