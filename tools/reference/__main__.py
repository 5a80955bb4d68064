"""Write the pages into docs/reference: `python -m tools.reference`, at the project's top."""

from pathlib import Path

from tools.reference import pages

for name, text in pages().items():
    Path("docs/reference", name).write_text(text)
