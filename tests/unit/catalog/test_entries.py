"""Which entries of a directory are read, and what the others are: the one rule of all sources."""

import pytest

from llmgw.catalog.entries import Entry, Kind, sort_out
from llmgw.catalog.source import (
    BEYOND,
    LINK,
    LINK_TO_DIRECTORY,
    LINK_TO_FILE,
    MAX_BYTES,
    MAX_TREE,
    SPECIAL,
    SUBMODULE,
    TOO_LARGE,
    TWO_NAMES,
)

THERE = [
    Entry("cluster.yaml", Kind.FILE, 10),
    Entry("models/m.yml", Kind.FILE, 10),
    Entry("docs/NOTICE", Kind.FILE, 10),
]
FILES = ("cluster.yaml", "models/m.yml")


def test_yaml_files_are_read_and_others_are_not() -> None:
    assert sort_out(THERE) == sort_out(reversed(THERE))
    assert (sort_out(THERE).files, sort_out(THERE).refused) == (FILES, {})


@pytest.mark.parametrize(
    ("path", "target", "what"),
    [
        ("LICENSE", "docs/NOTICE", LINK_TO_FILE),
        ("docs/LICENSE", "./NOTICE", LINK_TO_FILE),
        ("models/LICENSE", "../docs/NOTICE", LINK_TO_FILE),
        ("LICENSE", "docs/NOTICE/", LINK),
        ("more", "models", LINK_TO_DIRECTORY),
        ("more.d", "models/", LINK_TO_DIRECTORY),
        ("models/more", "..", LINK_TO_DIRECTORY),
        ("more", "../cluster/models", LINK),
        ("more", "/etc", LINK),
        ("more", "more", LINK),
        ("more", "nowhere", LINK),
        ("more", "", LINK_TO_DIRECTORY),
        ("more", None, LINK),
    ],
)
def test_a_link_is_named_for_where_it_leads(path: str, target: str | None, what: str) -> None:
    found = sort_out([*THERE, Entry(path, Kind.LINK, target=target)])
    assert (found.files, found.refused) == (FILES, {path: what})


def test_a_link_to_a_link_leads_nowhere_that_is_known() -> None:
    found = sort_out([*THERE, Entry("a", Kind.LINK, target="models"), Entry("b", Kind.LINK, target="a")])
    assert found.refused == {"a": LINK_TO_DIRECTORY, "b": LINK}


def test_other_entries() -> None:
    entries = [
        *THERE,
        Entry("sub", Kind.REPOSITORY),
        Entry(".sub", Kind.REPOSITORY),
        Entry(".links/a.yaml", Kind.LINK, target="/etc"),
        Entry("pipe", Kind.SPECIAL),
        Entry("pipe.yaml", Kind.SPECIAL),
        Entry("\\xff.yaml", Kind.FILE, 1),
        Entry("\\xff.yaml", Kind.FILE, 1),
    ]
    found = sort_out(entries)
    assert (found.files, found.refused) == (FILES, {"sub": SUBMODULE, "pipe.yaml": SPECIAL, "\\xff.yaml": TWO_NAMES})


def test_sizes_are_limited_one_by_one_and_in_all() -> None:
    fits = MAX_TREE // MAX_BYTES
    many = [Entry(f"f{number:04}.yaml", Kind.FILE, MAX_BYTES) for number in range(fits + 2)]
    found = sort_out([*many, Entry("a.yaml", Kind.FILE, MAX_BYTES + 1), Entry("weights.gguf", Kind.FILE, 1 << 40)])
    assert len(found.files) == fits
    assert found.refused == {"a.yaml": TOO_LARGE, f"f{fits:04}.yaml": BEYOND, f"f{fits + 1:04}.yaml": BEYOND}
