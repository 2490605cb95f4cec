"""The facts of a report."""

from __future__ import annotations

import fcntl
import json
import shutil

import pytest

from holdfast.bootstrap.operations.report_facts import report_facts
from holdfast.bootstrap.operations.report_sections import markdown_report
from holdfast.bootstrap.web.report_html import html_report
from holdfast.domain.errors import StateError
from tests.support.written_runs import BEGAN, event, write_lines, write_run

EVENTS = [
    event("RunStarted", 0, environment={"host": "here", "versions": {"torch": "2.11"}}),
    event("MemoryExhausted", 1, micro_batch=4, message="no memory"),
    event("UpdateDropped", 2, reason="nan"),
    event("RolledBack", 2, from_step=4, reason="the loss rose"),
    event("CheckpointFailed", 4, reason="periodic", problem="full"),
    event("RunStarted", 2, environment={"host": "there", "versions": {"torch": "2.12"}}),
    event("RunFinished", 5),
]


def test_what_happened_to_a_run_is_counted_from_its_files(tmp_path):
    """Each event counts once, whatever start it was in, and so does each rejected record, whichever ranks met it."""
    run = write_run(tmp_path / "a", losses=[3.0, 2.5, 2.25, 2.0, 1.5], events=EVENTS)
    write_lines(run / "rejected.jsonl", [{"unit": "a", "position": 1, "reason": "x"}])
    write_lines(run / "rejected.rank2.jsonl", [{"unit": "b", "position": 3, "reason": "x", "loses_rest": True}])
    by_rule = [{"unit": "a", "position": place, "rule": "length", "reason": "x"} for place in (2, 4)]
    for rank in (1, 3):
        write_lines(run / f"rejected.rank{rank}.jsonl", by_rule)
    write_lines(run / "restarts.jsonl", [{"time": BEGAN, "cause": "SIGKILL", "code": 137, "lost_steps": 2}])
    incidents = report_facts(run)["incidents"]
    expected = {
        "starts": 2,
        "crashes": 1,
        "roll_backs": 1,
        "memory_retries": 1,
        "dropped_updates": 1,
        "failed_saves": 1,
    }
    assert expected.items() <= incidents.items()
    assert incidents["rejected_by_rule"] == {"length": 2, "unusable": 1, "the rest of a file": 1}
    assert incidents["rejected_records"] == 4


def test_the_series_are_the_recorded_metrics(tmp_path):
    """Each point of a run that is not too long is a recorded value, NaN and infinities included."""
    losses = [3.0, "NaN", 2.25, "Infinity", 1.5]
    facts = report_facts(write_run(tmp_path / "a", losses=losses, events=EVENTS))
    assert facts["series"]["loss"] == {
        "steps": [1, 2, 3, 4, 5],
        "values": losses,
        "low": None,
        "high": None,
    }  # NaN is a gap
    assert (facts["figures"]["loss"], facts["figures"]["step"]) == (1.5, 5)


def test_a_spike_of_one_step_survives_the_reduction(tmp_path):
    """With fewer points than steps, the extremes of each point are those of its steps."""
    losses = [1.0 + step / 1e6 for step in range(10_000)]
    losses[7_321] = 99.0
    found = report_facts(write_run(tmp_path / "a", losses=losses), most_points=100)["series"]["loss"]
    assert 50 <= len(found["values"]) <= 101
    assert max(found["high"]) == 99.0
    assert min(found["low"]) == losses[0]
    assert found["steps"][-1] == 10_000
    assert sum(value > 1.5 for value in found["high"]) == 1


def test_evaluations_are_rows_by_step_and_the_best_is_the_lowest(tmp_path):
    """All metrics of an evaluation stand in one row, also those that a later version adds."""
    run = write_run(tmp_path / "a", losses=[3.0, 2.0, 1.0])
    with (run / "metrics.jsonl").open("a") as file:
        for step, loss in ((1, 2.5), (2, 2.25), (3, 2.75)):
            file.write(json.dumps({"step": step, "eval_loss": loss, "eval_new": step}) + "\n")
    facts = report_facts(run)
    assert [row["eval_loss"] for row in facts["evaluations"]] == [2.5, 2.25, 2.75]
    assert facts["evaluations"][1] == {"step": 2, "eval_loss": 2.25, "eval_new": 2.0}
    assert facts["figures"]["best_evaluation"]["step"] == 2


def test_a_copy_of_a_run_says_the_same(tmp_path):
    """A report needs the run folder alone: of a moved or copied run only the path differs."""
    run = write_run(tmp_path / "a", losses=[3.0, 2.0], events=EVENTS, settings=[f"run.dir={tmp_path / 'a'}"])
    shutil.copytree(run, tmp_path / "copies" / "a")
    one, other = report_facts(run), report_facts(tmp_path / "copies" / "a")
    differing = {name for name in one if one[name] != other[name]}
    assert differing <= {"path", "written", "last_sign_of_life", "explanation"}


def test_a_run_in_progress_can_be_read(tmp_path):
    """While a process holds the lock and writes, the report says so; a line that is not complete is left out."""
    run = write_run(tmp_path / "a", losses=[3.0, 2.0], events=EVENTS[:1])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "loss": 1')
    with (run / "LOCK").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        facts = report_facts(run)
    assert facts["state"] == "training"
    assert facts["series"]["loss"]["values"] == [3.0, 2.0]


def test_an_empty_run_has_a_report(tmp_path):
    """A start that ended before its first step has neither metrics nor events, and a state."""
    run = write_run(tmp_path / "a", start={"time": BEGAN, "phase": "building the model", "error": "DataError: gone"})
    for name in ("metrics.jsonl", "events.jsonl"):
        (run / name).unlink()
    facts = report_facts(run)
    assert (facts["state"], facts["figures"]["step"], facts["series"]) == ("failed", 0, {})


def test_a_run_of_another_version_has_a_report(tmp_path):
    """Settings that this version does not know are listed, and old records without some parts are read."""
    settings = {"run": {"name": "a"}, "optimizer": {"learning_rate": 0.1}, "forgotten": {"color": "red"}}
    run = write_run(tmp_path / "a", losses=[3.0], settings=[])
    record = json.loads((run / "run.json").read_text()) | {"settings": settings}
    del record["start"], record["id"]
    (run / "run.json").write_text(json.dumps(record))
    facts = report_facts(run)
    assert {"forgotten.color", "optimizer.learning_rate"} <= {each["name"] for each in facts["settings"]}
    assert facts["repeat"]["lack"] is not None


def test_a_folder_without_a_run_is_refused(tmp_path):
    """Another folder is named in one sentence."""
    with pytest.raises(StateError, match="is not a run folder"):
        report_facts(tmp_path)


SAMPLE = {"began": 1.0, "time": 9.0, "step": 5, "seconds": {"compute": 8.0}}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("supervision.json", {}),
        ("supervision.json", {"sentences": "all", "sources": {"a": 1}, "rows": []}),
        ("supervision.json", {"sentences": ["all"], "sources": {}, "rows": [[["text"]]]}),
        ("goodput.jsonl", SAMPLE | {"seconds": {"compute": "Infinity"}}),
        ("goodput.jsonl", SAMPLE | {"step": float("inf")}),
        ("goodput.jsonl", SAMPLE | {"time": 1e300}),
    ],
)
def test_a_file_with_other_content_does_not_prevent_a_report(tmp_path, name, content):
    """JSON that no run has written in one of its files is left out of the report, and the rest is reported."""
    run = write_run(tmp_path / "a", losses=[3.0, 2.5], events=EVENTS)
    (run / name).write_text(json.dumps(content) + "\n")
    facts = report_facts(run)
    assert facts["figures"]["loss"] == 2.5
    assert facts["supervision"] is None
    assert "2.5" in markdown_report([facts])
    assert "2.5" in html_report([facts])


@pytest.mark.parametrize(
    "damage",
    [
        {"settings": {"run": "a"}},
        {"settings": {"run": {"budget": 5}}},
        {"settings": {"data": None}},
        {"origins": 5},
    ],
)
def test_a_record_of_another_form_is_damaged(tmp_path, damage):
    """A part of ``run.json`` that is no section is named as the damage."""
    run = write_run(tmp_path / "a", losses=[3.0])
    (run / "run.json").write_text(json.dumps(json.loads((run / "run.json").read_bytes()) | damage))
    with pytest.raises(StateError, match=f"is damaged .*{next(iter(damage))}"):
        report_facts(run)


@pytest.mark.parametrize("more", [{"data": 5}, {"data_versions": [{"id": "a", "name": "b", "cache": {}}]}])
def test_odd_notes_on_the_data_are_left_out(tmp_path, more):
    """Notes on the data that no run has written are not reported."""
    data = report_facts(write_run(tmp_path / "a", losses=[3.0], **more))["data"]
    assert (data["num_files"], data["versions"]) == (None, [])
