"""The house rules that a program can check: names, what may not be in git, and that all is documented."""

import ast
import re
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from sandboxagent.adapters.opencode.errors import BridgeError
from sandboxagent.cli import failures
from sandboxagent.cli.failures import ServerFailed, TokenMissing
from sandboxagent.client import errors as client_errors
from sandboxagent.client.errors import ClientError
from sandboxagent.protocol import errors
from sandboxagent.protocol.errors import RpcError, SandboxAgentError, SettingsError
from tests.support.architecture import first_line
from tools.reference.schema import all_errors

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "sandboxagent"
MODULES = sorted(SOURCE.rglob("*.py"))
SERVING = [("server", room) for room in ("files", "http", "sessions", "log")]

EMPTY_WORDS = {"base", "common", "helper", "helpers", "manager", "managers", "service", "services", "util", "utils"}

# Put together from parts, or this file would break its own rule.
REGISTRY_HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("registry", "npmjs", "org"),
        ("registry", "yarnpkg", "com"),
        ("crates", "io"),
    )
]
# `sandbox-agent` is our command. On PyPI and npm, it is another product.
FORGOTTEN_NAMES = [
    r"\bsandbox[_]agent\b",
    r"pip install\s+['\"]?sandbox[-]agent",
    r"npm install sandbox[-]agent",
    r"from [\"']sandbox[-]agent",
    r"(?<!/)sandbox[-]agent\[",
    r"sandbox[-]agent==",
    r"sandbox[-_]agent-\d",
]
NAMES_THE_PEER = "docs/migrating.md:"

UNITS = {"seconds": r"(?:.*_)?(?:TIMEOUT|INTERVAL)", "bytes": r"(?:.*_)?BYTES"}
"""Unit → pattern of the names of constants in that unit."""
OF_A_UNIT = re.compile(
    r"(?:(?:the|an?|default|approximate|average|maximum|minimum|free|unread|number|size|and|in|of)\s+)*(seconds|bytes)\b",
    re.IGNORECASE,
)
"""The beginning of a docstring that gives the unit of a constant."""
WITHOUT_A_UNIT = {
    "protocol/envelope.py LINE_FEED, CARRIAGE_RETURN, BACKSLASH": "bytes themselves, and not a number of them",
    "server/http/http1.py _UNSAFE": "a pattern of bytes",
}
"""Constants that break the rule, with the reason."""
MACHINE_PATHS = [f"/{folder}/" for folder in ("work", "root")]

TASKS_OF_THEIR_OWN = {
    "the function awaits the task or cancels it before it returns": [
        "adapters/amp/permissions.py PermissionSocket._judge",
        "adapters/mock/agent.py MockAgent._prompt",
        "adapters/opencode/events.py EventBus.flushed",
        "cli/chat/conversation.py OneShot.run",
        "cli/chat/json_lines.py JsonLines.write",
        "cli/chat/run.py _chat",
        "cli/chat/run.py _watch_session",
        "cli/chat/signals.py run.watched",
        "cli/commands/acp.py StdioAdapter.run",
        "cli/commands/local_agents.py _follow",
        "cli/commands/local_agents.py run_undoing.watched",
        "cli/commands/rpc.py _exchange",
        "client/api.py in_thread",
        "client/archives.py unpack",
        "client/client.py SandboxAgent.start",
        "client/websocket.py ClientSocket.close",
        "fleet/gateway/main.py _serve_on",
        "fleet/gateway/node_calls.py NodeCalls._call",
        "fleet/gateway/requests.py FleetRequests._greet",
        "fleet/gateway/tunnels.py GatewayTunnels.call",
        "fleet/gateway/tunnels.py GatewayTunnels.proxy",
        "fleet/node/membership.py Membership._take_part",
        "server/agents/install/installer.py _to_its_end",
        "server/agents/process.py AgentProcess.spawn",
        "server/file_api/archives.py Archives.unpack",
        "server/file_api/search.py _unless_gone",
        "server/http/duplex.py WebSocketTransport._serve",
        "server/http/views.py Installs._events",
        "server/sessions/host_methods.py HostRequests._wait_for_exit.waited",
    ],
    "the object has one such task, and its owner awaits or ends it": [
        "cli/chat/conversation.py OneShot._cancel",
        "cli/chat/input.py _Prompt.begin",
        "client/connection.py ClientConnection._set_apart",
        "client/turn.py Turn.__init__",
        "client/turn.py Turn.cancel",
        "client/websocket.py ClientSocket.__init__",
        "fleet/bus/jetstream.py _Reader.start",
        "server/files/watch.py Watch.__init__",
    ],
    "an object ends once: all callers share the end, and its task stays as the outcome": [
        "client/embedded.py EmbeddedServer.close",
        "fleet/bus/dial.py WebSocketConnection.close",
        "server/agents/process.py AgentProcess.stop",
        "server/sessions/terminals.py Terminal.stop",
    ],
    "callers share the task, but not as `Shared` has it: a comment or its callback there says what differs": [
        "adapters/opencode/transcripts.py Transcripts._catch_up",
        "fleet/gateway/intake.py Intake._hear",
        "fleet/gateway/node_calls.py NodeCalls.introduce",
        "fleet/gateway/tunnels.py GatewayTunnels._hear",
        "server/agents/install/installer.py Installer.begin",
    ],
    "the caller gets the task with its result": ["adapters/opencode/hub_client.py HubClient.prompt"],
}
"""Functions that start tasks without `core/tasks.py`, by their reason."""


def test_no_module_has_a_name_that_says_nothing() -> None:
    names = [module.relative_to(SOURCE).with_suffix("") for module in MODULES]

    assert [str(name) for name in names if EMPTY_WORDS & set(name.parts)] == []


def test_the_docstring_of_a_module_begins_with_one_short_sentence() -> None:
    """It stands in the table of docs/architecture.md."""
    lines = {module.relative_to(SOURCE).as_posix(): first_line(module) for module in MODULES}

    sentence = re.compile(r"[A-Z`](?:[^.;]|\.(?! [A-Z]))*\.")
    assert {name: line for name, line in lines.items() if len(line) > 100 or not sentence.fullmatch(line)} == {}


class Constant(NamedTuple):
    """A constant of a module, or several of one assignment."""

    names: list[str]
    value: ast.expr
    docstring: str

    @property
    def unit(self) -> str | None:
        """The unit that the docstring gives. A number of KiB, MiB or GiB without a docstring is in bytes."""
        if self.docstring:
            given = OF_A_UNIT.match(self.docstring)
            return None if given is None else given[1].lower()
        factors = [ast.unparse(each) for each in ast.walk(self.value) if isinstance(each, ast.BinOp)]
        return "bytes" if any(re.fullmatch(r".*(<< (10|20|30)|\* 1024)", each) for each in factors) else None

    def has_name(self, pattern: str) -> bool:
        return any(re.fullmatch(pattern, name) for name in self.names)


def constants(module: Path) -> Iterator[Constant]:
    for statement, following in pairwise([*ast.parse(module.read_text()).body, ast.Pass()]):
        match statement:
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                names = [each.id for each in ast.walk(target) if isinstance(each, ast.Name) and each.id.isupper()]
            case _:
                continue
        match following:
            case ast.Expr(value=ast.Constant(value=str(docstring))):
                pass
            case _:
                docstring = ""
        if names:
            yield Constant(names, value, docstring)


ALL_CONSTANTS = [(module.relative_to(SOURCE).as_posix(), each) for module in MODULES for each in constants(module)]


def test_constants_in_seconds_and_bytes_are_named_by_their_unit() -> None:
    """Of several constants in one assignment, one has the unit of the docstring."""
    found = [(f"{module} {', '.join(each.names)}", each) for module, each in ALL_CONSTANTS if each.unit is not None]
    wrong = [name for name, each in found if not each.has_name(UNITS[each.unit or ""])]

    assert {each.unit for _, each in found} == UNITS.keys()
    assert wrong == [*WITHOUT_A_UNIT]


def test_constants_that_are_named_by_a_unit_have_that_unit() -> None:
    documented = [(module, each) for module, each in ALL_CONSTANTS if each.docstring]
    wrong = [
        f"{module} {', '.join(each.names)}: {unit}"
        for module, each in documented
        for unit, pattern in UNITS.items()
        if each.has_name(pattern) and unit.removesuffix("s") not in each.docstring.lower()
    ]

    assert wrong == []


def test_maxima_begin_with_max() -> None:
    maxima = [(module, each) for module, each in ALL_CONSTANTS if each.docstring.startswith("Maximum ")]
    named = rf"_?MAX_.*|{UNITS['seconds']}"

    assert len(maxima) > 50, "found too few maxima"
    assert [f"{module} {', '.join(each.names)}" for module, each in maxima if not each.has_name(named)] == []


def test_rooms_that_serve_requests_use_no_shared_threads() -> None:
    """The event loop's threads are few, and are for the upkeep of agents."""
    shared = re.compile(r"to_thread|run_in_executor|run_in_threadpool|FileResponse|StaticFiles")
    serving = [module for module in MODULES if module.relative_to(SOURCE).parts[:2] in SERVING]

    assert [str(module) for module in serving if shared.search(module.read_text())] == []


def test_tasks_start_in_one_module_or_have_a_reason_not_to() -> None:
    """`core/tasks.py` keeps a task until it ends and logs why it failed."""
    begun = {
        f"{module.relative_to(SOURCE).as_posix()} {function}"
        for module in MODULES
        if module != SOURCE / "core" / "tasks.py"
        for function in functions_that_use({"create_task", "ensure_future"}, ast.parse(module.read_text()))
    }

    assert len(begun) > 20, "found no tasks"
    assert begun == {function for functions in TASKS_OF_THEIR_OWN.values() for function in functions}


def test_every_httpx_call_of_a_test_has_a_timeout() -> None:
    """Five seconds, which a busy machine may need for any answer."""
    hasty = re.compile(r"httpx\.(?:get|post|put|delete|request|stream|Client|AsyncClient)\(((?:[^()]|\([^()]*\))*)\)")
    texts = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    calls = {f"{path.name}: {each}": each for path, text in texts.items() for each in hasty.findall(text)}

    assert len(calls) > 20, "found no calls"
    assert [name for name, arguments in calls.items() if "timeout=" not in arguments] == []


def test_names_of_tests_have_at_most_80_characters() -> None:
    """A name states subject, condition and result. Facts beyond that belong into the docstring of the test."""
    defined = re.compile(r"^ *(?:async +)?def +(test_\w+)", re.MULTILINE)
    files = [path for path in (ROOT / "tests").rglob("*.py") if "node_modules" not in path.parts]
    names = [(path.relative_to(ROOT), name) for path in files for name in defined.findall(path.read_text())]

    assert len(names) > 4000, "found too few tests"
    assert [f"{path}: {name}" for path, name in names if len(name) > 80] == []


def test_no_tracked_file_names_a_registry_host() -> None:
    assert tracked_lines_with("|".join(map(re.escape, REGISTRY_HOSTS))) == []


def test_no_tracked_file_names_a_path_of_one_machine() -> None:
    # Not after a letter: "docs/work/" is a folder like any other.
    assert tracked_lines_with(rf"(?<![\w.~}}-])(?:{'|'.join(map(re.escape, MACHINE_PATHS))})") == []


def test_no_tracked_file_has_a_name_that_the_package_had() -> None:
    found = tracked_lines_with("|".join(FORGOTTEN_NAMES))
    of_the_peer = [line for line in found if line.startswith(NAMES_THE_PEER)]

    assert of_the_peer, "no exception is needed"
    assert [line for line in found if line not in of_the_peer] == []


def test_the_lock_has_a_hash_for_every_package_and_no_address() -> None:
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text().strip())

    assert [entry for entry in entries if "--hash=sha256:" not in entry or "://" in entry] == []


def test_every_error_is_drawn_in_one_tree() -> None:
    """The branches of the SDK and of the command line are drawn where they are defined."""
    modules = (errors, client_errors, failures)
    drawn = [name for module in modules for name in re.findall(r"[├└]── (\w+)", module.__doc__ or "")]
    drawn.remove(ClientError.__name__)  # The SDK's tree begins with it, and the server's tree names it.
    drawn.remove(client_errors.AlreadyAnswered.__name__)  # The SDK's error has the name of the server's.

    assert sorted(drawn) == sorted(names_of_errors())


def names_of_errors() -> set[str]:
    """Every class in the source that is below SandboxAgentError."""
    trees = [ast.parse(module.read_text()) for module in MODULES]
    classes = [each for tree in trees for each in ast.walk(tree) if isinstance(each, ast.ClassDef)]
    found = {SandboxAgentError.__name__}
    while new := {each.name for each in classes if found & {ast.unparse(base) for base in each.bases}} - found:
        found |= new
    return found - {SandboxAgentError.__name__}


def test_no_two_errors_share_a_slug() -> None:
    named = (*all_errors(), ClientError, *ClientError.__subclasses__(), TokenMissing, BridgeError)
    slugs = [error.slug for error in named if "slug" in vars(error)]

    assert sorted(slugs) == sorted(set(slugs))


def test_every_error_is_documented_with_its_status() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]+) \|", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)

    assert dict(rows) == {error.slug: documented_status(error) for error in (*all_errors(), ServerFailed, TokenMissing)}


def functions_that_use(names: set[str], node: ast.AST, inside: str = "") -> Iterator[str]:
    """Every function that names an attribute or a variable like this, as `Class.function`."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from functions_that_use(names, each, f"{inside}.{each.name}".removeprefix("."))
            continue
        if (isinstance(each, ast.Attribute) and each.attr in names) or (
            isinstance(each, ast.Name) and each.id in names
        ):
            yield inside
        yield from functions_that_use(names, each, inside)


def documented_status(error: type[SandboxAgentError]) -> str:
    """What the second column of docs/errors.md says: HTTP status, JSON-RPC code, or exit code."""
    if issubclass(error, SettingsError):
        return "exit 2"
    if issubclass(error, ServerFailed):
        return "exit 1"
    return str(error.rpc_code if issubclass(error, RpcError) else error.status)


def tracked_lines_with(pattern: str) -> list[str]:
    """Every line of a tracked file that has the pattern, as `file:line: text`."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    # A tracked file may be deleted and not yet committed.
    files = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    return [
        f"{name}:{number}: {line.strip()}"
        for name in files
        for number, line in enumerate((ROOT / name).read_text(errors="replace").splitlines(), 1)
        if re.search(pattern, line)
    ]
