"""Split a shell's text into its simple commands, as far as all shells read it alike.

The parser is strict: it stops at the first text that it does not fully understand. bash, dash and zsh read every text
that it accepts alike.
"""

import re

from msgspec import Struct, field

MAX_DEPTH = 20
"""Maximum depth of nested groups and substitutions."""
MAX_COMMANDS = 200

_BLANKS, _ENDS = " \t", " \t\n;&|<>()"
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[@*#?$!0-9-]|\{(?:[A-Za-z0-9_]+|[@*#?$!-])\}")
_SEPARATOR = re.compile(r"&&|\|\||\|&|[|;&]")
_REDIRECTION = re.compile(r"&>|\d*(?:<<<|<<-|<<|<>|<&|<|>>|>\||>&|>)")
_DESCRIPTOR = re.compile(r"\d+-?|-")
_RESERVED = frozenset(
    {
        *("if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "in"),
        *("select", "function", "coproc", "[[", "]]", "{", "}", "!"),
    }
)


class Written(Struct):
    """A simple command as it is written. Its input may be on later lines."""

    words: list[str | None] = field(default_factory=list[str | None])
    """The words without their quotes. None for a word that the shell expands."""
    files: list[str | None] = field(default_factory=list[str | None])
    """The files that input or output is redirected to or from, without /dev/null."""
    fed: list[str] = field(default_factory=list[str])
    """Here-documents and here-strings."""
    assigns: bool = False
    """Whether variables are set before the command, or it only sets variables."""
    text: str = ""


def read_script(text: str) -> tuple[list[Written], str | None]:
    """Return the simple commands in a text, at any place, and the reason why the rest is not understood, if any."""
    reader = _Reader(text)
    try:
        reader.script("")
    except _NotPlain as why:
        return reader.commands, str(why)
    return reader.commands, None


class _NotPlain(Exception):
    """The reason why a text is not understood."""


class _HereDocument(Struct, frozen=True):
    command: Written
    end: str
    quoted: bool
    strips: bool


class _Reader:
    """A parser that reads a text once, from front to back."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._documents: list[_HereDocument] = []
        self.commands: list[Written] = []

    def script(self, until: str) -> None:
        """Read commands up to `until`, which is `)`, `}`, or empty for the end of the text."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _NotPlain("it is nested too deeply")
        while True:
            self._skip_gap()
            if self._ends(until):
                break
            self._command()
            self._skip_blanks()
            separator = _SEPARATOR.match(self._text, self._at)
            if separator is not None:
                self._at = separator.end()
            elif self._next() not in ("", "\n", "#", ")"):
                raise _NotPlain("something follows a group of commands")
        if self._documents:
            raise _NotPlain("a here-document has no end")
        self._depth -= 1

    def _ends(self, until: str) -> bool:
        here = self._next()
        if not here:
            if until:
                raise _NotPlain(f"a {until} is missing")
            return True
        if here == until and (until == ")" or self._text[self._at + 1 : self._at + 2] in ("", *_ENDS)):
            self._at += 1
            return True
        return False

    def _command(self) -> None:
        if self._begins("!"):
            self._at += 1
            self._skip_blanks()
        if self._next() == "(":
            if self._text.startswith("((", self._at):
                raise _NotPlain("it has arithmetic")
            self._at += 1
            self.script(")")
        elif self._begins("{"):
            self._at += 1
            self.script("}")
        else:
            self._simple()

    def _simple(self) -> None:
        command, start = Written(), self._at
        while True:
            self._skip_blanks()
            redirection = _REDIRECTION.match(self._text, self._at)
            here = self._next()
            if redirection is not None:
                self._at = redirection.end()
                self._redirect(command, redirection[0].lstrip("0123456789"))
            elif not here or here in ";&|\n)#":
                break
            elif here == "(":
                raise _NotPlain("a parenthesis follows a word")
            elif not command.words and _ASSIGNMENT.match(self._text, self._at):
                self._word()
                command.assigns = True
            else:
                before = self._at
                command.words.append(self._word())
                if len(command.words) == 1 and {command.words[0], self._text[before : self._at]} & _RESERVED:
                    raise _NotPlain(f"it has {self._text[before : self._at]}")
        command.text = self._text[start : self._at].strip()
        if not command.text:
            raise _NotPlain("a command is missing")
        if len(self.commands) >= MAX_COMMANDS:
            raise _NotPlain("it has too many parts")
        self.commands.append(command)

    # Words

    def _word(self) -> str | None:
        start, letters, known = self._at, list[str](), True
        while (here := self._next()) and here not in _ENDS:
            self._at += 1
            match here:
                case "'":
                    letters.append(self._single_quoted())
                case '"':
                    known = self._double_quoted(letters) and known
                case "\\":
                    letters.append(self._escaped())
                case "$":
                    known = self._dollar(letters, quoted=False) and known
                case "`":
                    raise _NotPlain("it has backticks")
                case _:
                    letters.append(here)
                    known = known and here not in "*?[{}"
        raw = self._text[start : self._at]
        if raw in ("[", "{}"):
            return raw
        # `~name` is a user's home, and in zsh `=name` is the path of a program.
        if raw[0] == "=" or (raw[0] == "~" and raw[1:2] not in ("", "/")):
            return None
        return "".join(letters) if known else None

    def _single_quoted(self) -> str:
        end = self._text.find("'", self._at)
        if end < 0:
            raise _NotPlain("a quote has no end")
        text = self._text[self._at : end]
        self._check_line(text)
        self._at = end + 1
        return text

    def _double_quoted(self, letters: list[str]) -> bool:
        start, known = self._at, True
        while (here := self._next()) != '"':
            self._at += 1
            match here:
                case "":
                    raise _NotPlain("a quote has no end")
                case "`":
                    raise _NotPlain("it has backticks")
                case "$":
                    known = self._dollar(letters, quoted=True) and known
                case "\\" if self._next() in ("$", "`", '"', "\\", "\n"):
                    letters.append(self._escaped())
                case _:
                    letters.append(here)
        self._check_line(self._text[start : self._at])
        self._at += 1
        return known

    def _escaped(self) -> str:
        here = self._next()
        if not here:
            raise _NotPlain("it ends with a backslash")
        self._at += 1
        self._check_line(here)
        return "" if here == "\n" else here

    def _dollar(self, letters: list[str], *, quoted: bool) -> bool:
        """Read the text after a dollar sign. Returns True if the sign stands for itself."""
        here = self._next()
        if here == "(":
            if self._text.startswith("((", self._at):
                raise _NotPlain("it has arithmetic")
            self._check_line("\n")
            self._at += 1
            self.script(")")
            return False
        parameter = _PARAMETER.match(self._text, self._at)
        if parameter is not None:
            self._at = parameter.end()
            return False
        # A backslash may hide text on the next line.
        if here in ("{", "[", "\\") or (here in ("'", '"') and not quoted):
            raise _NotPlain(f"it has ${here}")
        letters.append("$")
        return here in ("", '"', *_ENDS)

    # Redirections

    def _redirect(self, command: Written, operator: str) -> None:
        if operator == "&>":
            # bash reads `&>` as one redirection, dash as the end of a command.
            raise _NotPlain("it has &>")
        self._skip_blanks()
        start = self._at
        if self._next() in ("", "#", *_ENDS):
            raise _NotPlain("a redirection leads to no file")
        word = self._word()
        raw = self._text[start : self._at]
        match operator:
            case "<<" | "<<-":
                if word is None or "\n" in word:
                    raise _NotPlain("a here-document has no end")
                self._documents.append(_HereDocument(command, word, word != raw, operator == "<<-"))
            case "<<<":
                command.fed.append(raw)
            case ">&" | "<&" if raw[0] in "-0123456789":
                if not _DESCRIPTOR.fullmatch(raw):
                    raise _NotPlain("a redirection leads to no file")
            case _ if word != "/dev/null":
                command.files.append(word)
            case _:
                pass

    def _read_documents(self) -> None:
        """Read the here-documents that the previous line has announced."""
        documents, self._documents = self._documents, []
        for document in documents:
            lines: list[str] = []
            while (line := self._line(document.strips)) != document.end:
                lines.append(line)
            body = "\n".join(lines)
            if not document.quoted and re.search(r"[$`\\]", body):
                raise _NotPlain("a here-document has expansions")
            # An empty here-document counts as input too.
            document.command.fed.append(body + "\n")

    def _line(self, strips: bool) -> str:
        if self._at >= len(self._text):
            raise _NotPlain("a here-document has no end")
        end = self._text.find("\n", self._at)
        line = self._text[self._at : end if end >= 0 else None]
        self._at = min(self._at + len(line) + 1, len(self._text))
        return line.lstrip("\t") if strips else line

    def _check_line(self, text: str) -> None:
        if "\n" in text and self._documents:
            raise _NotPlain("a line goes on where a here-document should begin")

    # Between words

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _begins(self, word: str) -> bool:
        return self._next() == word and self._text[self._at + 1 : self._at + 2] in (" ", "\t", "\n")

    def _skip_blanks(self) -> None:
        while True:
            if self._next() and self._next() in _BLANKS:
                self._at += 1
            elif self._text.startswith("\\\n", self._at):
                self._check_line("\n")
                self._at += 2
            else:
                return

    def _skip_gap(self) -> None:
        """Skip blanks, comments and ends of lines."""
        while True:
            self._skip_blanks()
            if self._next() == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif self._next() == "\n":
                self._at += 1
                self._read_documents()
            else:
                return
