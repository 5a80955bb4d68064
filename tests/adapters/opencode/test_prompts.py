"""Prompts of OpenCode's programs as content of ACP, and content of ACP as parts."""

from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from sandboxagent.adapters.opencode.errors import BridgeError
from sandboxagent.adapters.opencode.prompts import PromptNote, make_blocks, make_meta, make_part, read_note
from tests.support.growing import grows_faster

Json = dict[str, Any]
TEXT = {"type": "text", "text": "hello"}


def block(part: Json, *, images: bool = True, embeds: bool = True) -> Json:
    (made,), _ = make_blocks([part], images=images, embeds=embeds)
    return made


def part(content: Json) -> Json:
    return msgspec.to_builtins(make_part(content, "prt_1", "ses_1", "msg_1"))


def file(url: str, mime: str = "text/plain", **more: object) -> Json:
    return {"type": "file", "mime": mime, "url": url, **more}


def data(content: bytes, mime: str) -> str:
    return f"data:{mime};base64,{b64encode(content).decode()}"


def test_texts_mentions_and_subtasks_are_text() -> None:
    assert block(TEXT) == TEXT
    assert block({"type": "agent", "name": "plan"})["text"] == "@plan"
    subtask = {"type": "subtask", "prompt": "look", "description": "d", "agent": "explore"}
    assert block(subtask)["text"] == "@explore look"


def test_a_file_by_its_address_is_a_link_and_comes_back_as_it_was() -> None:
    source = {"type": "file", "path": "a b.txt", "text": {"value": "@a b.txt", "start": 0, "end": 8}}
    made = block(file("file:///w/a%20b.txt?start=1", filename="a b.txt", source=source))

    assert made["type"] == "resource_link"
    assert made["uri"] == "file:///w/a%20b.txt?start=1"
    back = part(made)
    assert (back["filename"], back["url"], back["source"]) == ("a b.txt", made["uri"], source)


def test_an_image_is_an_image_and_is_refused_where_the_agent_takes_none() -> None:
    picture = file(data(b"\x89PNG", "image/png"), "image/png")

    assert block(picture) == {"type": "image", "mimeType": "image/png", "data": b64encode(b"\x89PNG").decode()}
    assert part(block(picture))["url"] == picture["url"]
    with pytest.raises(BridgeError, match="no images"):
        block(picture, images=False)


def test_a_text_file_is_embedded_or_else_said() -> None:
    poem = file(data(b"roses", "text/plain"), filename="poem.txt")

    made = block(poem)
    assert made["resource"] == {"uri": "attachment:///poem.txt", "mimeType": "text/plain", "text": "roses"}
    back = part(made)
    assert (back["filename"], back["url"]) == ("poem.txt", poem["url"])
    said = block(poem, embeds=False)
    assert (said["type"], said["text"]) == ("text", "poem.txt:\n\nroses")


@pytest.mark.parametrize("name", ["poem.txt", "src/a b.txt", "what?.txt", "50%25#1.txt", "ü.txt"])
@pytest.mark.parametrize("embeds", [True, False])
def test_each_file_of_a_prompt_comes_back_with_its_name_and_content(name: str, embeds: bool) -> None:
    picture = file(data(b"\x89PNG", "image/png"), "image/png", filename=name)
    text = file(data(b"roses\n\nare red", "text/plain"), filename=name)
    link = file("file:///w/x", filename=name)

    for given in (picture, text, link):
        back = part(block(given, embeds=embeds))
        assert (back["type"], back["filename"], back["url"]) == ("file", name, given["url"])
        assert back["mime"] == given["mime"]


def test_an_agent_is_told_the_name_of_an_image() -> None:
    picture = file(data(b"\x89PNG", "image/png"), "image/png", filename="src/shot 1.png")

    assert block(picture)["uri"] == "attachment:///src%2Fshot%201.png"


def test_a_link_of_another_client_has_a_name() -> None:
    link = {"type": "resource_link", "uri": "file:///w/a%20b.txt"}

    assert part(link)["filename"] == "a b.txt"


def test_other_data_is_embedded_or_refused() -> None:
    archive = file(data(b"PK", "application/zip"), "application/zip")

    assert block(archive)["resource"]["blob"] == b64encode(b"PK").decode()
    with pytest.raises(BridgeError, match="application/zip"):
        block(archive, embeds=False)


@pytest.mark.parametrize(
    "url", ["data:text/plain,roses%20are%20red", "data:,roses%20are%20red", "DATA:;x=1,roses are red"]
)
def test_data_need_not_be_base64(url: str) -> None:
    assert block(file(url))["resource"]["text"] == "roses are red"


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "hologram"},
        {"type": "text"},
        {"type": "text", "text": 1},
        {"type": "file"},
        {},
        file("data:text/plain;base64"),
        file("data:text/plain;base64,%%%"),
        file("ftp://x/y"),
        file("../x"),
        file("http://[x"),
        TEXT | {"id": "msg_1"},
        TEXT | {"id": 1},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: Json) -> None:
    with pytest.raises(BridgeError) as refused:
        block(wrong)

    assert refused.value.status == 400


def test_nothing_is_no_prompt() -> None:
    with pytest.raises(BridgeError):
        make_blocks([], images=True, embeds=True)


def test_ids_and_choices_of_a_client_survive_in_the_prompts_meta() -> None:
    note = PromptNote("msg_1", ["prt_1", None], "plan", "large", "review all", compacts=True)
    params = msgspec.json.decode(msgspec.json.encode({"_meta": make_meta(note)}))

    assert read_note(params) == note


@pytest.mark.parametrize("ours", [None, 1, [], {"messageID": 1, "partIDs": 2}, {"partIDs": [1]}])
def test_malformed_meta_under_our_name_is_ignored(ours: object) -> None:
    assert read_note({"_meta": {"sandboxagent.dev": {"opencode": ours}}}).messageID is None


def test_content_that_is_not_known_is_shown_by_its_name() -> None:
    assert part({"type": "smell"})["text"] == "[smell]"


HARD: dict[str, Callable[[int], str]] = {
    "parameters": lambda size: "data:" + ";" * size,
    "parameters with values": lambda size: "data:" + ";a=b" * (size // 4),
    "many times base64": lambda size: "data:" + ";base64" * (size // 7),
    "a type without an end": lambda size: "data:" + "a" * size,
    "blanks in base64": lambda size: "data:;base64," + "a " * (size // 2),
    "escapes": lambda size: "data:," + "%" * size,
    "a name": lambda size: "file:///" + "/%" * (size // 2),
}


@pytest.mark.measures
def test_reading_an_address_costs_no_more_than_in_proportion_to_it() -> None:
    def read(url: str) -> None:
        with suppress(BridgeError):
            block(file(url))

    assert {name: why for name, make in HARD.items() if (why := grows_faster(read, make, 32 << 10))} == {}
