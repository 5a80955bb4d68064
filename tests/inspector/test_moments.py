"""The past of a session in the Inspector: its envelopes, any moment of it, changed files; and all sessions at once."""

import json
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandboxagent import LogEvent
from sandboxagent.client.sync import SandboxAgent, Session
from tests.inspector.browsing import Tab
from tests.support.running import TOKEN, Server

PROMPT = "session/prompt"
OPTIONS = [
    {"optionId": "yes", "name": "Allow once", "kind": "allow_once"},
    {"optionId": "no", "name": "Reject", "kind": "reject_once"},
]


def update(**facts: object) -> list[object]:
    return ["update", facts]


def edit(call: str, path: str, old: str | None, new: str) -> list[list[object]]:
    """An edit that is asked for, and done once it is answered."""
    content = [{"type": "diff", "path": path, "oldText": old, "newText": new}]
    tool = {"toolCallId": call, "title": f"Edit {path}", "kind": "edit", "content": content}
    return [
        update(sessionUpdate="tool_call", status="pending", **tool),
        ["ask", "session/request_permission", {"toolCall": tool, "options": OPTIONS}],
        ["wait_answer"],
        update(sessionUpdate="tool_call_update", toolCallId=call, status="completed"),
    ]


@dataclass(frozen=True)
class Told:
    """A session with a past: two turns, one edit allowed and one rejected."""

    session: Session
    work: str
    events: list[dict[str, Any]]

    @property
    def place(self) -> str:
        return f"sessions/{self.session.id}"

    def id_of(self, text: str) -> int:
        """Of the first event that says this, and is no prompt: those have programs in them."""
        envelopes = {int(event["id"]): event["envelope"] for event in self.events}
        return next(id for id, each in envelopes.items() if each.get("method") != PROMPT and text in json.dumps(each))


@pytest.fixture(scope="module")
def client(server: Server) -> Generator[SandboxAgent]:
    def decide(request: Any) -> Any:
        return request.reject() if "README" in request.tool_call.title else request.allow()

    with SandboxAgent.connect(server.url, token=TOKEN, user="ada", on_permission=decide) as connected:
        yield connected


@pytest.fixture(scope="module")
def told(server: Server, client: SandboxAgent) -> Told:
    work = server.work
    session = client.sessions.create("scripted", cwd=work, title="Accept comments")
    first = [
        update(sessionUpdate="plan", entries=[{"content": "Read it", "priority": "high", "status": "in_progress"}]),
        ["say", "I look at the parser. "],
        *edit("call-1", f"{work}/parser.py", "one\ntwo\n", "one\n2\n"),
        ["say", "The parser is done."],
    ]
    second = [
        update(sessionUpdate="plan", entries=[{"content": "Read it", "priority": "high", "status": "completed"}]),
        *edit("call-2", f"{work}/README.md", "# App\n", "# App, with comments\n"),
        ["say", "All is said."],
    ]
    for program in (first, second):
        session.prompt(json.dumps(program)).result()
    events = [
        {"id": event.id, "at": event.at, "direction": event.direction, "envelope": event.envelope}
        for event in session.log(before=1 << 53)
        if isinstance(event, LogEvent)
    ]
    return Told(session, work, events)


def text_of(tab: Tab, selector: str) -> str:
    tab.until(f"document.querySelector({json.dumps(selector)}) !== null")
    return str(tab.run(f"document.querySelector({json.dumps(selector)}).innerText"))


def saying(text: str) -> str:
    """An expression for whether the agent's words are shown; the prompt has them, too."""
    return f"[...document.querySelectorAll('.item-text')].some((each) => each.innerText.includes({json.dumps(text)}))"


def said(tab: Tab, text: str) -> bool:
    return bool(tab.run(saying(text)))


class TestEnvelopes:
    def test_a_request_leads_to_its_response_and_the_time_it_took(self, tab: Tab, told: Told) -> None:
        asked = told.id_of("session/request_permission")
        tab.open(f"{told.place}?tab=envelopes&event={asked}")
        tab.sees("Decoded")

        detail = text_of(tab, "[aria-label=Envelope]")
        answer = next(event["id"] for event in told.events if event["id"] > asked and "result" in event["envelope"])
        assert f"event {answer}" in detail
        assert "after" in detail
        tab.click(f"event {answer}")
        tab.until(f"location.search.includes('event={answer}')")
        tab.sees(f"event {asked}")
        tab.has_accessible_room()

    def test_filters_leave_what_is_wanted(self, tab: Tab, told: Told) -> None:
        tab.open(f"{told.place}?tab=envelopes")
        tab.until("document.querySelectorAll('[role=option]').length > 10")
        tab.choose("Method", "session/request_permission")
        tab.until("document.querySelectorAll('[role=option]').length === 4")
        tab.fill("Search envelopes", "README.md")
        tab.until("document.querySelectorAll('[role=option]').length === 1")
        tab.fill("Search envelopes", "no such thing")
        tab.sees("No envelope matches")
        tab.click("Clear filters")
        tab.until("document.querySelectorAll('[role=option]').length > 10")
        tab.click("Server")
        tab.click("To agent")
        ways = "[...new Set([...document.querySelectorAll('[role=option]')].map((each) => each.dataset.way))]"
        tab.until(f"{ways}.join() === 'fromAgent'")

    def test_a_pause_keeps_the_list_as_it_is_and_counts_what_comes(
        self, tab: Tab, server: Server, client: SandboxAgent
    ) -> None:
        session = client.sessions.create("scripted", cwd=server.work)
        tab.open(f"sessions/{session.id}?tab=envelopes")
        listed = "document.querySelectorAll('[role=option]').length"
        tab.until(f"{listed} > 0")
        tab.click("Pause")
        tab.run(f"window.before = {listed}")
        session.prompt('[["say", "while it was paused"]]').result()
        tab.sees(" new")
        assert tab.run(f"{listed} === window.before")
        tab.click("Resume")
        tab.sees("while it was paused")

    def test_the_keyboard_goes_through_them(self, tab: Tab, told: Told) -> None:
        tab.open(f"{told.place}?tab=envelopes")
        tab.until("document.querySelectorAll('[role=option]').length > 10")
        tab.focus_at("[role=listbox]")
        tab.press("Home")
        tab.until(f"location.search.includes('event={told.events[0]['id']}')")
        tab.press("ArrowDown", "j")
        tab.until(f"location.search.includes('event={told.events[2]['id']}')")
        tab.press("k", "p")
        # The second is the answer to the first.
        tab.until(f"location.search.includes('event={told.events[0]['id']}')")
        tab.press("Escape")
        tab.until("!location.search.includes('event')")

    def test_an_envelope_leads_to_the_chat_and_the_chat_back_to_it(self, tab: Tab, told: Told) -> None:
        said = told.id_of("The parser is done.")
        tab.open(f"{told.place}?tab=envelopes&event={said}")
        tab.click("Show in chat")
        tab.until("document.querySelector('[data-focused]')?.innerText.includes('The parser is done.')")
        tab.focus_at("[data-focused] .item-source")
        tab.press("Enter")
        tab.until("document.querySelector('[role=option][aria-selected=true]') !== null")
        assert "agent_message_chunk" in text_of(tab, "[role=option][aria-selected=true]")

    def test_raw_is_what_was_sent(self, tab: Tab, told: Told) -> None:
        said = told.id_of("The parser is done.")
        tab.open(f"{told.place}?tab=envelopes&event={said}")
        tab.click("Raw")
        shown = text_of(tab, "[aria-label='Raw envelope']")

        assert json.loads(shown) == next(event["envelope"] for event in told.events if event["id"] == said)


class TestReplay:
    def test_an_exported_log_is_replayed(self, tab: Tab, told: Told, tmp_path: Path) -> None:
        tab.open(f"{told.place}?tab=envelopes")
        tab.until("document.querySelectorAll('[role=option]').length > 10")
        # What the page would save, without a place to save it to.
        tab.run("""(() => {
          const made = URL.createObjectURL;
          URL.createObjectURL = (blob) => { window.exported = blob; return made.call(URL, blob); };
        })()""")
        tab.click("Export")
        tab.until("window.exported !== undefined")
        exported = str(tab.run("window.exported.text()"))
        assert [json.loads(line) for line in exported.splitlines()] == told.events

        file = tmp_path / "exported.jsonl"
        file.write_text(exported)
        tab.open("replay")
        tab.upload("input[type=file]", file)
        tab.sees("exported.jsonl")
        tab.press("Tab")
        tab.focus_at("[role=slider]")
        tab.press("End")
        tab.until(saying("All is said."))
        tab.has_accessible_room(colors=False)
        tab.press("Home")
        tab.until(f"!({saying('All is said.')})")
        tab.follow("Changes")
        tab.sees("No changes")
        tab.focus_at("[role=slider]")
        tab.press("End")
        tab.sees("2 changes")

    def test_what_is_no_log_is_said(self, tab: Tab, tmp_path: Path) -> None:
        file = tmp_path / "other.jsonl"
        file.write_text("nothing of the kind\n")
        tab.open("replay")
        tab.upload("input[type=file]", file)
        tab.sees("This file is not an exported session")


class TestTimeTravel:
    def test_every_room_shows_what_was_true_at_a_moment_and_the_way_back_to_now(self, tab: Tab, told: Told) -> None:
        asked = told.id_of("session/request_permission")
        tab.open(f"{told.place}?at={asked}")
        tab.until(saying("I look at the parser."))
        assert not said(tab, "The parser is done.")
        assert tab.run("document.querySelectorAll('.settled-who').length") == 0
        tab.has_accessible_room()
        tab.follow("Changes")
        tab.sees("1 change")
        tab.sees("Waits for permission")
        tab.follow("Envelopes")
        count = next(index for index, event in enumerate(told.events, 1) if event["id"] == asked)
        tab.until(f"document.querySelectorAll('[role=option]').length === {count}")
        assert f"at={asked}" in tab.path

        tab.click("Back to live")
        tab.until("!location.search.includes('at=')")
        tab.until(f"document.querySelector('[role=option][aria-setsize=\"{len(told.events)}\"]') !== null")
        tab.follow("Chat")
        tab.until(saying("All is said."))

    def test_the_scrubber_steps_by_event_and_by_turn(self, tab: Tab, told: Told) -> None:
        tab.open(told.place)
        tab.until(saying("All is said."))
        tab.click("Timeline")
        tab.focus_at("[role=slider]")
        tab.press("ArrowLeft")
        tab.until(f"location.search.includes('at={told.events[-2]['id']}')")
        tab.press("PageDown")
        tab.until(f"!({saying('All is said.')})")
        tab.until(saying("The parser is done."))
        tab.press("Home")
        tab.until("document.querySelector('[role=slider]').ariaValueNow === '0'")
        tab.press("End")
        tab.until("!location.search.includes('at=')")

    def test_it_plays_to_the_end(self, tab: Tab, told: Told) -> None:
        tab.open(f"{told.place}?at={told.events[0]['id']}")
        tab.choose("Speed", "16")
        tab.click("Play")
        tab.until(saying("All is said."))
        tab.until("!location.search.includes('at=')")


class TestChanges:
    def test_a_review_has_what_was_asked_and_who_allowed_it(self, tab: Tab, told: Told) -> None:
        tab.open(f"{told.place}?tab=changes")
        tab.sees("2 changes in 2 files, 2 turns · 1 rejected")
        tab.sees("Allowed by ada")
        tab.sees("Rejected by ada")
        assert tab.run("document.querySelectorAll('.diff-added').length") >= 2
        tab.has_accessible_room(colors=False)

    def test_the_keyboard_goes_from_change_to_change_and_to_another_layout(self, tab: Tab, told: Told) -> None:
        tab.open(f"{told.place}?tab=changes")
        tab.sees("2 changes")
        tab.press("j")
        tab.until("document.querySelector('article[data-current]')?.innerText.includes('Turn 1')")
        tab.press("j")
        tab.until("document.querySelector('article[data-current]')?.innerText.includes('Turn 2')")
        tab.press("k")
        tab.until("document.querySelector('article[data-current]')?.innerText.includes('Turn 1')")
        tab.press("u")
        tab.until("document.querySelector('.diff-split') !== null")
        tab.press("u", "g")
        tab.until("[...document.querySelectorAll('h2')].some((each) => each.innerText.startsWith('Turn 1'))")
        tab.press("g")

    def test_a_patch_has_what_was_done_and_not_what_was_rejected(self, tab: Tab, told: Told) -> None:
        tab.open(f"{told.place}?tab=changes")
        tab.sees("2 changes")
        tab.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
        tab.click("Copy as a patch")
        tab.until("window.copied !== undefined")
        patch = str(tab.run("window.copied"))

        assert "--- a/parser.py\n+++ b/parser.py\n" in patch
        assert "-two\n+2\n" in patch
        assert "README" not in patch


class TestMissionControl:
    def test_pending_request_of_any_session_is_answered_in_mission_control(
        self, tab: Tab, server: Server, client: SandboxAgent
    ) -> None:
        # Asked of a client that leaves it open.
        with SandboxAgent.connect(server.url, token=TOKEN, on_permission=lambda _: None) as other:
            session = other.sessions.create("scripted", cwd=server.work, title="Needs an answer")
            turn = session.prompt(json.dumps([*edit("call-9", f"{server.work}/x.py", "a\n", "b\n"), ["echo_answer"]]))
            tab.open()
            tab.sees("asks for permission")
            tab.until("document.querySelector('.request .diff-added')?.innerText.includes('b')")
            tab.until("document.title.startsWith('(1)')")
            tab.click_at(".request [data-option=allow_once]")
            turn.result()
        tab.does_not_see("asks for permission")
        tab.sees("Needs an answer")

    def test_sessions_have_a_line_each_and_are_found(self, tab: Tab, server: Server, client: SandboxAgent) -> None:
        usage = update(sessionUpdate="usage_update", used=1, size=9, cost={"amount": 2.5, "currency": "USD"})
        for number in range(30):
            name = "Many, the seventh" if number == 7 else f"Many {number:02}"
            session = client.sessions.create("scripted", cwd=server.work, title=name)
            program = [["say", f"I am number {number}."], usage]
            program.append(["respond", {"stopReason": "end_turn", "usage": {"totalTokens": 1234}}])
            session.prompt(json.dumps(program)).result()
        tab.open()
        tab.sees("I am number 29.")
        tab.sees("1.2k")
        tab.sees("$2.50")
        # Only what is in view is there.
        assert tab.run("document.querySelectorAll('[data-line]').length") < 30
        tab.press("/")
        tab.type("seventh many")
        tab.until("document.querySelectorAll('[data-line]').length === 1")
        tab.press("Escape")
        tab.until("document.querySelectorAll('[data-line]').length > 5")
        tab.focus_at("[data-line='0']")
        tab.press("ArrowDown", "ArrowDown")
        tab.until("document.activeElement?.dataset.line === '2'")
        tab.press("Enter")
        tab.until("location.pathname.startsWith('/ui/sessions/')")
