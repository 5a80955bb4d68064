"""The site of the docs: all pages are on it, every link leads somewhere, and nothing is loaded from another host."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, name_of, pages
from tests.support.architecture import read_walks
from tools.site import HERE, build, lay_out, page_of, place_of

CONFIGURATION = tomllib.loads((HERE / "zensical.toml").read_text())["project"]
LOADED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']([^"']+)|<link\b[^>]*\bhref=["']([^"']+)""")
LIMITS = "what-this-is-not.html"
SEARCHED = [
    *("TLS", "HTTPS", "Windows", "macOS", "Alpine", "Prometheus", "OpenTelemetry", "metrics", "webhooks", "cron"),
    *("accounts", "roles", "tenants", "quotas", "spending limit", "rate limit", "undo", "worktree", "snapshots"),
    *("pull requests", "high availability", "encrypt", "shell", "scheduler", "1.0"),
]
"""What people look for, and do not find here."""
pytestmark = pytest.mark.xdist_group("the site")  # It is built once.


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with every warning a failure: a page or an anchor that does not exist is one."""
    directory = tmp_path_factory.mktemp("site")
    lay_out(directory)
    done = build(directory)
    assert done.returncode == 0, done.stdout
    return directory / "site"


def test_links_lead_to_where_pages_are_on_the_site_and_call_them_by_their_titles() -> None:
    text, linked = page_of(ROOT / "CONTRIBUTING.md", Path("contributing.md"))

    assert "[Architecture](architecture.md)" in text
    assert "[Examples](examples/index.md)" in text
    assert ROOT / "docs" / "architecture.md" in linked


def test_words_behind_the_language_of_a_fence_are_not_on_the_site() -> None:
    page = DOCS / "architecture.md"

    text, _ = page_of(page, Path("architecture.md"))

    assert f"```text\n{read_walks(page.read_text())['prompt']}" in text
    assert "```walk" not in text


def test_every_page_is_on_the_site(site: Path) -> None:
    places = {place for page in pages() if (place := place_of(page)) is not None}

    assert [str(place) for place in sorted(places) if not (site / place.with_suffix(".html")).exists()] == []


def test_every_page_of_the_docs_has_its_place_in_the_navigation() -> None:
    listed = set(in_navigation(CONFIGURATION["nav"]))

    assert sorted(name_of(page) for page in DOCS.rglob("*.md") if str(place_of(page)) not in listed) == []


def test_a_page_loads_nothing_from_another_host(site: Path) -> None:
    wrong = {
        page.relative_to(site).as_posix(): found
        for page in site.rglob("*.html")
        if (found := [each for pair in LOADED.findall(page.read_text()) for each in pair if "//" in each])
    }

    assert wrong == {}


def test_pictures_load_nothing_from_another_host() -> None:
    for picture in (DOCS / "pictures").glob("*.svg"):
        assert re.findall(r"(?:url\(|href=|src=)\W*https?:", picture.read_text()) == [], picture


def test_search_knows_the_guides(site: Path) -> None:
    index = (site / "search.js").read_text()

    assert "guides/showing-a-session.html" in index
    assert "examples/python/chat.py.html" in index


def test_who_searches_for_what_is_not_there_finds_the_page_that_says_so(site: Path) -> None:
    index = json.loads((site / "search.js").read_text().partition("=")[2].strip().rstrip(";"))
    said = [each["title"] + " " + each["text"] for each in index["items"] if each["location"].startswith(LIMITS)]
    text = " ".join(said).lower()

    assert said
    assert [word for word in SEARCHED if word.lower() not in text] == []


def test_a_program_that_a_page_links_to_is_shown(site: Path) -> None:
    assert "SandboxAgent" in (site / "examples" / "python" / "chat.py.html").read_text()


@pytest.mark.parametrize("link", ["nowhere.md", "index.md#nowhere"])
def test_a_link_that_leads_nowhere_is_a_failure(link: str, tmp_path: Path) -> None:
    (tmp_path / "zensical.toml").write_text('[project]\nsite_name = "site"\ndocs_dir = "pages"\n')
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text(f"# A page\n\n[A link]({link})\n")

    assert build(tmp_path).returncode != 0


def in_navigation(entries: list[object]) -> Iterator[str]:
    """The pages of the navigation, at every depth."""
    for entry in entries:
        match entry:
            case str():
                yield entry
            case dict():
                for below in entry.values():
                    yield from in_navigation(below if isinstance(below, list) else [below])
            case _:
                raise AssertionError(entry)
