"""Everything that people can use is documented, and everything that is documented is there."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import sandboxagent
from sandboxagent.cli.main import COMMANDS
from sandboxagent.cli.parser import Command, CommandGroup
from sandboxagent.core.settings import OPTIONS
from sandboxagent.protocol.errors import RpcError, SettingsError
from sandboxagent.protocol.views import Features
from sandboxagent.server.agents.manifest import Agent, load_manifest
from tests.docs.pages import DOCS, REFERENCE, ROOT, TYPESCRIPT, name_of, pages
from tests.docs.snippets import blocks
from tools.reference.methods import methods
from tools.reference.schema import all_errors

LINK = re.compile(r"\[[^\]]*\]\(([^)\s#]+)[^)]*\)")
LINES = ("", "sh", "dockerfile", "ini")
"""Languages of blocks that may have command lines in them."""
READY = "sandbox-agent listening on "
"""What the server says of itself."""
UNUSED = ["not-implemented"]
"""Problems that no route has: for what the contract may promise before it is there."""
PROGRAM = re.compile(r"(?:^|[\s\"'(/])sandbox-agent((?:\s+[^\s|;&#)]+)+)")


def commands(group: CommandGroup = COMMANDS) -> Iterator[tuple[str, Command]]:
    """Every command by its words."""
    for name, word in group.words.items():
        below = word.load()
        if isinstance(below, CommandGroup):
            yield from commands(below)
        else:
            yield f"{group.name} {name}", below


def groups(group: CommandGroup = COMMANDS) -> Iterator[str]:
    yield group.name
    for word in group.words.values():
        below = word.load()
        if isinstance(below, CommandGroup):
            yield from groups(below)


def sections(page: Path) -> dict[str, str]:
    """What a page says under each heading, as far as the next one."""
    parts = re.split(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return dict(zip((title.strip("`") for title in parts[1::2]), parts[2::2], strict=True))


# --- the command line -------------------------------------------------------------------------------------------------


def test_every_flag_of_a_command_is_in_the_reference() -> None:
    said = sections(REFERENCE / "cli.md")
    flags = [
        (name, flag)
        for name, command in commands()
        for action in command.parser.actions()
        for flag in action.option_strings
    ]

    assert [(name, flag) for name, flag in flags if not re.search(rf"(?<![\w-]){flag}(?![\w-])", said[name])] == []


def test_the_reference_has_no_command_that_is_not_there() -> None:
    told = {title for title in sections(REFERENCE / "cli.md") if title.startswith("sandbox-agent ")}

    assert told == {*(name for name, _ in commands()), *groups()} - {COMMANDS.name}


def test_every_command_line_in_a_page_is_one_that_the_program_understands() -> None:
    lines = [
        (block, line.partition(" # ")[0].strip())
        for block in blocks()
        if block.language in LINES
        for line in block.code.replace("\\\n", " ").splitlines()
    ]
    wrong = [(str(block), line) for block, line in lines for found in PROGRAM.findall(line) if not understood(found)]

    assert len([line for _, line in lines if "sandbox-agent " in line]) > 100
    assert [(block, line) for block, line in wrong if not line.startswith(READY)] == []


def understood(arguments: str) -> bool:
    """Whether the words lead to a command, and it has these flags. Placeholders are taken for what they stand for."""
    try:
        words = shlex.split(arguments.replace('", "', " ").replace('"', " "))
    except ValueError:
        words = arguments.split()
    below: CommandGroup | Command = COMMANDS
    while isinstance(below, CommandGroup):
        if not words or words[0].startswith(("-", "<", "…", "[")):
            return True
        implied = below.implied(words) if below.implied is not None and words[0] not in below.words else None
        word = below.words.get(implied or words.pop(0))
        if word is None:
            return False
        below = word.load()
    flags = {flag for action in below.parser.actions() for flag in action.option_strings} | {"--help", "-h"}
    return all(word.partition("=")[0] in flags for word in words if re.fullmatch(r"--[a-z].*", word))


# --- settings, methods ------------------------------------------------------------------------------------------------


def test_every_setting_is_in_the_reference_by_its_flag_its_variable_and_its_key() -> None:
    said = (REFERENCE / "configuration.md").read_text()
    rows = [(each.flag, f"`{each.variable}`", f"`{each.name}`") for each in OPTIONS if each.name != "config_dir"]

    assert [row for row in rows if not all(re.search(rf"{re.escape(cell)}(?![\w-])", said) for cell in row)] == []


def test_every_method_has_its_place_in_the_reference_and_no_other_has_one() -> None:
    told = [title for title in sections(REFERENCE / "methods.md") if "/" in title or title in methods()]

    assert sorted(told) == sorted(methods())


def test_every_problem_is_documented_for_some_route() -> None:
    problems = {error.slug for error in all_errors() if not issubclass(error, RpcError | SettingsError)}
    told = set(
        re.findall(r"`([a-z]+(?:-[a-z]+)+|removed|misdirected|unauthorized)`", (REFERENCE / "http.md").read_text())
    )

    assert sorted(problems - told) == UNUSED


# --- the SDKs ---------------------------------------------------------------------------------------------------------


def test_every_public_name_of_the_python_sdk_is_in_the_reference() -> None:
    titles = sections(REFERENCE / "python.md").keys()
    said = (REFERENCE / "python.md").read_text()

    assert [
        name
        for name in sandboxagent.__all__
        if name != "__version__" and name not in titles and f"`{name}`" not in said
    ] == []


def test_every_public_name_of_the_typescript_sdk_is_in_the_reference() -> None:
    said = (REFERENCE / "typescript.md").read_text()
    names = set(exported((TYPESCRIPT / "src" / "index.ts").read_text()))

    assert "SandboxAgent" in names
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", said)) == []


def exported(source: str) -> Iterator[str]:
    """The names that a module exports again from others; all of the front door does that."""
    for names in re.findall(r"export (?:type )?\{([^}]*)\}", source):
        for each in names.split(","):
            name = re.sub(r"^type ", "", each.strip()).rpartition(" as ")[2]
            if name:
                yield name
    yield from re.findall(r"^export (?:declare )?(?:class|function|const|interface|type) (\w+)", source, re.MULTILINE)


# --- finding your way -------------------------------------------------------------------------------------------------


def test_every_page_can_be_reached_from_the_index() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md", DOCS / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or not page.is_file():
            continue
        seen.add(page)
        links = LINK.findall(page.read_text())
        waiting += [(page.parent / link).resolve() for link in links if "://" not in link and link.endswith(".md")]

    assert sorted(name_of(page) for page in set(pages()) - seen) == []


def test_the_index_has_every_page() -> None:
    linked = {(DOCS / link).resolve() for link in LINK.findall((DOCS / "README.md").read_text())}

    assert sorted(name_of(page) for page in DOCS.rglob("*.md") if page not in linked | {DOCS / "README.md"}) == []


# --- agents -----------------------------------------------------------------------------------------------------------


def test_every_known_agent_is_in_the_tables_of_the_contract_and_in_the_readme() -> None:
    contract, readme = (DOCS / "contract.md").read_text(), " ".join((ROOT / "README.md").read_text().split())
    agents = [agent for agent in load_manifest(None).agents if agent.id != "mock"]
    modes = contract.split("| agent | `default` |")[1].split("| any other |")[0]
    links = dict(re.findall(r"^\| `((?:file-|text-)?link|text)` \|.*\| ([^|]*) \|$", contract, re.MULTILINE))

    assert [agent.id for agent in agents if f"\n| `{agent.id}` |" not in modes] == []
    assert [agent.id for agent in agents if f"`{agent.id}`" not in links[attachments(agent)]] == []
    assert [agent.title for agent in agents if agent.title.removesuffix(" CLI") not in readme] == []


def attachments(agent: Agent) -> str:
    return (agent.features or Features("never", "none")).attachments
