"""Draw the pictures: `python -m tools.pictures`, in the project's top directory."""

from pathlib import Path

from tools.pictures.terminal import draw, record

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"

PICTURES.mkdir(exist_ok=True)
(PICTURES / "terminal.svg").write_text(draw(record()))
