"""Format pieces of Markdown for the pages of the reference."""

import re


def row(*cells: str) -> str:
    """Format a row of a table, with a dash in empty cells. A row is one line, however long its cells are."""
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") or "–" for cell in cells) + " |\n"


def heading_link(heading: str) -> str:
    """Return a link to a heading of the same page."""
    return "#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
