"""Markdown as rows of a terminal, as far as it has come. rich draws it; nothing that an agent says is left out."""

import re
from functools import cache, lru_cache
from io import StringIO
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.markdown import Markdown

_FENCE = re.compile(r" {0,3}(```|~~~)")


def split_blocks(text: str) -> tuple[list[str], str]:
    """The blocks that are complete, such as paragraphs and pieces of code, and the rest.

    A block ends with an empty line that is followed by one which is not indented: what is indented belongs to it.
    """
    blocks: list[str] = []
    begun: list[str] = []
    fence = ""
    *lines, last = text.split("\n")
    for line in lines:
        if begun and not begun[-1].strip() and not fence and line.strip() and not line.startswith((" ", "\t")):
            blocks.append("\n".join(begun).strip("\n"))
            begun = []
        found = _FENCE.match(line)
        if found is not None and fence in ("", found[1]):
            fence = "" if fence else found[1]
        begun.append(line)
    if begun and not begun[-1].strip() and not fence and last and not last.startswith((" ", "\t")):
        blocks.append("\n".join(begun).strip("\n"))
        begun = []
    return [block for block in blocks if block], "\n".join([*begun, last])


@lru_cache(maxsize=2)
def render(text: str, width: int) -> str:
    """A text in colours, on rows of so many columns. What is not complete is asked for again and again."""
    from rich.color import ColorSystem

    console = _console()
    options = console.options.update(width=max(width, 20))
    rows: list[str] = []
    for segments in console.render_lines(_parse(text), options, pad=False):
        parts = [segment for segment in segments if not segment.is_control]
        while parts and not parts[-1].text.strip():
            parts.pop()
        styled = [
            each.style.render(each.text, color_system=ColorSystem.STANDARD) if each.style else each.text
            for each in parts
        ]
        rows.append("".join(styled).rstrip())
    return "\n".join(rows).strip("\n")


def _parse(text: str) -> "Markdown":
    from markdown_it import MarkdownIt

    markdown = _markdown_type()(text, hyperlinks=False, code_theme="ansi_dark")
    # Without HTML: tags are words of the agent like all others.
    parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough").enable("table")
    markdown.parsed = parser.parse(text)
    for token in markdown.parsed:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"  # Agents mean their line ends.
    return markdown


@cache
def _console() -> "Console":
    from rich.console import Console
    from rich.theme import Theme

    styles = {"markdown.code": "cyan", "markdown.code_block": "cyan", "markdown.item.bullet": "bold"}
    return Console(file=StringIO(), force_terminal=True, color_system="standard", theme=Theme(styles))


@cache
def _markdown_type() -> "type[Markdown]":
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import CodeBlock, Heading, Markdown
    from rich.syntax import Syntax

    class LeftHeading(Heading):
        """A heading where people look for it, without a box."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            self.text.justify = "left"
            yield self.text

    class PlainCode(CodeBlock):
        """Code that can be copied: no box, no background."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            code = str(self.text).rstrip()
            theme = self.theme
            yield Syntax(code, self.lexer_name, theme=theme, word_wrap=True, padding=(0, 2), background_color="default")

    class Spoken(Markdown):
        elements: ClassVar = {
            **Markdown.elements,
            "heading_open": LeftHeading,
            "fence": PlainCode,
            "code_block": PlainCode,
        }

    return Spoken
