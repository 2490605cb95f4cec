"""What a person reads of settings that a resumed run has others of."""

from __future__ import annotations

import pytest

from holdfast.bootstrap.run_folder.shared import told_changes

BEFORE = {
    "run": {"budget": {"steps": 10}, "name": "a"},
    "optimizer": {"learning_rate": 1e-3},
    "state_store": {"archive": None},
}


def changed(**sections):
    """Return ``BEFORE`` with other sections."""
    return {**BEFORE, **sections}


def test_a_changed_setting_is_told_with_both_values():
    """Each setting that is another now has a line with its name, the old value and the new one."""
    now = changed(run={"budget": {"steps": 20}, "name": "a"}, optimizer={"learning_rate": 3e-4})
    assert [line.removeprefix("changed: ") for line in told_changes(BEFORE, now)] == [
        "optimizer.learning_rate: 0.001 -> 0.0003",
        "run.budget.steps: 10 -> 20",
    ]


def test_what_another_version_added_is_no_change():
    """A setting that the record does not know is left out, unless its section was set to null there."""
    assert not list(told_changes(BEFORE, changed(new={"setting": 1})))
    (line,) = told_changes(BEFORE, changed(state_store={"archive": {"url": "s3://b/runs"}}))
    assert line.endswith("state_store.archive.url: null -> s3://b/runs")


def test_a_flood_of_changes_is_cut():
    """At most eleven lines come of any number of changes, and the last says how many are not shown."""
    before = {"data": {f"a{number}": 0 for number in range(100)}}
    lines = list(told_changes(before, {"data": {f"a{number}": "x" * 1000 for number in range(100)}}))
    assert len(lines) == 11
    assert "90" in lines[-1]
    assert max(map(len, lines)) < 80


def test_long_values_are_shown_where_they_differ():
    """Of two long values with the same beginning, the parts that differ are shown."""
    before = {"monitors": [{"kind": "console"}, {"kind": "jsonl"}, {"kind": "wandb", "mode": "offline"}]}
    (line,) = told_changes(before, {"monitors": before["monitors"][:2]})
    old, new = line.removeprefix("changed: monitors: ").split(" -> ")
    assert "wandb" in old
    assert new.endswith("jsonl}]")


@pytest.mark.parametrize("length", [{"run": {"budget": {"steps": 20}}}, {"data": {"epochs": 2}}])
@pytest.mark.parametrize(
    ("schedule", "is_told"),
    [
        ({"kind": "cosine", "decay_steps": None}, True),
        ({"kind": "linear"}, True),
        ({"kind": "wsd", "decay_steps": 5}, True),
        ({"kind": "of_others"}, True),
        ({"kind": "cosine", "decay_tokens": 500}, False),
        ({"kind": "constant"}, False),
    ],
)
def test_a_new_length_changes_the_learning_rates_that_depend_on_it(length, schedule, is_told):
    """It is said if the run's curve of learning rates is another one, and not if the curve has its own length."""
    before = {"run": {"budget": {"steps": 10}}, "data": {"epochs": 1}, "optimizer": {"schedule": schedule}}
    told, *further = list(told_changes(before, before | length))
    assert told.startswith("changed: ")
    assert [f"kind={schedule['kind']}), so it may jump" in line for line in further] == [True] * is_told
    assert not list(told_changes(before, before))
