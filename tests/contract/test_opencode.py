"""Section 15: OpenCode's API, as its programs use it, beside a client that knows nothing of it."""

import asyncio
import json
import random
import socket
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.client import NO_CERTIFICATES, Client, run
from tests.support.running import BOUND, TOKEN, Server

Json = dict[str, Any]
MODEL = {"providerID": "scripted", "modelID": "small"}
OPTIONS = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]
CALL = {"toolCallId": "c", "title": "Run it", "kind": "execute", "rawInput": {"command": "make all"}}
ASKS = [["ask", "session/request_permission", {"toolCall": CALL, "options": OPTIONS}], ["echo_answer"]]


class OpenCode:
    """One of OpenCode's programs, as far as a server sees it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.http = httpx.AsyncClient(
            base_url=f"{server.url}/opencode",
            auth=("opencode", TOKEN),
            params={"directory": server.work},
            timeout=BOUND,
            trust_env=False,
            verify=False,
        )

    async def get(self, path: str) -> Any:
        answer = await self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, **body: Any) -> Any:
        answer = await self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def prompt(self, session: str, program: object, **body: Any) -> Json:
        return await self.post(f"/session/{session}/message", **said(program), **body)

    async def new_session(self, **body: Any) -> str:
        return (await self.post("/session", **body))["id"]

    @asynccontextmanager
    async def events(self, path: str = "/event") -> "AsyncGenerator[Events]":
        async with self.http.stream("GET", path) as response:
            events = Events(response)
            assert (await events.until("server.connected")) == {}
            yield events


class Events:
    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()
        self.seen: list[Json] = []

    async def until(self, type: str, session: str | None = None) -> Json:
        """The properties of the next event of a type, of one session if it is named."""
        async with asyncio.timeout(BOUND):
            async for line in self._lines:
                if line:
                    event = json.loads(line.removeprefix("data: "))
                    event = event.get("payload", event)
                    self.seen.append(event)
                    properties = event["properties"]
                    if event["type"] == type and session in (None, properties.get("sessionID")):
                        return properties
        raise EOFError


@asynccontextmanager
async def opencode(server: Server) -> AsyncGenerator[OpenCode]:
    program = OpenCode(server)
    async with program.http:
        yield program


def said(program: object) -> Json:
    """A prompt; what is not a string is a program for the scripted agent."""
    text = program if isinstance(program, str) else json.dumps(program)
    return {"model": MODEL, "parts": [{"type": "text", "text": text}]}


def text_of(message: Json) -> str:
    return "".join(part.get("text", "") for part in message["parts"])


async def known_as(program: OpenCode, title: str) -> str:
    """The id that OpenCode's programs know a session by."""
    (found,) = [each["id"] for each in await program.get("/session") if each["title"] == title]
    return found


@pytest.mark.requirement("15.token")
@pytest.mark.parametrize("path", ["/opencode/session", "/global/health"])
def test_the_token_is_a_bearer_a_password_or_in_the_query(server: Server, path: str) -> None:
    def status(**options: Any) -> int:
        return httpx.get(
            server.url + path, trust_env=False, **options, timeout=BOUND, verify=NO_CERTIFICATES
        ).status_code

    whole = b64encode(f"opencode:{TOKEN}".encode()).decode()
    assert status(headers={"Authorization": f"Bearer {TOKEN}"}) == 200
    assert status(auth=("anybody", TOKEN)) == 200
    assert status(params={"auth_token": whole}) == 200
    assert [status(), status(auth=("opencode", "x")), status(params={"auth_token": TOKEN})] == [401] * 3
    assert (
        httpx.get(
            f"{server.url}/v1/agents", auth=("opencode", TOKEN), trust_env=False, timeout=BOUND, verify=NO_CERTIFICATES
        ).status_code
        == 401
    )


@pytest.mark.requirement("15.json")
def test_errors_have_the_shapes_of_opencode(server: Server) -> None:
    async def main() -> None:
        async with opencode(server) as program:
            unknown = await program.http.get("/session/ses_x")
            assert (unknown.status_code, unknown.json()) == (
                404,
                {"name": "NotFoundError", "data": {"message": "Session not found: ses_x"}},
            )
            unasked = await program.http.post("/permission/per_x/reply", json={"reply": "once"})
            assert (unasked.status_code, unasked.json()["_tag"]) == (404, "PermissionNotFoundError")
            session = await program.new_session()
            wrong = await program.http.post(f"/session/{session}/message", json={"parts": [{"type": "hologram"}]})
            assert (wrong.status_code, wrong.json()["name"]) == (400, "BadRequest")
            assert "hologram" in wrong.json()["data"]["message"]
            for answer in (unknown, unasked, wrong):
                assert answer.headers["content-type"] == "application/json"

    run(main())


@pytest.mark.requirement("15.shared")
def test_a_session_of_another_client_is_there_with_its_history_and_live(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, opencode(server) as program:
            session = await client.new_session(title="of another client")
            await client.prompt(session, [["say", "long ago"]])
            id = await known_as(program, "of another client")
            assert "long ago" in text_of((await program.get(f"/session/{id}/message"))[-1])
            async with program.events() as events, client.stream() as stream:
                await client.prompt(session, [["say", "just now"]])
                assert (await events.until("message.part.delta", id))["delta"] == "just now"
                await program.prompt(id, [["say", "back to you"]])
                await stream.until(lambda event: event.text == "back to you")

    run(main())


@pytest.mark.requirement("15.shared")
def test_a_session_of_opencode_is_there_for_other_clients(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, opencode(server) as program:
            id = await program.new_session(title="of OpenCode")
            await program.prompt(id, [["say", "hello"]])
            view = (await client.http.get(f"/v1/sessions/{id}")).json()
            assert (view["title"], view["agent"], view["alias"]) == ("of OpenCode", "scripted", id)
            reply = await client.prompt(id, [["say", "from elsewhere"]])
            assert reply["result"]["stopReason"] == "end_turn"
            assert "from elsewhere" in text_of((await program.get(f"/session/{id}/message"))[-1])

    run(main())


@pytest.mark.requirement("6.names-unique")
def test_agent_cannot_claim_the_opencode_id_of_a_session_or_draft(server: Server) -> None:
    async def main() -> None:
        async with Client(server) as client, opencode(server) as program:
            session = await client.new_session(title="not to be taken")
            known, draft = await known_as(program, "not to be taken"), await program.new_session()
            async with Client(server, "impostor") as other:
                made = [await other.new_session(claim=claim) for claim in (known, draft)]
            assert not {known, draft} & {*made}
            await program.prompt(known, [["say", "for its own"]])
            assert "for its own" in text_of((await program.get(f"/session/{known}/message"))[-1])
            assert (await client.http.get(f"/v1/sessions/{session}")).json()["activity"]["said"] == "for its own"
            await program.prompt(draft, [["say", "said at last"]])
            assert (await client.http.get(f"/v1/sessions/{draft}")).json()["agent"] == "scripted"

    run(main())


@pytest.mark.requirement("15.asking")
@pytest.mark.parametrize("here", [True, False])
def test_a_permission_is_answered_on_either_side_once(server: Server, here: bool) -> None:
    async def main() -> None:
        async with Client(server) as client, opencode(server) as program:
            session = await client.new_session(title=f"asks {here}")
            id = await known_as(program, f"asks {here}")
            async with program.events() as events, client.stream() as stream:
                turn = asyncio.create_task(client.prompt(session, ASKS))
                asked = await events.until("permission.asked", id)
                request = await stream.method("session/request_permission")
                assert (asked["permission"], asked["patterns"]) == ("bash", ["make all"])
                answer = {"outcome": {"outcome": "selected", "optionId": "no"}}
                if here:
                    await program.post(f"/permission/{asked['id']}/reply", reply="once")
                    await stream.method("$/cancel_request")
                    assert (await client.answer(request.data["id"], answer)).status_code == 409
                else:
                    assert (await client.answer(request.data["id"], answer)).status_code < 300
                    late = await program.http.post(f"/permission/{asked['id']}/reply", json={"reply": "once"})
                    assert late.status_code == 404
                replied = await events.until("permission.replied", id)
                assert replied["reply"] == ("once" if here else "reject")
                await turn
                assert ("yes" if here else "no") in text_of((await program.get(f"/session/{id}/message"))[-1])

    run(main())


@pytest.mark.requirement("15.turn")
def test_a_prompt_is_answered_when_its_turn_is_over_and_its_events_are_written(server: Server) -> None:
    async def main() -> None:
        async with opencode(server) as program, program.events() as events:
            id = await program.new_session()
            reply = await program.prompt(id, [["say", "one "], ["say", "two"]])
            assert text_of(reply) == "one two"
            assert reply["info"]["time"]["completed"]
            # Nothing more is waited for: it is all there.
            await events.until("session.idle", id)
            ended = [
                each["properties"]["part"]
                for each in events.seen
                if each["type"] == "message.part.updated" and each["properties"]["part"].get("time", {}).get("end")
            ]
            assert [part["text"] for part in ended] == ["one two"]
            answer = await program.http.post(f"/session/{id}/prompt_async", json=said([["say", "three"]]))
            assert (answer.status_code, answer.content) == (204, b"")
            await events.until("session.idle", id)

    run(main())


@pytest.mark.requirement("15.failed-turn")
def test_a_turn_that_failed_is_a_message_with_the_error(server: Server) -> None:
    async def main() -> None:
        async with opencode(server) as program, program.events() as events:
            id = await program.new_session()
            failed = await program.prompt(id, [["respond_error", -32603, "the model is gone"]])
            assert failed["info"]["error"]["data"]["message"].startswith("the model is gone")
            turn = asyncio.create_task(program.prompt(id, [["say", "x"], ["wait_cancel"]]))
            await events.until("message.part.delta", id)
            assert await program.post(f"/session/{id}/abort") is True
            assert (await turn)["info"]["error"]["name"] == "MessageAbortedError"
            assert (await program.prompt(id, [["say", "again"]]))["info"].get("error") is None

    run(main())


@pytest.mark.requirement("15.ids", "15.kept")
def test_ids_and_what_is_kept_outlive_a_restart(tmp_path: Path) -> None:
    mine = {"messageID": "msg_1ddcab85a001ABCDEFGHIJKLMN"}

    async def before(server: Server) -> tuple[str, Json, list[Json]]:
        async with opencode(server) as program:
            parent = await program.new_session()
            id = await program.new_session(parentID=parent)
            await program.prompt(id, [["say", "one"]])
            await program.prompt(id, [["say", "two"]], **mine)
            await program.http.patch(f"/session/{id}", json={"title": "Mine", "time": {"archived": 7}})
            return id, await program.get(f"/session/{id}"), await program.get(f"/session/{id}/message")

    async def after(server: Server, id: str) -> tuple[Json, list[Json]]:
        async with opencode(server) as program:
            return await program.get(f"/session/{id}"), await program.get(f"/session/{id}/message")

    with Server(directory=tmp_path) as server:
        id, session, messages = run(before(server))
        server.stop()
        server.start()
        session_again, messages_again = run(after(server, id))

    assert messages_again == messages
    names = ("id", "title", "parentID", "directory", "model")
    assert [session_again[name] for name in names] == [session[name] for name in names]
    assert (session_again["title"], session_again["time"]["archived"]) == ("Mine", 7)
    parts = [part["id"] for message in messages for part in message["parts"]]
    assert messages[2]["info"]["id"] == mine["messageID"]
    assert parts == sorted(parts)


@pytest.mark.requirement("15.models")
def test_models_are_known_before_the_first_session_and_are_set(server: Server) -> None:
    async def main() -> None:
        async with opencode(server) as program, Client(server) as client:
            providers = {each["id"]: each for each in (await program.get("/config/providers"))["providers"]}
            assert {"small", "large"} <= providers["scripted"]["models"].keys()
            modes = [each["name"] for each in await program.get("/agent")]
            assert "plan" in modes
            id = await program.new_session()
            await program.prompt(id, [["say", "x"]])
            large = {"providerID": "scripted", "modelID": "large"}
            body = {"model": large, "agent": "plan", "parts": [{"type": "text", "text": '[["say", "y"]]'}]}
            await program.post(f"/session/{id}/message", **body)
            view = (await client.http.get(f"/v1/sessions/{id}")).json()
            assert (view["model"], view["mode"]) == ("large", "plan")

    run(main())


@pytest.mark.requirement("15.other-agent")
def test_a_model_of_another_agent_is_refused_once_a_session_has_begun(server: Server) -> None:
    async def main() -> None:
        async with opencode(server) as program:
            id = await program.new_session()
            await program.prompt(id, [["say", "x"]])
            body = said("hello") | {"model": {"providerID": "mock", "modelID": "mock-small"}}
            refused = await program.http.post(f"/session/{id}/message", json=body)
            assert refused.status_code == 400
            assert "does not support changing the model" in refused.json()["errors"][0]["message"]

    run(main())


@pytest.mark.requirement("15.directories")
def test_what_is_asked_of_one_directory_has_nothing_of_another(server: Server, tmp_path: Path) -> None:
    async def main() -> None:
        async with opencode(server) as here, opencode(server) as there:
            there.http.params = httpx.QueryParams({"directory": str(tmp_path)})
            async with here.events() as heard_here, there.events() as heard_there:
                mine, other = await here.new_session(), await there.new_session()
                await here.prompt(mine, [["say", "here"]])
                await there.prompt(other, [["say", "there"]])
                await heard_here.until("session.idle", mine)
                await heard_there.until("session.idle", other)
            assert other not in json.dumps(heard_here.seen)
            assert mine not in json.dumps(heard_there.seen)
            assert [each["id"] for each in await there.get("/session")] == [other]
            assert other not in [each["id"] for each in await here.get("/session")]

    run(main())


def shuffled(count: int) -> str:
    return "".join(f"{line}\n" for line in random.Random(1).sample(range(count), count))


@pytest.mark.requirement("15.diffs")
def test_an_agents_text_of_any_content_does_not_hold_up_other_clients(server: Server) -> None:
    """The fence took hours to look for, and the changes a minute to find."""
    fence = {"type": "content", "content": {"type": "text", "text": f"{'`' * 30_000}\n{'`' * 29_999}x"}}
    old, new = "".join(f"{line}\n" for line in range(400)), shuffled(400)
    turned = {"type": "diff", "path": "/w/turned", "oldText": "a\nb\n" * 99, "newText": "b\na\n" * 99}
    mixed = {"type": "diff", "path": "/w/mixed", "oldText": old, "newText": new}
    large = {"type": "diff", "path": "/w/large", "oldText": "x\n" * 100_000, "newText": "y\n" * 100_000}
    update = {"sessionUpdate": "tool_call", "kind": "edit", "status": "completed"}
    steps = [
        ["update", {**update, "toolCallId": "fence", "content": [fence]}],
        *(["update", {**update, "toolCallId": f"turned-{each}", "content": [turned] * 10}] for each in range(60)),
        ["update", {**update, "toolCallId": "mixed", "content": [mixed, large]}],
    ]

    async def main() -> None:
        async with opencode(server) as program, program.events():
            session = await program.new_session()
            message = await program.prompt(session, steps)
            tools = {part["callID"]: part["state"] for part in message["parts"] if part["type"] == "tool"}
            assert len(tools) == 62
            assert tools["fence"]["output"] == fence["content"]["text"]
            assert tools["turned-0"]["metadata"]["diff"].count("--- /w/turned\n") == 10
            diff = tools["mixed"]["metadata"]["diff"]
            assert "@@ -1,400 +1,400 @@ too much has changed to compare it line by line\n-0\n-1\n" in diff
            told = "[100,000 lines, 200,000 characters: too large to show]"
            assert diff.endswith(f"@@ -1 +1 @@ too large to show\n-{told}\n+{told}\n")

    run(main())


async def run_shell(program: OpenCode, session: str, command: str) -> httpx.Response:
    return await program.http.post(
        f"/session/{session}/shell", json={"agent": "build", "model": MODEL, "command": command}
    )


async def shell_output(program: OpenCode, session: str, command: str) -> str:
    answer = await run_shell(program, session, command)
    assert answer.status_code == 200, answer.text
    (part,) = [part for part in answer.json()["parts"] if part["type"] == "tool"]
    return part["state"]["output"]


def refusal(answer: httpx.Response) -> str:
    """What a command was refused with, in OpenCode's shape."""
    assert (answer.status_code, answer.json()["name"]) == (400, "BadRequest"), answer.text
    return answer.json()["data"]["message"]


@pytest.mark.requirement("15.shell")
@pytest.mark.server_alone("about the settings of a node")
def test_people_run_commands_unless_that_is_turned_off(server: Server) -> None:
    async def main() -> None:
        async with opencode(server) as program:
            session = await program.new_session(model={"providerID": "scripted", "id": "small"})
            assert (await shell_output(program, session, "pwd; echo $((6 * 7))")).split() == [server.work, "42"]
            unknown = await run_shell(program, "ses_x", "true")
            assert unknown.status_code == 404

        with Server("--no-persist", "--opencode-shell", "off") as other:
            async with opencode(other) as program:
                session = await program.new_session(model={"providerID": "scripted", "id": "small"})
                marker = Path(other.work) / "ran"
                said = refusal(await run_shell(program, session, f"touch {marker}"))
                assert "--opencode-shell on" in said
                assert not marker.exists()
                # Nothing else is off, and no session was begun for it.
                assert await program.get(f"/session/{session}/message") == []

    run(main())


@pytest.mark.requirement("15.shell")
@pytest.mark.requirement("15.shell-roots")
@pytest.mark.server_alone("about the settings of a node")
def test_with_roots_commands_are_off_and_turned_on_they_stay_within_them(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    for each in (root, elsewhere):
        each.mkdir()
    (root / "out").symlink_to(elsewhere)

    async def begin(program: OpenCode, directory: Path) -> str:
        body = {"model": {"providerID": "scripted", "id": "small"}}
        made = await program.http.post("/session", json=body, params={"directory": str(directory)})
        return made.json()["id"]

    async def main() -> None:
        with Server("--no-persist", "--fs-root", str(root)) as server:
            async with opencode(server) as program:
                said = refusal(await run_shell(program, await begin(program, root), "true"))
                assert "--opencode-shell on" in said
                assert "--fs-root" in said
        with Server("--no-persist", "--fs-root", str(root), "--opencode-shell", "on") as server:
            async with opencode(server) as program:
                assert (await shell_output(program, await begin(program, root), "pwd")).strip() == str(root)
                for directory in (elsewhere, root / "out", tmp_path):
                    said = refusal(await run_shell(program, await begin(program, directory), "touch ran"))
                    assert "--fs-root" in said
                assert not list(elsewhere.iterdir())

    run(main())


SHELL_RULES = """
[[rules]]
name = "no pushing"
command = "git push"
action = "reject"
reason = "People push elsewhere."

[[rules]]
command = "printf *"
action = "ask"

[[rules]]
command = "echo *"
action = "allow"
"""


@pytest.mark.requirement("15.shell-rules")
@pytest.mark.server_alone("about the settings of a node")
def test_a_command_that_a_rule_rejects_is_refused_with_the_rule(tmp_path: Path) -> None:
    (tmp_path / "permissions.toml").write_text(SHELL_RULES)

    async def main() -> None:
        with Server("--no-persist", "--permissions-file", str(tmp_path / "permissions.toml")) as server:
            async with opencode(server) as program:
                denying = [{"permission": "bash", "pattern": "touch *", "action": "deny"}]
                session = await program.new_session(model={"providerID": "scripted", "id": "small"}, permission=denying)
                assert await shell_output(program, session, "echo a") == "a\n"
                assert await shell_output(program, session, "printf b") == "b"
                assert await shell_output(program, session, "expr 1 + 1") == "2\n"

                said = refusal(await run_shell(program, session, "git push --force"))
                assert "rule 1 of the server (no pushing)" in said
                assert said.endswith("People push elsewhere.")
                for hidden in (
                    "echo a; git push",
                    "x=push; git $x",
                    "if true; then git push; fi",
                    "bash -c 'git push'",
                ):
                    assert "no pushing" in refusal(await run_shell(program, session, hidden)), hidden
                assert "OpenCode" in refusal(await run_shell(program, session, "touch ran"))
                assert not (Path(server.work) / "ran").exists()

                # It is not in the transcript: nothing ran.
                tools = [
                    p
                    for m in await program.get(f"/session/{session}/message")
                    for p in m["parts"]
                    if p["type"] == "tool"
                ]
                assert [tool["state"]["input"]["command"] for tool in tools] == ["echo a", "printf b", "expr 1 + 1"]

    run(main())


@pytest.mark.requirement("15.slow-reader")
def test_a_reader_that_takes_nothing_is_cut_off_and_holds_up_no_one() -> None:
    async def main(server: Server) -> None:
        async with opencode(server) as program:
            id = await program.new_session()
            stalled = await asyncio.to_thread(open_stream_and_read_nothing, server)
            with stalled:
                async with program.events() as events:
                    for _ in range(24):
                        # Less than the buffer at a time: one that reads is never behind by more.
                        reply = await program.prompt(id, [["flood", 25, 20_000], ["say", "the end"]])
                        assert text_of(reply).endswith("the end")
                        await events.until("session.idle", id)
                await asyncio.to_thread(read_to_the_end, stalled)

    with Server("--stream-buffer", "1MiB") as server:
        run(main(server))


def open_stream_and_read_nothing(server: Server) -> socket.socket:
    """A stream of events whose client reads its greeting and nothing more, on a socket with a small buffer."""
    address = urlsplit(server.url)
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    opened.settimeout(BOUND)
    opened.connect((address.hostname, address.port))
    token = b64encode(f"opencode:{TOKEN}".encode()).decode()
    head = f"GET /opencode/global/event HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Basic {token}\r\n\r\n"
    opened.sendall(head.encode())
    assert opened.recv(12) == b"HTTP/1.1 200"
    return opened


def read_to_the_end(stalled: socket.socket) -> None:
    """The server has closed it: what is left comes, and then the end, or a reset."""
    try:
        while stalled.recv(1 << 16):
            pass
    except ConnectionResetError:
        return
