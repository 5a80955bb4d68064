"""The registry's document: what can be used of it, and what is said of the rest."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxagent.server.agents.install.registry_entries import Content, NotARegistry, PackageDistribution, parse


def entry(id: str = "tested", **changes: Any) -> dict[str, Any]:
    plain = {"name": "Tested", "version": "1.2.3", "description": "An agent.", "distribution": npx("tested@1.2.3")}
    return {"id": id, **plain, **changes}


def npx(package: str) -> dict[str, Any]:
    return {"npx": {"package": package}}


def binary(**target: Any) -> dict[str, Any]:
    return {"binary": {"linux-x86_64": {"archive": "https://example.com/a.tar.gz", "cmd": "./a", **target}}}


def read(*agents: Any, scheme: str = "https") -> Content:
    return parse(json.dumps({"version": "1.0.0", "agents": agents, "extensions": []}).encode(), scheme)


def complaint(*agents: Any, scheme: str = "https") -> str:
    """The one sentence about entries of which nothing else can be used."""
    with pytest.raises(NotARegistry) as wrong:
        read(*agents, scheme=scheme)
    return str(wrong.value)


def test_all_fields_of_an_entry_are_read() -> None:
    target = {"archive": "https://example.com/a.zip", "cmd": "./bin/a", "args": ["acp"], "env": {"A": "1"}}
    whole = entry(
        repository="https://example.com/a",
        authors=["Somebody"],
        license="MIT",
        icon="./icon.svg",
        distribution={
            "binary": {"linux-x86_64": {**target, "sha256": "ab" * 32}, "darwin-aarch64": target},
            "npx": {"package": "@scope/a@1.2.3", "args": ["--acp"], "env": {"B": "2"}},
            "uvx": {"package": "a==1.2.3"},
        },
    )

    found = read(whole).entries["tested"]

    assert (found.id, found.name, found.version, found.description) == ("tested", "Tested", "1.2.3", "An agent.")
    assert (found.repository, found.authors) == ("https://example.com/a", ("Somebody",))
    assert (found.license, found.icon) == ("MIT", "./icon.svg")
    assert found.distribution.npx == PackageDistribution("@scope/a@1.2.3", ("--acp",), {"B": "2"})
    assert found.distribution.uvx == PackageDistribution("a==1.2.3")
    assert list(found.distribution.binary) == ["darwin-aarch64", "linux-x86_64"]
    linux = found.distribution.binary["linux-x86_64"]
    assert (linux.archive, linux.cmd) == ("https://example.com/a.zip", "./bin/a")
    assert (linux.args, linux.env, linux.sha256) == (("acp",), {"A": "1"}, "ab" * 32)
    assert found.distribution.binary["darwin-aarch64"].sha256 is None


def test_what_is_optional_may_be_missing_or_null() -> None:
    found = read(entry(license=None)).entries["tested"]

    assert (found.repository, found.authors, found.license, found.icon) == (None, (), None, None)


@pytest.mark.parametrize(
    ("package", "name", "version"),
    [
        ("plain", "plain", None),
        ("plain@1.0.0", "plain", "1.0.0"),
        ("plain@latest", "plain", "latest"),
        ("@scope/name", "@scope/name", None),
        ("@scope/name@0.15.0-rc.1+b2", "@scope/name", "0.15.0-rc.1+b2"),
        ("snake_case==0.4.41", "snake_case", "0.4.41"),
        ("with-extra[all,more]==1.0", "with-extra[all,more]", "1.0"),
    ],
)
def test_a_package_splits_into_name_and_version(package: str, name: str, version: str | None) -> None:
    found = read(entry(distribution=npx(package))).entries["tested"].distribution.npx

    assert found is not None
    assert (found.name, found.version) == (name, version)


@pytest.mark.parametrize(
    "package",
    ["", "-g", "--prefix=x", "@scope", "@/a", "../a", "a/b", "https://example.com/a.tgz", "a b", "a@", "a\n", "a@1@2"],
)
def test_a_package_that_npm_would_take_for_something_else_is_refused(package: str) -> None:
    assert "npx" in complaint(entry(distribution=npx(package)))


def test_unknown_fields_platforms_and_kinds_are_ignored() -> None:
    distribution = {**npx("a@1"), "docker": {"image": "a"}, "binary": {"plan9-mips": {"whatever": 1}}}
    found = read(entry(distribution=distribution, colour="red", version="1.0.0"))

    assert found.entries["tested"].distribution.binary == {}
    assert found.rejected == ()


def test_one_bad_entry_does_not_spoil_the_others() -> None:
    found = read(
        entry("good"),
        entry("no-version", version=None),
        "not an object",
        entry("../../etc"),
        entry("good", name="Another"),
        entry("nothing", distribution={}),
        entry("last"),
    )

    assert list(found.entries) == ["good", "last"]
    assert found.entries["good"].name == "Tested"
    assert [sentence.partition(":")[0] for sentence in found.rejected] == [
        "entry 2 ('no-version')",
        "entry 3",
        "entry 4 ('../../etc')",
        "entry 5 ('good')",
        "entry 6 ('nothing')",
    ]


@pytest.mark.parametrize("id", ["", "A", "1a", "-a", "a/b", "a.b", "a_b", "a\n", "a\0", "..", "é", "a" * 65])
def test_an_id_that_is_no_folder_name_is_refused(id: str) -> None:
    assert "$.id" in complaint(entry(id))


@pytest.mark.parametrize("version", ["", "../1", "1/2", ".1", "1\n", "1 2", "-1"])
def test_a_version_that_is_no_folder_name_is_refused(version: str) -> None:
    assert "$.version" in complaint(entry(version=version))


def test_one_bad_platform_does_not_spoil_the_others() -> None:
    distribution = binary()
    distribution["binary"]["windows-x86_64"] = {"archive": "https://example.com/a.zip", "cmd": "dist\\a.cmd"}
    distribution["binary"]["darwin-x86_64"] = {"archive": "https://example.com/a.zip"}
    distribution["npx"] = 7

    found = read(entry(distribution=distribution))

    assert list(found.entries["tested"].distribution.binary) == ["linux-x86_64"]
    assert [sentence.split(": ")[1] for sentence in found.rejected] == ["npx", "darwin-x86_64", "windows-x86_64"]
    assert all(sentence.startswith("entry 1 ('tested'): ") for sentence in found.rejected)


@pytest.mark.parametrize("cmd", ["", ".", "./", "/bin/sh", "../a", "./a/../../b", "a\\b", "a\0b"])
def test_a_command_outside_the_archive_is_refused(cmd: str) -> None:
    assert "is not a path inside the archive" in complaint(entry(distribution=binary(cmd=cmd)))


@pytest.mark.parametrize("archive", ["", "a.zip", "ftp://example.com/a", "https:///a", "javascript:1", "http://[::1/a"])
def test_an_archive_without_a_proper_address_is_refused(archive: str) -> None:
    assert "linux-x86_64" in complaint(entry(distribution=binary(archive=archive)))


@pytest.mark.parametrize(
    ("scheme", "archive", "taken"),
    [
        ("https", "https://example.com/a", True),
        ("https", "http://example.com/a", False),
        ("https", "http://127.0.0.1:8000/a", True),
        ("https", "http://[::1]/a", True),
        ("https", "file:///a", False),
        ("http", "http://example.com/a", True),
        ("http", "file:///a", False),
        ("file", "http://example.com/a", True),
        ("file", "file:///a", True),
    ],
)
def test_an_archive_comes_by_no_weaker_way_than_the_registry(scheme: str, archive: str, taken: bool) -> None:
    found = read(entry("sound"), entry(distribution=binary(archive=archive)), scheme=scheme)

    assert ("tested" in found.entries) is taken


@pytest.mark.parametrize(
    "wrong",
    [{"sha256": "ab"}, {"sha256": 1}, {"args": "acp"}, {"args": ["\0"]}, {"env": {"A=B": "1"}}, {"env": {"A": 1}}],
)
def test_a_target_with_a_wrong_field_is_refused(wrong: dict[str, Any]) -> None:
    assert "linux-x86_64" in complaint(entry(distribution=binary(**wrong)))


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"", "not whole JSON"),
        (b'{"agents": [{"id": "a"', "not whole JSON"),
        (b'{"agents": []} trailing', "not whole JSON"),
        (b"[]", "another shape"),
        (b"{}", "another shape"),
        (b'{"agents": {}}', "another shape"),
        (b"null", "another shape"),
        (b" \n<!DOCTYPE html><html>", "HTML"),
        (b'{"agents": ' + b"[" * 100_000, "nested too deep"),
        (b'{"agents": [1, 2]}', "none of its entries"),
    ],
)
def test_a_document_that_is_no_registry_says_why(document: bytes, reason: str) -> None:
    with pytest.raises(NotARegistry, match=reason):
        parse(document, "https")


def test_a_registry_may_be_empty() -> None:
    assert read() == Content({}, ())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "name", "npx", "binary", "linux-x86_64", "package", "archive", "cmd"]) | st.text(),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=50)
@given(field=st.sampled_from(sorted(entry())), value=JSON)
def test_whatever_stands_in_a_field_the_other_entries_are_found(field: str, value: Any) -> None:
    found = read(entry("first"), {**entry(), field: value}, entry("last"))

    assert {"first", "last"} <= set(found.entries)
    assert len(found.entries) == 3 or found.rejected
