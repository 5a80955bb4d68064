"""The docs have what the code has: methods, routes, headers, modules. Their links lead somewhere."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxagent.protocol import headers as names
from sandboxagent.server.http import auth, rpc
from sandboxagent.server.sessions import requests
from tests.docs.pages import DOCS, ROOT, name_of, pages
from tests.docs.source import SOURCE, answered_methods, trees
from tests.support.architecture import PAGE, read_modules, write_modules
from tools.reference.methods import methods

PAGES = pages()
CLIENTS = ("client/", "cli/", "server/agents/", "adapters/amp/", "fleet/bus/")
SERVERS = [path for path in SOURCE.rglob("*.py") if not path.relative_to(SOURCE).as_posix().startswith(CLIENTS)]
"""The code that answers requests of clients. What sends requests itself names headers of other servers, too."""
CONTRACT = (DOCS / "contract.md").read_text()
FLEET = (DOCS / "fleet.md").read_text()

FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def test_every_method_of_acp_that_we_answer_is_in_the_contract() -> None:
    methods = [name for name in answered_methods() if not name.startswith("_")]

    assert "session/new" in methods, "found no tables"
    assert sorted(name for name in methods if f"`{name}`" not in CONTRACT) == []


def test_every_method_of_our_own_that_the_code_names_is_documented() -> None:
    named = {text for text in texts(SOURCE.rglob("*.py")) if re.fullmatch(r"_sandboxagent(/\w+)+", text)}

    assert set(requests._ANNOUNCED) <= named
    assert sorted(named - set(methods())) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_names_a_method_of_our_own_that_is_not_there(page: Path) -> None:
    assert sorted(set(re.findall(r"`(_sandboxagent/[\w/]+)`", page.read_text())) - set(methods())) == []


def test_every_route_is_in_the_contract_or_for_gateways_in_fleet() -> None:
    routes = {*endpoints(), *(f"{method} /v1/rpc" for method in rpc.METHODS.split(", "))}

    known = {"GET /v1/health", "POST /v1/rpc", "GET /v1/sessions/{id}", "PUT /v1/fs/file", "GET /v1/nodes"}
    assert known <= routes, "found no endpoints"
    assert sorted(route for route in routes if f"`{route}`" not in CONTRACT + FLEET) == []


def test_every_header_that_we_read_or_send_is_in_the_contract() -> None:
    values = (names.RESPOND_ASYNC, names.WITH_IDS, names.PLAIN, names.BEARER)
    wire = {value.lower() for name, value in vars(names).items() if name.isupper() and value not in values}
    headers = {*headers_read(), *headers_sent(), *wire}
    for several in (auth._EXPOSED, auth._ALLOWED_HEADERS):
        headers |= {name.lower() for name in several.decode().split(", ")}

    assert {"authorization", "idempotency-key", "x-acp-last-event-id", "allow", "if-match", "content-range"} <= headers
    assert sorted(name for name in headers if not re.search(rf"`{name}[`:]", CONTRACT, re.IGNORECASE)) == []


def test_every_section_with_requirements_is_in_the_contract() -> None:
    sections = {heading.partition(".")[0] for heading in headings(CONTRACT)}
    manifests = [path.stem for path in (ROOT / "tests" / "contract" / "requirements").glob("*.toml")]

    assert manifests
    assert sorted(name for name in manifests if name.removeprefix("section_") not in sections) == []


def test_architecture_lists_every_module_with_its_docstring() -> None:
    assert read_modules(PAGE.read_text()) == write_modules(), "./dev architecture writes it anew"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(FENCE.sub("", page.read_text())) if "://" not in link]

    assert [link for link in links if not leads_somewhere(page, link)] == []


def endpoints() -> Iterator[str]:
    """Method and path of every `Endpoint(…)`."""
    for call in calls("Endpoint"):
        method, path = (argument.value for argument in call.args[:2] if isinstance(argument, ast.Constant))
        yield f"{method} {path}"


def headers_read() -> Iterator[str]:
    """What `header(scope, b"…")` and `request.headers.get("…")` are asked for.

    Names that are constants are those of `protocol.headers`.
    """
    for call in calls("header"):
        name = call.args[1]
        if isinstance(name, ast.Constant):
            yield name.value.decode()
        else:
            assert ast.unparse(name).isupper(), f"line {call.lineno}: a header's name is a constant, not computed"
    for module in trees(SERVERS):
        for node in ast.walk(module):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Attribute(attr="headers") | ast.Name(id="headers"), attr="get"),
                    args=[ast.Constant(value=str(name)), *_],
                ):
                    yield name
                case _:
                    pass


def headers_sent() -> Iterator[str]:
    """Names in pairs of bytes, `(b"allow", …)`, and in dictionaries called headers."""
    for module in trees(SERVERS):
        for node in ast.walk(module):
            match node:
                case ast.Tuple(elts=[ast.Constant(value=bytes(name)), _]) if re.fullmatch(rb"[a-z-]+", name):
                    yield name.decode()
                case (
                    ast.Assign(targets=[ast.Name(id="headers")], value=ast.Dict(keys=keys))
                    | ast.keyword(arg="headers", value=ast.Dict(keys=keys))
                ):
                    yield from (key.value for key in keys if isinstance(key, ast.Constant))


def calls(name: str) -> Iterator[ast.Call]:
    """Every call of a function by its plain name, in the code that answers requests."""
    for module in trees(SERVERS):
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
                yield node


def texts(files: Iterator[Path]) -> Iterator[str]:
    """Every string in these files."""
    for module in trees(files):
        for node in ast.walk(module):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def headings(text: str) -> list[str]:
    return HEADING.findall(FENCE.sub("", text))


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether the file exists, and has the heading after the `#`."""
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if not target.exists():
        return False
    return not anchor or anchor in [_anchor(heading) for heading in headings(target.read_text())]


def _anchor(heading: str) -> str:
    """As hosts of Markdown make it: lower case, no punctuation, hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
