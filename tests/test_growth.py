"""What each parser on the event loop costs grows with its input and no faster, whatever strangers put into it.

Each is fed what repeats something: a sign that it looks for, one that it could take back, a part that does not end. It
grows up to the most that the door lets in.
"""

import base64
import json
import tarfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import BytesIO
from posixpath import normpath
from typing import Any, NoReturn

import msgspec
import pytest
from msgspec.structs import fields
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from sandboxagent.adapters.opencode import params, prompts, tools
from sandboxagent.adapters.opencode.paths import read_query as read_query_of_opencode
from sandboxagent.cli import output
from sandboxagent.cli.chat import blocks
from sandboxagent.client.api import EventDecoder
from sandboxagent.core.archives.tar import DAMAGE, Headers
from sandboxagent.core.archives.tree import Damaged
from sandboxagent.core.settings import sources
from sandboxagent.core.texts import split_lines, unfenced
from sandboxagent.fleet import records
from sandboxagent.fleet.bus import jetstream, subjects
from sandboxagent.fleet.messages import BeatRequest, FactsRequest, LogRequest
from sandboxagent.protocol import envelope
from sandboxagent.protocol.errors import BadRequest, NotAnEnvelope
from sandboxagent.protocol.json_bounds import excess
from sandboxagent.server.agents.install import registry_entries
from sandboxagent.server.agents.lines import LineSplitter, StderrTail
from sandboxagent.server.files.entries import parse_tags
from sandboxagent.server.http import asgi, auth, body, downloads, duplex, framing, websocket
from sandboxagent.server.http.downloads import Version
from sandboxagent.server.http.head import HeadMemo
from sandboxagent.server.log import event
from sandboxagent.server.permissions import commands, patterns
from sandboxagent.server.permissions.budget import StepBudget, TooMuch
from sandboxagent.server.permissions.request import Asked
from sandboxagent.server.permissions.rules import Policy, read_rules
from sandboxagent.server.sessions import activity, attachments, forms, sanitize
from tests.support.growing import grows_faster
from tests.support.world import run, world

LINE, HEAD = 1 << 20, 64 << 10
"""Bytes that are tried of what may be long, and of what comes in a head."""
READ = 256 << 10

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
    commands.read_text(text, StepBudget(100_000, normpath))


def ask(text: str) -> None:
    schema = {"type": "object", "properties": {text: {"type": "string", "title": text, "enum": [text, text]}}}
    form = forms.fields({"requestedSchema": schema})
    forms.complaint(form, {text: text})
    forms.make_form({"questions": [{"question": text, "options": [{"label": text}]}]})


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


def take_frames(text: str) -> None:
    """What a WebSocket gets: frames that are nonsense, one large frame, and many small ones."""
    data = text.encode()
    small = b"".join(b"\x81\x81\0\0\0\0" + data[at : at + 1] for at in range(0, len(data), 8))
    for sent in (data, Frame(Opcode.TEXT, data).serialize(mask=True), small):
        cut, protocol = websocket._Cut(), ServerProtocol(state=State.OPEN, max_size=LINE)
        for at in range(0, len(sent), READ):
            piece, start = sent[at : at + READ], 0
            while start < len(piece) and protocol.state is State.OPEN:
                end = cut.find(piece, start, websocket.MAX_FRAMES)
                protocol.receive_data(piece[start:end])
                protocol.events_received()
                start = end


def read_archive(text: str) -> None:
    """A tar archive with this as a file, as a header, and as extended headers of each kind."""

    def refuse(name: str, rule: str, **facts: object) -> NoReturn:
        raise Damaged(rule)

    data = text.encode()
    padding = bytes(-len(data) % tarfile.BLOCKSIZE)
    archives = [data]
    for kind in (tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME):
        member = tarfile.TarInfo("a")
        member.type, member.size = kind, len(data)
        archives.append(member.tobuf() + data + padding)
    for archive in archives:
        with suppress(Damaged, *DAMAGE):
            list(Headers(BytesIO(archive + bytes(2 * tarfile.BLOCKSIZE)), refuse))


def take_from_a_node(text: str) -> None:
    """The messages of a node of a fleet: nonsense, with a text in each place, and with what nests."""
    data = text.encode()
    nested = b"\x81\xa1a" * (len(data) // 3), b"\x91" * len(data), b"\xdc\xff\xff" * (len(data) // 3)
    for kind in (LogRequest, BeatRequest, FactsRequest):
        names = [each.encode_name for each in fields(kind)]
        whole = [msgspec.msgpack.encode(dict.fromkeys(names, value)) for value in (text, [text], {text: text})]
        for sent in (data, *nested, *whole):
            with suppress(msgspec.DecodeError, RecursionError):
                msgspec.msgpack.decode(sent, type=kind)


def read_record(text: str) -> None:
    for meta in (text, f'{{"direction":"{text}"}}'):
        with suppress(records.NotAChunk):
            records.read_meta(meta)
    with suppress(records.NotAChunk):
        records.read_part(text)


def read_queries(text: str) -> None:
    scope: Any = {"query_string": text.encode()}
    for read in (body.query, read_query_of_opencode):
        with suppress(BadRequest, ValueError):
            read(scope)


def read_attachments(text: str) -> None:
    said = json.dumps(text)
    for entry in (f'{{"path":{said},"mime":{said},"filename":{said}}}', text):
        line = (
            f'{{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{{"prompt":[{{"type":"text","text":{said}}}],'
            f'"_meta":{{"sandboxagent.dev":{{"attachments":[{entry}]}}}}}}}}'
        ).encode()
        if not attachments.has_attachments(line):
            continue
        given = attachments.parse_blocks(line)
        attachments._mention_paths(given, [text])
        attachments._parse_attachment(0, msgspec.Raw(entry.encode()))


LINES: dict[str, Parser] = {
    "attachments of a prompt": read_attachments,
    "messages of a node": take_from_a_node,
    "a record of a fleet": read_record,
    "bounds": at_each_place(excess),
    "envelope": at_each_place(read_params),
    "another id": let_in(lambda line: envelope.with_id(line, b"7")),
    "a param": let_in(lambda line: envelope.param(line, "b")),
    "with a param": let_in(lambda line: envelope.with_param(line, "sessionId", "t")),
    "halves of pairs": at_each_place(envelope._whole),
    "an id": lambda text: envelope.same_id(f'"{text}"'.encode()),
    "one line": lambda text: envelope.one_line(text.encode()),
    "UTF-8": lambda text: envelope.check_utf8(b"\xc3\xa9" + text.encode()),
    "forgery": at_each_place(lambda line: sanitize.needs_check(line, 1)),
    "what is forged": let_in(sanitize.strip_server_fields),
    "lines": split,
    "stderr": lambda text: in_pieces(StderrTail().feed, text.encode()),
    "lines of a blob": lambda text: event.split_lines(text.encode(), 1),
    "frames": lambda text: event.frames(1, text.encode().split(b"\n")),
    "frames of a WebSocket": take_frames,
    "an archive": read_archive,
    "places in a long line": let_in(lambda line: envelope.parse_large(line).addressed(b"7", "t")),
    "key of a message": lambda text: duplex._split_key(text.encode()),
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
    "a registry": lambda text: registry_entries.parse(
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
    "a query": read_queries,
    "a directory of OpenCode's": lambda text: params._check(f"/{text}"),
    "a head": read_head,
    "what is learnt of a head": lambda text: HeadMemo.of(text.encode()[:4096], []),
    "Accept": lambda text: asgi.check_accept(text.encode(), "application/json"),
    "Content-Type": lambda text: asgi.check_json(text.encode()),
    "Prefer": lambda text: asgi.wants_async(text.encode()),
    "Host": auth._host_name,
    "Authorization": lambda text: auth._password(text.encode()),
    "subprotocols": lambda text: auth._token_among_subprotocols(f"sandboxagent.bearer.{text}".encode()),
    "Range": range_of,
    "If-Match": parse_tags,
    "a subject": subjects.token,
    "headers of a message": lambda text: jetstream._read_headers(f"NATS/1.0\r\n{text}".encode()),
}


def find_growth(parser: Parser, most: int) -> list[str]:
    """The signs whose repetition costs more than in proportion; nothing that is not foreseen may be raised."""

    def parse(text: str) -> None:
        try:
            parser(text)
        except (RecursionError, AttributeError, AssertionError, KeyError, NameError):
            raise
        except (Exception, TooMuch):
            pass

    return [
        f"{sign!r}: {found}"
        for sign in SIGNS
        if (found := grows_faster(parse, partial(repeated, sign), most)) is not None
    ]


TABLE = [(name, parser, LINE) for name, parser in LINES.items()] + [
    (name, parser, HEAD) for name, parser in HEADS.items()
]


@pytest.mark.parametrize(
    ("parser", "most"), [(parser, most) for _, parser, most in TABLE], ids=[name for name, *_ in TABLE]
)
def test_what_a_parser_costs_grows_no_faster_than_its_input(parser: Any, most: int) -> None:
    assert find_growth(parser, most) == []


def test_a_cost_by_the_square_is_noticed() -> None:
    def by_the_square(text: str) -> None:
        for at in range(0, len(text), 64):
            text[at:].count("b")

    assert grows_faster(by_the_square, partial(repeated, "a"), LINE) is not None
    assert grows_faster(lambda text: text.count("b"), partial(repeated, "a"), LINE) is None


@pytest.mark.parametrize("place", ["", '{"jsonrpc":"2.0","method":"x/note","params":{"a":', "{}"])
def test_what_an_agent_writes_at_once_costs_no_more_than_in_proportion(place: str) -> None:
    """As much as is read of a pipe in one turn of the event loop."""

    async def main() -> None:
        async with world() as own:

            def receive(text: str) -> None:
                own.agent_events.receive(own.running, f"{place}{text}\n".encode())

            assert find_growth(receive, READ) == []

    run(main())
