"""What each parser on the event loop costs grows with its input and no faster, whatever strangers put into it.

Each is fed what repeats something: a sign that it looks for, one that it could take back, a part that does not end. The
input grows fourfold, up to the most that the door lets in, or until it costs much. A cost that is in proportion grows
fourfold, and one by the square sixteenfold. CPU time of this thread is measured, the best of several, and looked at
again when it seems too much: a busy machine does not make a parser fail.
"""

import base64
import json
import time
from collections.abc import Callable
from contextlib import suppress
from posixpath import normpath
from typing import Any

import msgspec
import pytest

from sandbox_agent import envelope
from sandbox_agent.agents.install import entries
from sandbox_agent.agents.lines import LineSplitter, StderrTail
from sandbox_agent.bus import jetstream, subjects
from sandbox_agent.cli import output
from sandbox_agent.cli.chat import blocks
from sandbox_agent.client.api import EventDecoder
from sandbox_agent.host.transfer.entries import parse_tags
from sandbox_agent.http import asgi, downloads, exchange, framing, guard
from sandbox_agent.http.downloads import Version
from sandbox_agent.hub import activity, forgery, question
from sandbox_agent.json_bounds import excess
from sandbox_agent.log import event
from sandbox_agent.opencode import prompts, tools
from sandbox_agent.permissions import commands, patterns
from sandbox_agent.permissions.request import Asked
from sandbox_agent.permissions.rules import Policy, read_rules
from sandbox_agent.permissions.work import TooMuch, Work
from sandbox_agent.protocol.errors import NotAnEnvelope
from sandbox_agent.settings import sources
from sandbox_agent.texts import split_lines, unfenced
from tests.support.world import run, world

LINE, HEAD = 1 << 20, 64 << 10
"""Bytes that are tried of what may be long, and of what comes in a head."""
READ = 256 << 10
LEAST = 1 << 10
MUCH, LITTLE = 0.2, 0.004
"""Seconds after which a parser is not given more, and up to which what it costs does not count."""
FASTER = 9.0
"""Between four and sixteen."""
LOOKS = 4

Parser = Callable[[str], object]

SIGNS = [
    *(
        "a",
        " ",
        "\n",
        "\r",
        "\r\n",
        "\t",
        '"',
        "'",
        "\\",
        "\\\\",
        '\\"',
        "\\u0061",
        "\\ud800",
        "\\ud83d\\ude00",
        "é",
        "😀",
    ),
    *("{", "}", "[", "[]", "[],", "{},", ",", ":", ";", "=", "a=1;", "a,", '"a",', '{"a":', '"a":1,', "W/", '"x"'),
    *("*", "**", "**/", "?", "[a", "{a,b}", "/", "../", "a/", "./", "~", "%41", "+"),
    *(
        "`",
        "```\n",
        "~~~\n",
        "$",
        "$(",
        "${",
        "(",
        ")",
        "((",
        "|",
        "||",
        "&",
        "&&",
        "<",
        "<<a\n",
        ">",
        "#",
        "!",
        "a b ",
    ),
    *(
        "-",
        "--",
        "+++ a\n",
        "@@ -1 +1 @@\n",
        "+a\n-a\n",
        "0",
        "9",
        "1e",
        "-1",
        "data:\n",
        "id: 1\n",
        ":\n",
        "\x1b[",
        "\x1b",
    ),
]


def repeated(sign: str, size: int) -> str:
    return sign * (size // len(sign.encode()))


def in_pieces(feed: Callable[[bytes], object], data: bytes) -> None:
    for at in range(0, len(data), 997):
        feed(data[at : at + 997])


def at_each_place(work: Callable[[bytes], object]) -> Parser:
    """A line with a text in the place of a value, of an object's inside, of a name, and after the end."""

    def parse(text: str) -> None:
        for line in (
            f'{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"sessionId":"s","a":{text}}}}}',
            f'{{"jsonrpc":"2.0","id":1,"method":"x","params":{{"sessionId":"s","a":"{text}"}}}}',
            f'{{"jsonrpc":"2.0","{text}":1,"id":1,"method":"x"}}',
            f'{{"jsonrpc":"2.0","method":"x","id":"{text}"}}',
            f'{{{text}"jsonrpc":"2.0","id":1,"method":"x"}}{text}',
        ):
            with suppress(NotAnEnvelope, msgspec.DecodeError):
                work(line.encode())

    return parse


def let_in(work: Callable[[bytes], object]) -> Parser:
    """The same of a line that is an envelope."""

    def check(line: bytes) -> None:
        envelope.parse(line)
        work(line)

    return at_each_place(check)


def read_params(line: bytes) -> None:
    said = envelope.parse(line)
    said.params()
    said.result()


def split(text: str) -> None:
    splitter = LineSplitter()
    in_pieces(splitter.feed, text.encode())
    splitter.rest()


def read_head(text: str) -> None:
    data = b"POST /v1/rpc HTTP/1.1\r\n" + text.encode() + b"\r\ncontent-length: 1\r\n\r\n"
    found = framing.Framing()
    at = 0
    while at < len(data):
        end = found.end_of_piece(data[: at + 997], at)
        found.advance(data, at, end)
        at = max(end, at + 1)


def decide(text: str) -> None:
    rules = read_rules([{"path": "src/**/*.py", "action": "allow"}, {"command": "git *", "action": "allow"}], "server")
    for call in (
        {"kind": "execute", "rawInput": {"command": text}},
        {"kind": "edit", "rawInput": {"path": text, "diff": text, "other": [text]}},
    ):
        policy = Policy(rules, "/home/me", normpath, 100_000)
        policy.decide(Asked({"toolCall": {"toolCallId": "1", **call}}, "claude", "/srv/app"), ())


def match(text: str) -> None:
    for glob in (f"{text[:200]}a", "a*b*c*d*e*f", "**/*.py", "*a*a*a*b"):
        compiled = patterns.compile_pattern(glob)
        if compiled.steps(text) <= 100_000:
            compiled.fits(text)


def read_command(text: str) -> None:
    commands.read_text(text, Work(100_000, normpath))


def ask(text: str) -> None:
    schema = {"type": "object", "properties": {text: {"type": "string", "title": text, "enum": [text, text]}}}
    form = question.fields({"requestedSchema": schema})
    question.complaint(form, {text: text})
    question.make_form({"questions": [{"question": text, "options": [{"label": text}]}]})


def speak(text: str) -> None:
    recent = activity.Recent()
    chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text[:7000]}}
    line = json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": chunk}})
    recent.add([line.encode()] * 16)
    recent.last_line()


def stream(text: str) -> None:
    decoder = EventDecoder()
    in_pieces(lambda piece: list(decoder.feed(piece)), text.encode())


def show_a_part(text: str) -> None:
    encoded = base64.b64encode(text.encode()).decode()
    for url in (text, f"data:text/plain;base64,{encoded}", f"data:{text},x", f"file:///{text}"):
        prompts.make_blocks(
            [{"type": "file", "mime": "text/plain", "url": url, "filename": text}], images=True, embeds=True
        )


def range_of(text: str) -> None:
    version = Version('"tag"', 0.0, 1000)
    for range in (text, f"bytes={text}", f"bytes={text}-{text}"):
        downloads.find_part({"range": range, "if-range": text}, "a", version)
    downloads.is_known({"if-none-match": text}, version)
    downloads.is_known({"if-modified-since": text}, version)
    downloads.content_disposition(text)


LINES: dict[str, Parser] = {
    "bounds": at_each_place(excess),
    "envelope": at_each_place(read_params),
    "another id": let_in(lambda line: envelope.with_id(line, b"7")),
    "a param": let_in(lambda line: envelope.param(line, "b")),
    "with a param": let_in(lambda line: envelope.with_param(line, "sessionId", "t")),
    "halves of pairs": at_each_place(envelope._whole),
    "an id": lambda text: envelope.same_id(f'"{text}"'.encode()),
    "one line": lambda text: envelope.one_line(text.encode()),
    "UTF-8": lambda text: envelope.check_utf8(b"\xc3\xa9" + text.encode()),
    "forgery": at_each_place(lambda line: forgery.may_forge(line, 1)),
    "what is forged": let_in(forgery.disarm),
    "lines": split,
    "stderr": lambda text: in_pieces(StderrTail().feed, text.encode()),
    "lines of a blob": lambda text: event.split_lines(text.encode(), 1),
    "frames": lambda text: event.frames(1, text.encode().split(b"\n")),
    "key of a message": lambda text: exchange._split_key(text.encode()),
    "what came last": speak,
    "forms": ask,
    "fences": unfenced,
    "lines of a text": split_lines,
    "a diff": lambda text: tools.make_diff([("a", text, text[::-1])]),
    "parts of a prompt": show_a_part,
    "a title": prompts.make_title,
    "a command": read_command,
    "rules": decide,
    "patterns": match,
    "a registry": lambda text: entries.parse(
        f'{{"agents":[{{"id":"a","name":{json.dumps(text)}}}, {text}]}}'.encode(), "https"
    ),
    "events": stream,
    "what is spoken": blocks.spoken,
    "what is visible": blocks.visible,
    "a diff at the terminal": lambda text: blocks.diff_lines(text, text[::-1]),
    "a line at the terminal": lambda text: blocks.wrap_line((blocks.Span(text),), 80),
    "output of a command": lambda text: output.fill_lines(text, "  "),
    "a line of a file": lambda text: sources.line_of(text, ["a", "b"]),
}
HEADS: dict[str, Parser] = {
    "a head": read_head,
    "what is learnt of a head": lambda text: framing.learn_head(text.encode()[:4096], []),
    "Accept": lambda text: asgi.check_accept(text.encode(), "application/json"),
    "Content-Type": lambda text: asgi.check_json(text.encode()),
    "Prefer": lambda text: asgi.wants_async(text.encode()),
    "Host": guard._host_name,
    "Authorization": lambda text: guard._password(text.encode()),
    "subprotocols": lambda text: guard._token_among_subprotocols(f"sandboxagent.bearer.{text}".encode()),
    "Range": range_of,
    "If-Match": parse_tags,
    "a subject": subjects.token,
    "headers of a message": lambda text: jetstream._read_headers(f"NATS/1.0\r\n{text}".encode()),
}


def cost(parser: Parser, text: str) -> float:
    """CPU time of parsing it; nothing that is not foreseen may be raised."""
    began = time.thread_time()
    try:
        parser(text)
    except (RecursionError, AttributeError, AssertionError, KeyError, NameError):
        raise
    except (Exception, TooMuch):
        pass
    return time.thread_time() - began


def grows_faster(parser: Parser, sign: str, most: int) -> str | None:
    """How, if its cost grows faster than its input: twice in a row, or once to much.

    From some size on a parser may do more for each byte, which is one step.
    """
    size, before, steps = LEAST, cost(parser, repeated(sign, LEAST)), 0
    while size < most and before < MUCH:
        size *= 4
        text, less = repeated(sign, size), repeated(sign, size // 4)
        now = cost(parser, text)
        for _ in range(LOOKS):
            if now <= LITTLE or now <= FASTER * before:
                steps = 0
                break
            now, before = min(now, cost(parser, text)), max(before, cost(parser, less))
        else:
            steps += 1
        if steps == 2 or (steps and now > MUCH):
            return f"{sign!r}: {size // 4} bytes take {before * 1000:.1f} ms, {size} take {now * 1000:.1f} ms"
        before = now
    return None


TABLE = [(name, parser, LINE) for name, parser in LINES.items()] + [
    (name, parser, HEAD) for name, parser in HEADS.items()
]


@pytest.mark.parametrize(
    ("parser", "most"), [(parser, most) for _, parser, most in TABLE], ids=[name for name, *_ in TABLE]
)
def test_what_a_parser_costs_grows_no_faster_than_its_input(parser: Any, most: int) -> None:
    assert [found for sign in SIGNS if (found := grows_faster(parser, sign, most))] == []


def test_a_cost_by_the_square_is_noticed() -> None:
    def by_the_square(text: str) -> None:
        for at in range(0, len(text), 64):
            text[at:].count("b")

    assert grows_faster(by_the_square, "a", LINE) is not None
    assert grows_faster(lambda text: text.count("b"), "a", LINE) is None


@pytest.mark.parametrize("place", ["", '{"jsonrpc":"2.0","method":"x/note","params":{"a":', "{}"])
def test_what_an_agent_writes_at_once_costs_no_more_than_in_proportion(place: str) -> None:
    """As much as is read of a pipe in one turn of the event loop."""

    async def main() -> None:
        async with world() as own:

            def receive(text: str) -> None:
                own.from_agent.receive(own.running, f"{place}{text}\n".encode())

            assert [found for sign in SIGNS if (found := grows_faster(receive, sign, READ))] == []

    run(main())
