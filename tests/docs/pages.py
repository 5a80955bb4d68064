"""The pages of the documentation, and what is in them."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
TYPESCRIPT = ROOT / "sdks" / "typescript"
FRONT = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "RELEASING.md"]


def pages() -> list[Path]:
    """Every page that people read."""
    further = [TYPESCRIPT / "README.md", ROOT / "examples" / "README.md", ROOT / "benchmarks" / "README.md"]
    return [*FRONT, *(page for page in further if page.exists()), *sorted(DOCS.rglob("*.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()
