"""The site of the docs in a browser, opened from a folder: search works there, too."""

from pathlib import Path

from tests.browser.driving import Context
from tools.site import HERE, build

PAGES = {"index.md": "# A page\n\nNothing in particular.\n", "other.md": "# Another page\n\nAbout the quokka.\n"}


def test_search_works_from_a_folder(context: Context, tmp_path: Path) -> None:
    configuration = (HERE / "zensical.toml").read_text()
    before, _, after = configuration.partition("nav = [")
    (tmp_path / "zensical.toml").write_text(before + after.partition("\n]\n")[2])
    for name, text in PAGES.items():
        (tmp_path / "pages").mkdir(exist_ok=True)
        (tmp_path / "pages" / name).write_text(text)
    for asset in (HERE / "assets").iterdir():
        (tmp_path / "pages" / "assets").mkdir(exist_ok=True)
        (tmp_path / "pages" / "assets" / asset.name).write_bytes(asset.read_bytes())
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout

    with context.page((tmp_path / "site" / "index.html").as_uri()) as page:
        page("press", "body", "/")
        page("fill", "input[role=combobox]", "quokka")
        page("waitForSelector", "text=About the quokka")
