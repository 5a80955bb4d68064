"""The examples that are one script each: the same in Python and in TypeScript."""

import json
import re
import subprocess
from collections.abc import Callable

import pytest

from tests.examples.staging import ALLOW_OR_REJECT, EXAMPLES, TIMEOUT, Stage, TypeScript
from tests.support.fork_server import fork_server
from tests.support.running import Server

Example = Callable[[str], list[str]]
"""The command that runs an example by its name."""


@pytest.fixture(scope="module")
def typescript(tmp_path_factory: pytest.TempPathFactory) -> TypeScript:
    return TypeScript(tmp_path_factory.mktemp("examples"))


@pytest.fixture(params=["python", "typescript"])
def example(request: pytest.FixtureRequest) -> Example:
    if request.param == "python":
        return lambda name: [*fork_server().python, str(EXAMPLES / "python" / f"{name}.py")]
    typescript: TypeScript = request.getfixturevalue("typescript")
    return lambda name: typescript.command(f"{name}.ts")


def asking(kind: str | None, **tool_call: object) -> str:
    """A prompt to the scripted agent: ask for permission, and say what the answer was."""
    call = {"toolCallId": "call-1", "title": "Do it", "kind": kind, **tool_call}
    told = {name: value for name, value in call.items() if value is not None}
    return json.dumps(
        [["ask", "session/request_permission", {"toolCall": told, "options": ALLOW_OR_REJECT}], ["echo_answer"]]
    )


def test_the_examples_in_typescript_have_the_types_that_the_sdk_has(typescript: TypeScript) -> None:
    compiler = typescript.command("node_modules/typescript/bin/tsc")
    done = subprocess.run(
        [*compiler, "--noEmit", "--skipLibCheck", "--project", str(typescript.directory)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )

    assert done.stdout == ""
    assert done.returncode == 0, done.stderr


def test_chat_prints_prompts_and_what_the_agent_says(stage: Stage, example: Example) -> None:
    shown = stage.shows(example("chat"), "mock", "Good morning", "think about it")

    assert shown.startswith("> Good morning\nYou said: Good morning\n")
    assert "> think about it\nI thought about it, and it is as you say.\n" in shown


def test_chat_needs_no_arguments(stage: Stage, example: Example) -> None:
    assert "You said: Hello!" in stage.shows(example("chat"))


def test_chat_takes_the_name_of_any_agent(stage: Stage, example: Example) -> None:
    assert "from a script" in stage.shows(example("chat"), "scripted", '[["say", "from a script"]]')


def test_an_edit_inside_the_project_is_allowed_unasked(stage: Stage, example: Example) -> None:
    shown = stage.shows(example("permissions"))

    assert "[Write notes.txt: allowed]" in shown
    assert "You chose: allow_once" in shown


def test_an_edit_that_leads_out_of_the_project_is_for_a_person_to_decide(stage: Stage, example: Example) -> None:
    (stage.project / "notes.txt").symlink_to(stage.directory / "elsewhere.txt")

    shown = stage.shows(example("permissions"), "mock", "permission", "permission", "permission", says="y\nn\n")

    assert shown.count("Allow it? [y/N]") == 3
    assert re.findall("You chose: (.*)", shown) == ["allow_once", "reject_once", "reject_once"]


def test_only_what_names_files_of_the_project_is_allowed_unasked(stage: Stage, example: Example) -> None:
    inside, outside = {"path": "inside.txt"}, {"path": "../outside.txt"}
    diff = {"type": "diff", "path": "/etc/passwd", "newText": "root::0:0:::"}

    shown = stage.shows(
        example("permissions"),
        "scripted",
        asking("read", locations=[inside]),
        asking("execute", locations=[inside]),
        asking("edit"),
        asking(None, locations=[inside]),
        asking("read", locations=[inside, {"path": "/etc/passwd"}]),
        asking("read", locations=[outside]),
        asking("edit", locations=[inside], content=[diff]),
    )

    assert re.findall(r'"optionId": ?"(\w+)"', shown) == ["yes", "no", "no", "no", "no", "no", "no"]


@pytest.mark.parametrize("how", [[], ["--later"]], ids=["at once", "later"])
def test_a_question_is_answered_by_an_options_number_or_in_own_words(
    stage: Stage, example: Example, how: list[str]
) -> None:
    shown = stage.shows(
        example("questions"), *how, "mock", "question", "question", "question", says="2\nViolet, rather\n"
    )

    assert "  2. Green: Like a cucumber\n" in shown
    # For the third one, no client is there any more.
    ends = ['You answered: [["green"]]', 'You answered: [["Violet, rather"]]', "The question was rejected."]
    assert re.findall(r"You answered: .*|The question was .*", shown) == ends
    assert shown.count(" is open]") == 3 * len(how)


def test_comma_separated_answers_are_taken_and_a_wrong_one_is_asked_again(stage: Stage, example: Example) -> None:
    options = [{"id": id, "label": id.upper()} for id in ("a", "b", "c")]
    question = {"question": "Which?", "header": "Letters", "options": options, "multiSelect": True}
    asked = {"questionId": "q-1", "prompt": "Which?", "options": [], "questions": [question]}
    colors = {"type": "string", "enum": ["red", "green"]}
    schema = {"type": "object", "properties": {"color": colors}, "required": ["color"]}
    form = {"mode": "form", "message": "Which color?", "requestedSchema": schema}
    prompts = [
        json.dumps([["ask", "_sandboxagent/session/request_question", asked], ["echo_answer"]]),
        json.dumps([["ask", "elicitation/create", form], ["echo_answer"]]),
    ]

    shown = stage.shows(example("questions"), "--later", "scripted", *prompts, says="1, 3\nviolet\n2\n")

    assert shown.count("Your answer: ") == 3
    assert '[["a","c"]]' in shown.replace(" ", "")
    assert '"color":"green"' in shown.replace(" ", "")


def test_a_stored_button_is_pressed_once_by_another_process(stage: Stage, typescript: TypeScript) -> None:
    buttons = typescript.command("buttons.ts")
    with Server() as server:
        places = {"SANDBOX_AGENT_URL": server.url, "SANDBOX_AGENT_TOKEN": server.token or ""}
        stage.shows(buttons, "ask", "mock", "permission", environment=places)
        shown = stage.shows(buttons, "show", environment=places)
        [request] = re.findall(r"^(rq_\S+): Write notes.txt \[allow_once\]", shown, re.MULTILINE)

        pressed = stage.shows(buttons, "press", request, "allow_once", environment=places)
        again = stage.shows(buttons, "press", request, "reject_once", environment=places)

        assert pressed == f"{request}: allow_once\n"
        assert again == "too late: answered, allow_once\n"
        assert stage.shows(buttons, "show", environment=places) == f"{request}: no longer open\n"


def test_attached_files_reach_the_agent(stage: Stage, example: Example) -> None:
    (stage.project / "mine.txt").write_text("mine")

    shown = stage.shows(example("attachments"), "mock", "mine.txt")

    assert "- Sales of this week (file:///" in shown
    assert "/inbox/report.csv, text/csv)" in shown
    assert "/inbox/mine.txt, text/plain)" in shown
    assert [each.name for each in stage.project.iterdir()] == ["mine.txt"]


def test_the_page_of_examples_lists_them_all_and_how_to_run_each() -> None:
    said = (EXAMPLES / "README.md").read_text()
    programs = [*EXAMPLES.glob("python/*.py"), *EXAMPLES.glob("python/*/app.py"), *EXAMPLES.glob("typescript/*.ts")]

    assert len(programs) == 12
    assert "](typescript/browser.html)" in said
    assert "npm --prefix examples/typescript/react-chat start" in said
    for program in programs:
        name = program.relative_to(EXAMPLES).as_posix()
        runner = "python" if program.suffix == ".py" else "node"
        assert f"`{runner} examples/{name} " in said
        assert f"usage: {runner} examples/{name}" in program.read_text(), "the first lines tell how to run it"
