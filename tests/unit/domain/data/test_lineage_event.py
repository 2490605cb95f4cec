"""Names of datasets in lineage events."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.domain.data.dataset_version import JobExecution, JobState, dataset_names


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("/data/talk/*.jsonl", ("file", "/data/talk/*.jsonl")),
        ("talk", ("file", f"{Path.cwd()}/talk")),
        ("s3://bucket/a/b.parquet", ("s3://bucket", "a/b.parquet")),
        ("https://user:pa/ss@host:8080/x?token=SECRET#part", ("https://host:8080", "x")),
        ("s3://AKIA:abc/def@bucket", ("s3://bucket", "/")),
    ],
)
def test_places_have_names_without_secrets(place, names):
    """A path or a URL becomes a namespace and a name; user, password and parameters stay out."""
    assert dataset_names(place) == names


def test_the_events_of_an_execution_belong_together():
    """All events of one execution have its id, and another execution has another one."""
    first, second = JobExecution("a.prepare"), JobExecution("a.prepare")
    start, end = first.event(JobState.START, [], []), first.event(JobState.COMPLETE, [], [])
    assert start.run_id == end.run_id != second.event(JobState.START, [], []).run_id
    assert start.time <= end.time
