"""Versions of datasets: their form on disk, and what differs between two of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from holdfast.domain.data.dataset_version import (
    DatasetVersion,
    FileChanges,
    OptionChange,
    Step,
    StepChanges,
    VersionFile,
    VersionSource,
    VersionTotals,
    compare_versions,
    version_id,
)

READ = Step("read", "holdfast-lm", "0.1.0", "aa", {"kind": "files"})
LENGTH = Step("length", "holdfast-lm", "0.1.0", "bb", {"min_characters": 3})
TOKENIZER = Step("tokenizer", "tokenizers", "0.23.3", "cc", {"kind": "train", "vocabulary_size": 300})
FILES = [VersionFile("a.txt", 10, "h1"), VersionFile("b.txt", 20, "h2"), VersionFile("c.txt", 5, "h3")]
VERSION = DatasetVersion(
    id="0123456789ab",
    created="2026-11-25T15:57:28+00:00",
    parents=["ffff00000000"],
    source=VersionSource("talk", "abc", ["/data/talk"], FILES),
    dataset="d1",
    steps=[READ, LENGTH, TOKENIZER],
    totals=VersionTotals(12, 10, 1000, 35, 3, {"length": 2}),
)


def with_files(*files):
    return replace(VERSION, source=replace(VERSION.source, files=list(files)))


def test_a_version_survives_json():
    """What is written is read back."""
    masked = replace(VERSION, totals=replace(VERSION.totals, supervised_tokens=400))
    for version in (VERSION, masked):
        assert DatasetVersion.from_json(json.loads(json.dumps(version.to_json()))) == version


def test_a_version_without_a_mask_is_as_earlier_versions_wrote_it():
    """Where all tokens are trained on, the record has no field that an earlier version of Holdfast does not know."""
    assert set(VERSION.to_json()["totals"]) == {"records", "documents", "tokens", "num_bytes", "files", "drops"}


@pytest.mark.parametrize(
    "broken", [{}, {"schema": 2}, {**VERSION.to_json(), "source": {}}, {**VERSION.to_json(), "steps": [1]}]
)
def test_another_form_is_refused(broken):
    """A record of another schema, or without what a version needs, is no version."""
    with pytest.raises((ValueError, KeyError, TypeError)):
        DatasetVersion.from_json(broken)


def test_the_id_follows_the_steps_and_the_content():
    """Equal steps and content give the same id of twelve digits; other ones, or their order, give another."""
    first = version_id(["t", "u"], ["shape", ["h1"]])
    assert (len(first), first) == (12, version_id(["t", "u"], ["shape", ["h1"]]))
    assert len({first, version_id(["u", "t"], ["shape", ["h1"]]), version_id(["t", "u"], ["shape", ["h2"]])}) == 3


def test_equal_versions_do_not_differ():
    """The time, the id, the parents and the folder are no difference."""
    again = replace(VERSION, id="x", created="later", parents=[], dataset="d2")
    found = compare_versions(VERSION, again)
    assert (found.files, found.steps, found.totals, found.drops) == (
        FileChanges([], [], [], []),
        StepChanges([], [], [], False),
        {},
        {},
    )


def test_files_are_told_apart():
    """Added, removed, changed and renamed files are each named once."""
    changed, renamed = VersionFile("b.txt", 20, "h9"), VersionFile("z.txt", 5, "h3")
    found = compare_versions(VERSION, with_files(changed, renamed, VersionFile("new.txt", 1, "h8"))).files
    assert found == FileChanges(["new.txt"], ["a.txt"], ["b.txt"], [("c.txt", "z.txt")])


@pytest.mark.parametrize(("after", "is_changed"), [("s1", False), ("s2", True)])
def test_without_a_hash_the_stamp_decides(after, is_changed):
    """A file whose content is unknown on one side has changed if its stamp has."""
    before = with_files(VersionFile("a.txt", 10, None, "s1"))
    found = compare_versions(before, with_files(VersionFile("a.txt", 10, None, after)))
    assert bool(found.files.changed) == is_changed


def test_steps_are_told_apart():
    """Added and removed steps are named, and of the others each option, the package or else the fingerprint."""
    longer = replace(TOKENIZER, options={"kind": "train", "vocabulary_size": 310}, fingerprint="dd")
    newer = replace(READ, version="0.2.0")
    found = compare_versions(VERSION, replace(VERSION, steps=[newer, longer, replace(LENGTH, name="c4")])).steps
    assert (found.added, found.removed, found.is_reordered) == (["c4"], ["length"], False)
    assert found.options == [
        OptionChange("read", "package", "holdfast-lm 0.1.0", "holdfast-lm 0.2.0"),
        OptionChange("tokenizer", "vocabulary_size", 300, 310),
    ]
    hidden = compare_versions(VERSION, replace(VERSION, steps=[READ, replace(LENGTH, fingerprint="zz"), TOKENIZER]))
    assert hidden.steps.options == [OptionChange("length", "fingerprint", "bb", "zz")]
    assert compare_versions(VERSION, replace(VERSION, steps=[LENGTH, READ, TOKENIZER])).steps.is_reordered


def test_two_steps_of_one_name_are_two_steps():
    """A transform that stands twice is compared place by place."""
    twice = replace(VERSION, steps=[READ, LENGTH, replace(LENGTH, options={"min_characters": 9}), TOKENIZER])
    assert compare_versions(VERSION, twice).steps.added == ["length (2)"]


def test_figures_have_both_values():
    """VersionTotals and drops by reason stand there with the figure before and after, if they differ."""
    totals = VersionTotals(None, 10, 1100, 35, 3, {"c4": 1})
    found = compare_versions(VERSION, replace(VERSION, totals=totals))
    assert found.totals == {"records": (12, None), "tokens": (1000, 1100)}
    assert found.drops == {"c4": (0, 1), "length": (2, 0)}


def test_files_of_an_encrypted_cache_are_not_compared():
    """A version without names is not a version without files."""
    hidden = replace(VERSION, source=VersionSource("talk", "abc"), is_encrypted=True)
    found = compare_versions(VERSION, hidden)
    assert (found.files, found.hides_files) == (FileChanges(), True)
