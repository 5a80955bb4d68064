"""The TypeScript SDK in a real browser, on a page of another origin: as it was built; in further tabs, bundled."""

import json
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import BUNDLED, OpenPage, connect
from tests.browser.driving import Browser, Context, Page, site
from tests.support.asking import PERMISSION, QUESTION
from tests.support.running import TOKEN, Server
from tests.support.sdk import asking, permission

pytestmark = pytest.mark.xdist_group("browser")

COLOURS = [{"id": "red", "label": "Red"}, {"id": "blue", "label": "Blue"}]
QUESTIONS = [{"question": "Which?", "options": COLOURS, "multiSelect": False}]


@pytest.fixture(scope="module")
def loaded_page(context: Context, origin: str) -> Generator[Page]:
    """As it was built, without a bundler."""
    with context.page(origin, "window.sdk") as opened:
        yield opened


def ask_permission() -> list[Any]:
    return ["ask", PERMISSION, permission()]


def test_the_sdk_is_loaded_as_it_was_built(page: Page) -> None:
    loaded = page.run("return performance.getEntriesByType('resource').map((each) => new URL(each.name).pathname);")

    assert "/packages/sandboxagent/dist/index.js" in loaded
    assert {path.split("/dist/")[0].split("/v4/")[0] for path in loaded if path.startswith("/packages/")} == {
        "/packages/sandboxagent",
        "/packages/@agentclientprotocol/sdk",
        "/packages/zod",
    }


def test_a_server_of_its_own_is_nothing_for_a_page(page: Page) -> None:
    failure = page.run("return await failure(sdk.SandboxAgent.start());")

    assert failure["message"] == "start() needs Node: in a browser, connect() to a server that runs elsewhere"


def test_a_page_of_another_origin_sees_what_a_server_has(page: Page, server: Server) -> None:
    told = page.run("""
        const session = await client.sessions.create("mock", { cwd, title: "From a page" });
        return {
          health: await client.health(),
          agents: (await client.agents.list()).map(({ id }) => id),
          listed: (await all(client.sessions.list())).map(({ title }) => title),
          models: await session.models(),
          mode: (await session.modes()).currentModeId,
        };
    """)

    assert told["health"]["status"] == "ok"
    assert {"mock", "scripted"} <= set(told["agents"])
    assert "From a page" in told["listed"]
    assert told["models"]["availableModels"]
    assert told["mode"]


def test_a_turn_arrives_in_order_and_while_it_runs(page: Page) -> None:
    told = page.run(
        """
        const half = arrival();
        client.onPermission(async (request) => {
          await half;
          return request.allow();
        });
        const session = await client.sessions.create({ cwd });
        const said = [];
        const items = [];
        for await (const item of session.prompt(text)) {
          items.push(item.sessionUpdate);
          if (sdk.textOf(item)) said.push(parseInt(sdk.textOf(item)));
          if (said.length === 300) half.arrive();
        }
        return { said, items };
        """,
        text=json.dumps([["flood", 300, 40], ask_permission(), ["wait_answer"], ["flood", 300, 40]]),
    )

    assert told["said"] == [*range(300), *range(300)]
    assert told["items"][300] == "decision"
    assert told["items"][-1] == "turn_ended"


def test_ten_turns_at_once_leave_sockets_for_answers_and_for_anything_else(page: Page) -> None:
    # A browser has six to a server, and the stream takes one of them.
    told = page.run(
        """
        const asked = new Set();
        const everybody = arrival();
        let meanwhile;
        client.onPermission(async (request) => {
          asked.add(request.sessionId);
          if (asked.size === 10) {
            meanwhile = (await client.health()).status;
            everybody.arrive();
          }
          await everybody;
          return request.allow();
        });
        const sessions = await Promise.all(Array.from({ length: 10 }, () => client.sessions.create({ cwd })));
        const texts = await Promise.all(sessions.map((session) => session.prompt(text).text()));
        return { texts, meanwhile, asked: asked.size };
        """,
        text=json.dumps([["say", "May I? "], ask_permission(), ["wait_answer"], ["say", "Thanks."]]),
    )

    assert told == {"texts": ["May I? Thanks."] * 10, "meanwhile": "ok", "asked": 10}


def test_cancelling_a_turn_ends_it_and_the_session_goes_on(page: Page) -> None:
    told = page.run(
        """
        const session = await client.sessions.create({ cwd });
        const turn = session.prompt(text);
        for await (const item of turn) {
          if (sdk.textOf(item) === "begun") await turn.cancel();
        }
        return [(await turn).stopReason, await session.prompt("again").text()];
        """,
        text=json.dumps([["say", "begun"], ["wait_cancel"], ["say", "stopped"]]),
    )

    assert told == ["cancelled", "again"]


def test_a_question_is_answered_by_its_handler(page: Page) -> None:
    told = page.run(
        """
        let asked;
        client.onQuestion((request) => {
          asked = { id: request.questionId, labels: request.questions[0].options.map(({ label }) => label) };
          return request.answer("blue");
        });
        const session = await client.sessions.create({ cwd });
        return { answer: await session.prompt(text).text(), asked };
        """,
        text=json.dumps(asking(QUESTION, {"questionId": "q-1", "prompt": "Which?", "questions": QUESTIONS})),
    )

    assert told["asked"] == {"id": "q-1", "labels": ["Red", "Blue"]}
    assert json.loads(told["answer"])["result"] == {"status": "answered", "answers": [["blue"]]}


def test_a_handler_that_throws_rejects_and_the_page_goes_on(page: Page) -> None:
    told = page.run(
        """
        client.onPermission(() => {
          throw new Error("a bug of the page's");
        });
        const session = await client.sessions.create({ cwd });
        return { answer: await session.prompt(text).text(), reports };
        """,
        text=json.dumps(asking(PERMISSION, permission())),
    )

    assert json.loads(told["answer"])["result"] == {"outcome": {"outcome": "selected", "optionId": "no"}}
    assert "a bug of the page's" in told["reports"][0]


def test_an_agent_that_dies_rejects_its_own_call_and_nothing_else(page: Page) -> None:
    # A rejection that no code handles fails every test here.
    told = page.run(
        """
        const other = await client.sessions.create("mock", { cwd });
        const going = other.prompt("slow 1");
        const session = await client.sessions.create({ cwd });
        const updates = session.updates();
        session.prompt(dies);
        for await (const item of updates) if (item.sessionUpdate === "session_ended") break;
        const looked = await failure(session.prompt(dies).text());
        return { looked, going: (await going).stopReason, again: await session.prompt("back").text() };
        """,
        dies=json.dumps([["say", "so far"], ["stderr", "out of memory"], ["exit", 3]]),
    )

    assert told["looked"]["name"] == "RequestError"
    assert told["looked"]["code"] == -32603
    assert told["looked"]["data"]["type"] == "agent-exited"
    assert told["looked"]["data"]["stderr"]["head"][-1] == "out of memory"
    assert (told["going"], told["again"]) == ("end_turn", "back")


def test_a_page_that_is_loaded_anew_finds_its_session_as_it_was(page: Page, server: Server) -> None:
    text = json.dumps([["say", "May I?"], ask_permission(), ["wait_answer"], ["say", "Thanks."]])
    page.run(
        """
        const session = await client.sessions.create({ cwd });
        sessionStorage.session = session.id;
        session.prompt(text);
        """,
        text=text,
    )
    page.until("client.requests().length === 1")
    page("reload")
    page.until("window.sdk")
    connect(page, server)

    told = page.run("""
        const looked = arrival();
        client.onPermission(async (request) => {
          await looked;
          return request.allow();
        });
        const session = await client.sessions.attach(sessionStorage.session);
        const before = await logOf(session);
        const updates = session.updates();
        looked.arrive();
        for await (const item of updates) if (item.sessionUpdate === "turn_ended") break;
        return { before, after: await logOf(session) };
    """)

    ids = [event["id"] for event in told["after"]]
    assert ids == sorted(set(ids))
    # Only an open request has an id to answer it by.
    past = [{name: fact for name, fact in event.items() if name != "requestId"} for event in told["before"]]
    assert told["after"][: len(past)] == past
    [prompt] = [each for each in told["after"] if each["envelope"].get("method") == "session/prompt"]
    assert prompt["envelope"]["params"]["prompt"] == [{"type": "text", "text": text}]
    updates = [each for each in told["after"] if each["envelope"].get("method") == "session/update"]
    assert [each["envelope"]["params"]["update"]["content"]["text"] for each in updates] == ["May I?", "Thanks."]


def test_two_tabs_share_a_session_and_the_first_answer_wins(open_page: OpenPage) -> None:
    with open_page() as one, open_page() as other:
        id = one.run("window.session = await client.sessions.create({ cwd }); return session.id;")
        other.run(
            """
            window.session = await client.sessions.attach(id);
            window.seen = [];
            (async () => {
              for await (const item of session.updates()) seen.push(item);
            })();
            """,
            id=id,
        )
        one.run("window.turn = session.prompt(text);", text=json.dumps(asking(PERMISSION, permission())))
        for tab in (one, other):
            tab.until("client.requests().length === 1")
            tab.run("window.request = client.requests()[0];")
        other.run("await client.replyPermission(request.id, 'yes');")
        late = one.run("return await failure(client.replyPermission(request.id, 'no'));")
        told = one.run("return [await turn.text(), request.signal.aborted, client.requests().length];")
        other.until("seen.at(-1).sessionUpdate === 'turn_ended'")
        seen = other.run("return seen;")

    assert (late["name"], late["slug"], late["status"]) == ("AlreadyAnswered", "already-answered", 409)
    assert json.loads(told[0])["result"] == {"outcome": {"outcome": "selected", "optionId": "yes"}}
    assert told[1:] == [True, 0]
    kinds = ["turn_started", "user_message_chunk", "decision", "agent_message_chunk", "turn_ended"]
    assert [item["sessionUpdate"] for item in seen] == kinds


def test_of_two_answers_at_the_same_moment_one_wins(open_page: OpenPage) -> None:
    with open_page() as one, open_page() as other:
        id = one.run("window.session = await client.sessions.create({ cwd }); return session.id;")
        other.run("await client.sessions.attach(id);", id=id)
        for _ in range(5):
            one.run("window.turn = session.prompt(text);", text=json.dumps(asking(PERMISSION, permission())))
            answers = [("yes", one), ("no", other)]
            for _, tab in answers:
                tab.until("client.requests().length === 1")
                tab.run("window.asked = client.requests()[0].id;")
            reply = "return await failure(client.replyPermission(asked, option));"
            replies: list[tuple[str, Future[Any]]] = [
                (option, tab.starts(reply, option=option)) for option, tab in answers
            ]
            failures = {option: replied.result(60) for option, replied in replies}
            [chosen] = [option for option, failure in failures.items() if failure is None]
            [late] = [failure for failure in failures.values() if failure is not None]

            assert late["slug"] == "already-answered"
            assert json.loads(one.run("return await turn.text();"))["result"]["outcome"]["optionId"] == chosen


def test_files_are_written_and_read(page: Page) -> None:
    told = page.run("""
        const session = await client.sessions.create({ cwd });
        const files = session.files;
        const bytes = Uint8Array.from({ length: 300_000 }, (_, index) => index % 251);
        await files.write("from page/note.txt", "Grüße 🌍");
        await files.write("from page/bytes.bin", bytes);
        await files.write("from page/blob.txt", new Blob(["a blob"]));
        await files.write("from page/stream.txt", new Blob(["a stream"]).stream());
        const read = await files.read("from page/bytes.bin");
        const parts = await all(files.stream("from page/bytes.bin"));
        const archive = await all(client.files.downloadArchive(`${cwd}/from page`));
        await files.uploadArchive("unpacked", new Blob(archive));
        return {
          note: await files.readText("from page/note.txt"),
          whole: read.length === bytes.length && read.every((each, index) => each === bytes[index]),
          streamed: parts.reduce((sum, part) => sum + part.length, 0),
          part: Array.from(await files.read("from page/bytes.bin", { start: 250, end: 254 })),
          names: (await all(files.list("from page"))).map(({ name }) => name).sort(),
          found: (await all(files.search("from page", { text: "Grüße" }))).length,
          unpacked: [await files.readText("unpacked/blob.txt"), await files.readText("unpacked/stream.txt")],
          missing: await failure(files.read("nowhere")),
        };
    """)

    assert told["note"] == "Grüße 🌍"
    assert (told["whole"], told["streamed"], told["part"]) == (True, 300_000, [250, 0, 1, 2])
    assert told["names"] == ["blob.txt", "bytes.bin", "note.txt", "stream.txt"]
    assert told["found"] == 1
    assert told["unpacked"] == ["a blob", "a stream"]
    assert (told["missing"]["name"], told["missing"]["status"]) == ("ServerProblem", 404)


def test_files_are_watched(page: Page) -> None:
    changed = page.run("""
        const session = await client.sessions.create({ cwd });
        await session.files.mkdir("watched");
        const watch = session.files.watch("watched");
        await watch.ready;
        await session.files.write("watched/new.txt", "now");
        for await (const { kind, path } of watch) if (path.endsWith("new.txt")) return kind;
    """)

    assert changed == "added"


def test_a_wrong_token_is_an_error_in_words(page: Page, server: Server) -> None:
    failure = page.run("return await failure(sdk.SandboxAgent.connect(url, { token: 'wrong' }));", url=server.url)

    assert (failure["name"], failure["slug"], failure["status"]) == ("ServerProblem", "unauthorized", 401)
    assert "token" in failure["message"]


def test_a_page_that_the_server_does_not_allow_learns_what_it_may_be(
    context: Context, server: Server, folders: Mapping[str, Path]
) -> None:
    with site(folders) as elsewhere, context.page(elsewhere + BUNDLED, "window.sdk") as page:
        failure = page.run(
            "return await failure(sdk.SandboxAgent.connect(url, { token }));", url=server.url, token=TOKEN
        )

    assert failure["name"] == "ConnectionLost"
    assert server.url in failure["message"]
    assert f"--cors-origin {elsewhere}" in failure["message"]


def test_eight_tabs_work_side_by_side(open_page: OpenPage) -> None:
    # All tabs share six sockets for HTTP; the WebSocket of each is none of them.
    text = json.dumps([["say", "May I? "], ask_permission(), ["wait_answer"], ["say", "Thanks."]])
    with ExitStack() as stack:
        tabs = [stack.enter_context(open_page()) for _ in range(8)]
        for tab in tabs:
            tab.run("window.turn = (await client.sessions.create({ cwd })).prompt(text);", text=text)
        for tab in tabs:
            tab.until("client.requests().length === 1")
        said = [
            tab.run("await client.replyPermission(client.requests()[0].id, 'yes'); return await turn.text();")
            for tab in tabs
        ]

    assert said == ["May I? Thanks."] * 8


def test_a_browser_of_some_years_ago_will_do(browser: Browser, open_page: OpenPage) -> None:
    # What not every browser has that knows import maps.
    newer = """
        delete ReadableStream.prototype[Symbol.asyncIterator];
        delete ReadableStream.prototype.values;
        delete ReadableStream.from;
        delete Promise.withResolvers;
        delete Promise.try;
        delete Array.fromAsync;
        delete AbortSignal.any;
        delete URL.canParse;
        delete Object.groupBy;
        delete crypto.randomUUID;
        delete Crypto.prototype.randomUUID;
        delete globalThis.Iterator;
    """
    with browser.context() as old:
        old("addInitScript", newer)
        with open_page(where=old) as page:
            told = page.run("""
                const session = await client.sessions.create({ cwd });
                await session.files.write("old.txt", new Blob(["from an old browser"]).stream());
                const parts = await all(session.files.stream("old.txt"));
                const lines = await all(session.files.search(".", { text: "old browser" }));
                return [await session.prompt("hello").text(), await new Blob(parts).text(), lines.length];
            """)

    assert told == ["hello", "from an old browser", 1]


def test_a_client_that_is_closed_leaves_nothing_behind_that_fails_later(page: Page) -> None:
    told = page.run(
        """
        const session = await client.sessions.create({ cwd });
        const looping = all(session.updates());
        const looked = session.prompt(text);
        const ignored = session.prompt("waits for its turn");
        const watch = session.files.watch();
        await watch.ready;
        for await (const item of looked) if (sdk.textOf(item)) break;
        await client.close();
        const failed = await failure(looked);
        const late = await failure(session.prompt("too late"));
        await watch.return();
        return { failed, late, looped: (await looping).length > 0, info: await failure(session.cancel()) };
        """,
        text=json.dumps([["say", "begun"], ["wait_cancel"]]),
    )

    assert {told[each]["name"] for each in ("failed", "late", "info")} == {"ConnectionLost"}
    assert told["looped"]
