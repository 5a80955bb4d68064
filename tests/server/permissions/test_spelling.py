"""What else a text that names a file may be read as."""

import pytest

from sandboxagent.server.permissions.patterns import FlatPathGlob, PathGlob
from sandboxagent.server.permissions.spelling import MAX_OTHERS, read_spelling, shape_of, split_fixed
from tests.support.growing import grows_faster

CWD, HOME = "/srv/app", "/home/me"


def test_a_plain_name_is_nothing_else() -> None:
    for text in ("a", "src/a.py", "./a", "../a", "/etc/passwd", "a-b_c+d", "größe.md", "~/a"):
        spelling = read_spelling(text)
        assert (spelling.others, spelling.listed, spelling.is_certain, spelling.is_wild) == ((), (), True, False), text


@pytest.mark.parametrize(
    ("text", "other"),
    [
        (" .env ", ".env"),
        (".env.", ".env"),
        ("%2eenv", ".env"),
        ("%252eenv", ".env"),
        ("%2eenv%20", ".env"),
        ("a\\.env", "a/.env"),
        (".e\\nv", ".env"),
        ("\uff0eenv", ".env"),
        (".e\u200bnv", ".env"),
        (".env\0.txt", ".env"),
        (".env#x", ".env"),
        (".env?x", ".env"),
        (".env:1", ".env"),
        (".{e}nv", ".env"),
        ("\uff0fetc", "/etc"),
    ],
)
def test_other_spellings_are_found_also_of_each_other(text: str, other: str) -> None:
    assert other in read_spelling(text).others


def test_a_text_of_too_many_spellings_is_not_certain() -> None:
    spelling = read_spelling("%25" * 30 + "2ea#b?c:d\\e {f}.")

    assert not spelling.is_certain
    assert len(spelling.others) < MAX_OTHERS


def test_a_list_has_its_names() -> None:
    assert read_spelling("a,b; c|d").listed == ("a", "b", "c", "d")
    assert read_spelling("a b /etc ../x ~/y .env").listed == ("a b", "/etc", "../x", "~/y", ".env")


def meets(rule: str, text: str, *, flat: bool = False) -> bool:
    """Whether a rule's glob and a text that is read as a glob may mean one file."""
    shape = shape_of(*split_fixed(f"{CWD}/{text}"))
    glob = FlatPathGlob(rule) if flat else PathGlob(rule)
    return shape is None or glob.may_meet(shape, CWD, HOME)


@pytest.mark.parametrize("flat", [False, True])
def test_globs_that_may_mean_one_file_meet(flat: bool) -> None:
    env = "*/.env" if flat else "**/.env"
    pairs = [
        *(
            (env, text)
            for text in (".e*", "**", "*", "src/**", ".[e]nv", "?env", "{.env,a}", ".{a..z}nv", "@(.env)", "*v")
        ),
        *((env, text) for text in ("src/*", "*/.env", "**/?env", "a/*/../.env", "{/etc,a}", ".*", "[.]*", ".E?V")),
        *(("src/*.key", text) for text in ("src/*", "src/a*", "*/a.key", "**/*.key", "src/[ab].key", "s*c/x.key")),
        *(("/etc/**", text) for text in ("{a,/etc}", "*/../../../etc")),
    ]

    assert [pair for pair in pairs if not meets(*pair, flat=flat)] == []


@pytest.mark.parametrize("flat", [False, True])
def test_globs_that_have_no_file_in_common_do_not(flat: bool) -> None:
    env = "*/.env" if flat else "**/.env"
    pairs = [
        *((env, text) for text in ("*.py", "src/**/*.py", "[id].tsx", "app/[slug]/page.tsx", "a?", "??", ".en?x")),
        *(("src/*.key", text) for text in ("lib/*", "src/*.pem", "src/[ab].pem", "[ab]/x.key")),
        *(("/etc/**", text) for text in ("*", "**/etc", "[e]tc")),
        *(("~/.ssh/**", text) for text in ("*", "**/.ssh/x")),
    ]

    assert [pair for pair in pairs if meets(*pair, flat=flat)] == []


@pytest.mark.measures
def test_reading_a_spelling_costs_no_more_than_in_proportion_to_it() -> None:
    signs = [
        "%25",
        "{",
        "{a,",
        "}",
        "[",
        "[a",
        "]",
        "*",
        "**/",
        "?",
        "\\",
        "#",
        ":",
        " ",
        ", ",
        "/",
        "../",
        "(",
        "@(",
        "|",
    ]

    def read(text: str) -> None:
        read_spelling.__wrapped__(text)
        shape_of(*split_fixed(f"/{text}"))

    slow = {sign: why for sign in signs if (why := grows_faster(read, lambda size, sign=sign: sign * size, 4 << 10))}

    assert slow == {}
