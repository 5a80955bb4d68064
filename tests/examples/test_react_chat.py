"""The example with React: a chat with approvals and files, started by one command, in a real browser."""

import re
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.browser.driving import Browser, Page
from tests.examples.staging import EXAMPLES, ROOT, TIMEOUT, Stage
from tests.sdk_typescript.node import SDK, build, node, tsc

pytestmark = pytest.mark.xdist_group("examples in a browser")

PACKAGES = ROOT / "tests" / "bundlers" / "node_modules"
AXE = (PACKAGES / "axe-core" / "axe.min.js").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, with its packages as npm would install them."""
    build()
    folder = tmp_path_factory.mktemp("examples") / "react-chat"
    shutil.copytree(
        EXAMPLES / "typescript" / "react-chat", folder, ignore=shutil.ignore_patterns("node_modules", "dist")
    )
    shutil.copy(EXAMPLES / "typescript" / "tsconfig.json", folder.parent)
    modules = folder / "node_modules"
    modules.mkdir()
    # As a package and not as a link, so that it finds this project's React.
    shutil.copytree(SDK / "dist", modules / "sandboxagent" / "dist")
    shutil.copy(SDK / "package.json", modules / "sandboxagent")
    for name in ("react", "react-dom", "vite", "@types", "csstype"):
        (modules / name).symlink_to(PACKAGES / name)
    for name in ("@agentclientprotocol", "zod"):
        (modules / name).symlink_to(SDK / "node_modules" / name)
    return folder


@pytest.fixture(scope="module")
def address(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Where the page is that the one command starts."""
    stage = Stage(tmp_path_factory.mktemp("stage"))
    with subprocess.Popen(
        [node(), folder / "start.js"],
        cwd=folder,
        env={**stage.environment, "PORT": "0"},
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            assert program.stdout
            yield program.stdout.readline().removeprefix("Open ").strip()
        finally:
            program.terminate()


@pytest.fixture
def page(browser: Browser, address: str) -> Generator[Page]:
    with browser.context() as context, context.page(address, "document.querySelector('nav')") as opened:
        opened("click", "button:text('New session')")
        opened("waitForSelector", "input[name=prompt]")
        yield opened


def says(page: Page, text: str) -> None:
    page("fill", "input[name=prompt]", text)
    page("press", "input[name=prompt]", "Enter")


def shows(page: Page, text: str, where: str = "[role=log]") -> None:
    script = "([where, text]) => document.querySelector(where)?.innerText.includes(text)"
    page("waitForFunction", {"function": script}, [where, text], {"timeout": 60_000})


def test_the_example_has_the_types_that_the_sdk_has(folder: Path) -> None:
    done = subprocess.run(
        [node(), tsc(), "--project", folder], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )

    assert (done.returncode, done.stdout) == (0, "")


def test_an_answer_is_streamed_and_a_permission_is_given_by_keyboard(page: Page) -> None:
    says(page, "hello")
    shows(page, "You said: hello")

    says(page, "write notes.txt Well done")
    page("waitForSelector", "section[data-kind=permission]")
    assert page.run("return document.querySelector('section[data-kind=permission] h2').innerText") == (
        "Allow: Write notes.txt?"
    )
    page("focus", "button[data-option=allow_once]")
    page("press", "button[data-option=allow_once]", "Enter")

    shows(page, "Write notes.txt completed")
    shows(page, "Write notes.txt: Allow once")
    page.until("!document.querySelector('.sa-request')")
    page("click", "aside button:text('notes.txt')")
    shows(page, "Well done", "aside pre")
    page.is_well()


def test_a_rejected_permission_and_a_declined_question_are_said_to_the_agent(page: Page) -> None:
    says(page, "permission")
    page("click", "button[data-option-kind=reject_once]")
    shows(page, "Write notes.txt: Reject")

    says(page, "question")
    page("click", "section[data-kind=question] button:text('Decline')")
    shows(page, "The question was rejected.")


def test_questions_and_forms_are_answered_in_their_fields(page: Page) -> None:
    says(page, "question")
    page("check", "section[data-kind=question] label:has-text('Blue') input")
    page("click", "section[data-kind=question] button:text('Answer')")
    shows(page, 'You answered: [["blue"]]')

    says(page, "question")
    page("fill", "section[data-kind=question] input[name=text-0]", "Violet")
    page("press", "section[data-kind=question] input[name=text-0]", "Enter")
    shows(page, 'You answered: [["Violet"]]')

    says(page, "form")
    page("selectOption", "section[data-kind=elicitation] select[name=color]", "green")
    page("fill", "section[data-kind=elicitation] input[name=amount]", "3")
    page("check", "section[data-kind=elicitation] input[name=gift]")
    page("click", "section[data-kind=elicitation] button:text('Send')")
    shows(page, 'You filled in: {"amount": 3, "color": "green", "gift": true}')


def test_a_plan_a_diff_a_crash_and_a_stopped_turn_are_shown(page: Page) -> None:
    says(page, "make a plan")
    page("waitForSelector", ".sa-plan [data-status=completed]")
    says(page, "use a tool")
    page("waitForSelector", ".sa-tool[data-status=completed] [data-change=added]")

    says(page, "slow 60")
    shows(page, "word 2")
    page("click", "button:text('Stop')")
    shows(page, "Stopped")
    says(page, "crash")
    shows(page, "exited with code 3")


def test_what_another_page_answers_is_no_longer_asked_here(browser: Browser, page: Page, address: str) -> None:
    says(page, "permission")
    page("waitForSelector", "section[data-kind=permission]")
    with browser.context() as elsewhere, elsewhere.page(address, "document.querySelector('nav')") as other:
        other("click", "nav button:has-text('waits for you')")
        other("click", "button[data-option=allow_once]")
        shows(other, "Write notes.txt: Allow once")

    page.until("!document.querySelector('.sa-request')")
    shows(page, "Write notes.txt: Allow once")


def test_a_page_with_a_token_that_has_expired_says_so(browser: Browser, address: str) -> None:
    wrong = re.sub(r"token=[^&]+", "token=expired", address)
    with browser.context() as context, context.page(wrong, "document.querySelector('[role=alert]')") as page:
        text = page.run("return document.querySelector('[role=alert]').innerText")

    assert "token" in text


def test_axe_finds_nothing_wrong_with_a_conversation_and_its_cards(page: Page) -> None:
    for prompt, done in {"use a tool": ".sa-diff", "make a plan": ".sa-plan [data-status=completed]"}.items():
        says(page, prompt)
        page("waitForSelector", done)
    for prompt, card in {"permission": "permission", "question": "question", "form": "elicitation"}.items():
        says(page, prompt)
        page("waitForSelector", f"section[data-kind={card}]")
        found = page.run(f"{AXE}; return (await axe.run()).violations.map(({{ id, nodes }}) => [id, nodes[0].html]);")
        assert found == [], prompt
        page("click", ".sa-answers button:last-child")
        page.until("!document.querySelector('.sa-request')")
