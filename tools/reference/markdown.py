"""Pieces of Markdown, as the pages of the reference have them."""

import re


def row(*cells: str) -> str:
    """A row of a table; an empty cell has a dash."""
    return "| " + " | ".join(cell.replace("|", "\\|") or "–" for cell in cells) + " |\n"


def heading_link(heading: str) -> str:
    """A link to a heading of the same page."""
    return "#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
