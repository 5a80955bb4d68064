"""Names that are searched for."""

import time

import pytest

from sandboxagent.server.files.search import make_matcher


@pytest.mark.parametrize(
    ("pattern", "path", "meant"),
    [
        ("read", "docs/README.md", True),
        ("docs", "docs/README.md", False),
        ("*.md", "docs/README.md", True),
        ("*.md", "docs.md/file", False),
        ("R[DE]*", "docs/README.md", True),
        ("docs/*.md", "docs/README.md", True),
        ("docs/*.md", "docs/deep/README.md", False),
        ("docs/**/*.md", "docs/deep/er/README.md", True),
        ("docs/**/*.md", "docs/README.md", True),
        ("**/*.md", "README.md", True),
        ("/docs/*", "docs/README.md", True),
        ("docs/**", "docs/a/b", True),
        ("docs/**", "src/a", False),
        ("?", "a\nb", False),
        ("a?b", "a\nb", True),
        ("[", "a[b", False),
        ("[", "[", True),
    ],
)
def test_a_name_is_a_part_or_a_glob(pattern: str, path: str, meant: bool) -> None:
    assert make_matcher(pattern)(path) is meant


def test_a_pattern_made_to_be_slow_is_not() -> None:
    started = time.thread_time()
    assert not make_matcher("*a" * 200 + "b")("a" * 250)
    assert not make_matcher("**/a/" * 200 + "b")("/".join("a" * 500))
    assert time.thread_time() - started < 10
