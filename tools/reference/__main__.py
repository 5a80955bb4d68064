"""Write the pages into docs/reference: `python -m tools.reference`, in the project's top directory."""

from pathlib import Path

from tools.reference import pages

for name, text in pages().items():
    Path("docs/reference", name).write_text(text)
