"""Section 3: input that is wrong in every way we could think of. Each is refused by name, and what follows works."""

import asyncio
import json

import pytest

from tests.support.asking import PERMISSION, permission
from tests.support.client import Client, run
from tests.support.nonsense import NO_ENVELOPES, ONE_SERVER
from tests.support.problems import problem
from tests.support.running import Server


def deep(opening: str, closing: str, depth: int) -> str:
    return f'{{"jsonrpc":"2.0","id":1,"method":"x/echo","params":{{"a":{opening * depth}1{closing * depth}}}}}'


@pytest.mark.requirement("3.not-an-envelope-400", "3.good-after-bad")
@pytest.mark.parametrize("body", NO_ENVELOPES)
@ONE_SERVER
def test_what_is_no_envelope_is_a_400_and_the_next_request_works(server: Server, body: str) -> None:
    async def main() -> None:
        async with Client(server) as client:
            problem(await client.post(body.encode()), 400, "not-an-envelope")
            assert "result" in await client.call("x/echo")

    run(main())


@pytest.mark.requirement("3.not-an-envelope-400")
@ONE_SERVER
def test_what_is_no_envelope_is_a_400_also_without_a_connection(server: Server) -> None:
    async def main() -> None:
        client = Client(server)
        async with client.http:
            problem(await client.post("[]"), 400, "not-an-envelope")
            problem(await client.post("{"), 400, "not-an-envelope")

    run(main())


@pytest.mark.requirement("3.not-an-envelope-400")
@ONE_SERVER
def test_nothing_of_a_bad_body_reaches_the_agent(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            mark = f"injected-{client.id}"
            inner = f'{{"jsonrpc":"2.0","method":"{mark}"}}'
            for body in (
                f'{{"jsonrpc":"2.0","id":1,"method":"x/echo"}}\n{inner}',
                f'{{"jsonrpc":"2.0","id":1,"method":"x/echo","params":{{"a":"\n{inner}\n"}}}}',
                f"[{inner}]",
                f'{{"jsonrpc":"1.0","method":"{mark}"}}',
            ):
                problem(await client.post(body), 400, "not-an-envelope")
            assert not [line for line in (await client.result("x/received"))["lines"] if mark in line]

    run(main())


@pytest.mark.requirement("3.not-an-envelope-400")
@ONE_SERVER
def test_a_good_envelope_over_many_lines_is_one_line_for_the_agent(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            params = {"text": "one\ntwo\r\nthree\u2028four", "of": client.id}
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "x/echo", "params": params}, indent=2)
            response = await client.post(body.replace("\n", "\r\n"))
            assert response.json()["result"]["params"] == params

    run(main())


@pytest.mark.requirement("3.id-of-another-type-400", "3.good-after-bad")
@pytest.mark.parametrize("id", ["null", "true", "false", "[]", "[1]", "{}", '{"id":1}'])
@pytest.mark.parametrize("rest", ['"method":"x/echo"', '"result":{}', '"error":{"code":1,"message":"m"}'])
@ONE_SERVER
def test_an_id_that_is_neither_number_nor_string_is_a_400(server: Server, id: str, rest: str) -> None:
    async def main() -> None:
        async with Client(server) as client:
            response = await client.post(f'{{"jsonrpc":"2.0","id":{id},{rest}}}')
            assert "id" in problem(response, 400, "not-an-envelope")["detail"]
            assert "result" in await client.call("x/echo")

    run(main())


@pytest.mark.requirement("3.not-utf8-400", "3.good-after-bad")
@pytest.mark.parametrize(
    "text", [b"\xff", b"\xc3(", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", "é".encode("latin-1")]
)
@ONE_SERVER
def test_a_body_that_is_not_utf8_is_a_400(server: Server, text: bytes) -> None:
    async def main() -> None:
        async with Client(server) as client:
            for body in (
                b'{"jsonrpc":"2.0","id":1,"method":"x/echo","params":{"a":"' + text + b'"}}',
                b'{"jsonrpc":"2.0","id":"' + text + b'","method":"x/echo"}',
                b'{"jsonrpc":"2.0","id":1,"method":"x/' + text + b'"}',
                b'{"jsonrpc":"2.0","id":1,"method":"x/echo","' + text + b'":1}',
            ):
                problem(await client.post(body), 400, "not-an-envelope")
            assert "result" in await client.call("x/echo")

    run(main())


@pytest.mark.requirement("3.not-utf8-400")
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-7"])
@ONE_SERVER
def test_a_body_in_another_encoding_is_a_400(server: Server, encoding: str) -> None:
    async def main() -> None:
        async with Client(server) as client:
            body = '{"jsonrpc":"2.0","id":1,"method":"x/echo","params":"é+"}'.encode(encoding)
            problem(await client.post(body if encoding != "utf-7" else b"\xff" + body), 400, "not-an-envelope")

    run(main())


@pytest.mark.requirement("3.deep-nesting-400", "3.good-after-bad")
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
@pytest.mark.parametrize("depth", [5_000, 200_000])
@ONE_SERVER
def test_a_body_that_is_nested_too_deeply_is_a_400(server: Server, opening: str, closing: str, depth: int) -> None:
    async def main() -> None:
        async with Client(server) as client:
            problem(await client.post(deep(opening, closing, depth)), 400, "not-an-envelope")
            problem(await client.post(deep(opening, "", depth)), 400, "not-an-envelope")
            assert "result" in await client.call("x/echo")

    run(main())


@pytest.mark.requirement("3.deep-nesting-400")
@ONE_SERVER
def test_a_body_that_is_nested_as_deeply_as_real_ones_is_fine(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client:
            response = await client.post(deep("[", "]", 100))
            assert response.json()["result"]["params"] == json.loads(deep("[", "]", 100))["params"]

    run(main())


@pytest.mark.requirement("3.request-200")
@pytest.mark.parametrize("text", ["\\ud83d", "\\ude00\\ud83d", "half of \\ud83d an emoji"])
@ONE_SERVER
def test_half_an_emoji_is_json_and_goes_through(server: Server, text: str) -> None:
    """JavaScript writes a string that was cut between two surrogates like this; RFC 8259 allows it."""

    async def main() -> None:
        async with Client(server) as client:
            response = await client.post(f'{{"jsonrpc":"2.0","id":1,"method":"x/echo","params":{{"a":"{text}"}}}}')
            assert response.status_code == 200, response.text
            assert text in response.json()["result"]["line"]

    run(main())


@pytest.mark.requirement("3.request-200")
@ONE_SERVER
@pytest.mark.parametrize("agent", ["scripted", "twin2"])
def test_half_an_emoji_goes_through_every_method_we_look_into(server: Server, agent: str) -> None:
    half = "\ud83d"
    name = f"{half}-{agent}"

    async def main() -> None:
        client = Client(server, agent)
        async with client.http:
            await client.initialize(clientInfo={"name": name, "version": "1"})
            session = await client.new_session(title=name, note=name)
            async with client.stream() as stream:
                say = [["say", name], permission(), ["echo_answer"]]
                turn = asyncio.create_task(client.prompt(session, say))
                asked = await stream.method(PERMISSION)
                note = {"outcome": {"outcome": "cancelled"}, "note": name}
                assert (await client.answer(asked.data["id"], note)).status_code == 202
                assert (await turn)["result"] == {"stopReason": "end_turn"}
                texts = [event.text for event in stream.seen + await stream.turn_ended() if event.text]
            assert texts[0] == name
            assert json.loads(texts[-1])["result"] == note
            events = await client.result("_sandboxagent/session/events", {"sessionId": session})
            assert name in [
                each["envelope"].get("params", {}).get("update", {}).get("content", {}).get("text")
                for each in events["events"]
            ]
            await client.result("_sandboxagent/session/set_metadata", {"sessionId": session, "metadata": {"a": name}})
            assert (await client.http.get(f"/v1/sessions/{session}")).status_code == 200
            assert (await client.http.get("/v1/sessions")).status_code == 200
            await client.result("session/list")

    run(main())
