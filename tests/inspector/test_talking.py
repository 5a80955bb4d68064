"""A conversation in the Inspector, in a real browser: what a person says, sees, attaches, stops and queues."""

import json
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sandboxagent.client.sync import SandboxAgent
from tests.inspector.agent_browser import AgentBrowser
from tests.inspector.browsing import Tab
from tests.inspector.talking import Conversation, conversation
from tests.support.running import TOKEN, Server


@pytest.fixture
def talk(tab: Tab, server: Server) -> Generator[Conversation]:
    with conversation(tab, server) as opened:
        yield opened


@pytest.fixture
def scripted_talk(tab: Tab, server: Server) -> Generator[Conversation]:
    with conversation(tab, server, "scripted") as opened:
        yield opened


def test_a_message_gets_its_streamed_reply(talk: Conversation) -> None:
    talk.say("hello **there**")

    talk.is_answered("You said: hello")
    assert talk.text(".item-text strong") == "there"
    assert talk.text(".user-text") == "hello **there**"


def test_a_turn_is_stopped(talk: Conversation) -> None:
    talk.say("slow 60")
    talk.sees("word 1", ".transcript")
    talk.click("[data-action=stop]")

    talk.sees("Stopped", ".transcript")
    talk.hides("[data-action=stop]")


def test_escape_leaves_the_field_and_stops_nothing(talk: Conversation) -> None:
    talk.say("slow 60")
    talk.sees("word 1", ".transcript")
    talk.tab.press("Escape")
    talk.tab.until("!document.activeElement.matches('.composer-field')")
    talk.tab.press("Escape")
    talk.say("after that")
    talk.sees("after that", ".queue")
    assert talk.session.info().running
    talk.session.cancel()


def test_a_prompt_is_queued_while_a_turn_runs_and_can_be_taken_back(talk: Conversation) -> None:
    talk.say("slow 60")
    talk.sees("word 1", ".transcript")
    talk.say("second in line")
    talk.say("third in line")
    talk.sees("third in line", ".queue")
    talk.click(".queue-row:nth-child(2) button")
    talk.tab.until("!document.querySelector('.queue').innerText.includes('third in line')")
    talk.session.cancel()


def test_a_queued_prompt_runs_when_its_turn_comes(talk: Conversation) -> None:
    talk.say("slow 1")
    talk.shows("[data-action=stop]")
    talk.say("after that")

    talk.is_answered("You said: after that")
    talk.hides(".queue")


def test_a_file_is_attached_by_button_by_drop_and_by_paste(talk: Conversation, tmp_path: Path) -> None:
    (tmp_path / "chosen.txt").write_text("chosen")
    talk.tab.upload("input[type=file]", tmp_path / "chosen.txt")
    talk.sees("chosen.txt", ".attached")
    give = "const data = new DataTransfer(); data.items.add(new File(['x'], {name}));"
    drop = "target.dispatchEvent(new DragEvent('drop', {{ bubbles: true, cancelable: true, dataTransfer: data }}));"
    paste = (
        "target.dispatchEvent(new ClipboardEvent('paste', {{ bubbles: true, cancelable: true, clipboardData: data }}));"
    )
    for name, selector, event in (
        ("dropped.txt", ".transcript-scroller, .chat", drop),
        ("pasted.txt", ".composer-field", paste),
    ):
        target = f"const target = document.querySelector({json.dumps(selector)});"
        talk.run("{" + give.format(name=json.dumps(name)) + target + event.format() + "}")
        talk.sees(name, ".attached")
    talk.say("what are these?")

    talk.is_answered("You attached:")
    for name in ("chosen.txt", "dropped.txt", "pasted.txt"):
        talk.sees(name, ".item-text")
        talk.sees(name, ".user-message .attachments")
        # The message that the agent got has a link to it, too.
        talk.tab.until(f"document.querySelector('.user-message').innerText.split({json.dumps(name)}).length === 2")
    assert (Path(talk.session.cwd) / ".sandbox-agent" / ".gitignore").read_text() == "*\n"
    talk.hides(".attached")


def test_an_attached_image_is_shown(talk: Conversation, tmp_path: Path) -> None:
    dot = bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
        "1f15c4890000000d49444154789c6360f8cf5000000385018025a2ca3c0000000049454e44ae426082"
    )
    (tmp_path / "dot.png").write_bytes(dot)
    talk.tab.upload("input[type=file]", tmp_path / "dot.png")
    talk.sees("dot.png", ".attached")
    talk.say("see")

    talk.tab.until("document.querySelector('.user-message .chip-image')?.src.startsWith('blob:')")


def test_mode_and_model_are_seen_and_changed(talk: Conversation) -> None:
    talk.tab.until("document.querySelector('[data-choice=mode]')?.value === 'default'")
    talk.tab.choose_at("[data-choice=mode]", "plan")
    talk.tab.until("document.querySelector('[data-choice=mode]:not(:disabled)')?.value === 'plan'")
    assert talk.session.info().mode == "plan"
    talk.tab.choose_at("[data-choice=model]", "mock-large")
    talk.tab.until("document.querySelector('[data-choice=model]:not(:disabled)')?.value === 'mock-large'")
    assert talk.session.info().model == "mock-large"
    # Another client's choice is seen as well.
    talk.session.set_mode("yolo")
    talk.tab.until("document.querySelector('[data-choice=mode]').value === 'yolo'")


def test_a_reload_shows_the_same_in_a_turn_and_after_it(talk: Conversation) -> None:
    sessions = len(list(talk.client.sessions.list()))
    talk.say("slow 2")
    talk.sees("word 2", ".transcript")
    talk.tab.reload()
    talk.sees("word 2", ".transcript")
    talk.shows("[data-action=stop]")
    talk.hides("[data-action=stop]")
    before = talk.run("document.querySelector('.transcript').innerText")
    talk.tab.reload()
    talk.shows(".turn-ended")

    assert talk.run("document.querySelector('.transcript').innerText") == before
    assert len(list(talk.client.sessions.list())) == sessions


def test_what_was_typed_survives_a_reload(talk: Conversation) -> None:
    talk.tab.fill_at(".composer-field", "half a thought")
    talk.tab.reload()

    talk.tab.until("document.querySelector('.composer-field')?.value === 'half a thought'")


def test_a_crash_is_shown_with_what_the_agent_wrote_to_stderr(scripted_talk: Conversation) -> None:
    talk = scripted_talk
    talk.play(["say", "about to fail"], ["stderr", "the reactor is on fire"], ["exit", 3])

    talk.sees("exited with code 3", ".failure")
    talk.sees("the reactor is on fire", ".failure .ansi")
    # The session can be taken up again.
    talk.play(["say", "back again"])
    talk.is_answered("back again")


def test_tool_calls_plans_and_thoughts_are_shown(talk: Conversation) -> None:
    talk.say("tool")
    talk.is_answered("The tool call is done.")
    assert talk.text(".diff-removed .diff-text") == "Hello."
    assert talk.text(".diff-added .diff-text") == "Hello, world!"
    talk.say("plan")
    talk.is_answered("All went to plan.")
    talk.tab.until("document.querySelectorAll('.item-plan .check-completed').length === 3")
    talk.say("think")
    talk.is_answered("as you say.")
    talk.click(".thought-head")
    talk.sees("This needs a thought", ".thought .markdown")


def test_a_long_transcript_stays_where_the_reader_is(scripted_talk: Conversation) -> None:
    talk = scripted_talk
    paragraphs = "\n\n".join(f"paragraph {index}" for index in range(200))
    talk.play(["say", paragraphs])
    talk.is_answered("paragraph 199")
    far = "document.querySelector('.transcript-scroller')"
    talk.tab.until(f"{far}.scrollHeight - {far}.scrollTop - {far}.clientHeight < 50")
    talk.run(f"{far}.scrollTop = 300")
    talk.sees("Latest", ".transcript")
    talk.play(["say", "something new"])
    talk.hides("[data-action=stop]")
    assert talk.run(f"Math.abs({far}.scrollTop - 300) < 5")
    talk.click(".transcript-to-end")
    talk.sees("something new", ".transcript")


def test_five_thousand_pieces_of_a_message_are_shown(talk: Conversation) -> None:
    talk.say("big 5000")

    talk.sees("4999", ".transcript")


def test_the_page_comes_back_by_itself_when_the_server_is_restarted(
    agent_browser: AgentBrowser, tmp_path: Path
) -> None:
    with ExitStack() as closing:
        with Server(directory=tmp_path) as server, SandboxAgent.connect(server.url, TOKEN) as client:
            tab = closing.enter_context(Tab(agent_browser, server.url, TOKEN))
            talk = Conversation(tab, client, str(server.work))
            talk.say("before")
            talk.is_answered("You said: before")
        tab.does_not_see("Connected")
        with Server("--port", server.url.rsplit(":", 1)[1], directory=tmp_path):
            tab.sees("Connected")
            talk.say("after")
            talk.is_answered("You said: after")
            talk.sees("You said: before")
            tab.leave()


def test_hostile_content_is_shown_and_does_nothing(scripted_talk: Conversation) -> None:
    talk = scripted_talk
    hostile = [
        "<script>window.harmed = true</script>",
        "<img src=x onerror='window.harmed = true'>",
        "[click](javascript:window.harmed=true)",
        "![pixel](https://elsewhere.example/pixel.png)",
        "<iframe src='https://elsewhere.example'></iframe>",
        "> " * 2_000 + "deep",
        "x" * 300_000,
        "a \u202e bidi \u202c trick \u0007",
    ]
    text = "\n\n".join(hostile)
    bomb = "```\n" + "\u001b[31m" * 20_000 + "\u001b]52;c;ZXZpbA==\u0007red\n```"
    call = {"toolCallId": "c1", "title": "<b>bold</b>", "kind": "execute", "status": "failed"}
    talk.play_from_elsewhere(
        ["say", text],
        [
            "update",
            {
                "sessionUpdate": "tool_call",
                **call,
                "content": [{"type": "content", "content": {"type": "text", "text": bomb}}],
            },
        ],
        ["say", "the end"],
    )
    talk.is_answered("the end")

    assert talk.run("window.harmed === undefined")
    assert talk.run("document.querySelectorAll('.transcript :is(script, iframe, img, b, object, embed)').length") == 0
    assert talk.run("[...document.querySelectorAll('.transcript a')].every((a) => /^https?:/.test(a.href))")
    requests = "performance.getEntriesByType('resource').map(({ name }) => name)"
    assert talk.run(
        f"{requests}.every((name) => name.startsWith({json.dumps(talk.tab.url)}) || name.startsWith('blob:'))"
    )
