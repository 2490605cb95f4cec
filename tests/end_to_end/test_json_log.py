"""``train --log-format json``: the log of a run as JSON lines on standard output."""

from __future__ import annotations

import json
import signal

import pytest

from tests.support.command_line import corpus, run, run_here, start, tiny


def lines_of(text):
    """Return the records of the lines of ``text``, each of which is a JSON object with a time, a level and an event."""
    records = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "event"} <= record.keys() for record in records)
    return records


def of(records, event):
    return [record for record in records if record["event"] == event]


@pytest.mark.slow
def test_events_metrics_messages_and_the_result_are_json_lines(tmp_path):
    """Standard output holds each step once, each event once, and the result; standard error holds nothing."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=4", "state_store.every=2")
    process = run("train", *settings, "--log-format", "json", cwd=tmp_path)
    assert process.returncode == 0, process.stdout
    assert process.stderr == ""
    records = lines_of(process.stdout)
    assert [record["step"] for record in of(records, "metrics") if "loss" in record["metrics"]] == [1, 2, 3, 4]
    assert {"RunStarted", "CheckpointSaved", "EvaluationCompleted", "RunFinished"} <= {
        each["event"] for each in records
    }
    saved = of(records, "CheckpointSaved")
    assert all("checkpoint-" in record["message"] for record in saved)
    assert not {record["message"] for record in saved} & {record["message"] for record in of(records, "message")}
    (result,) = of(records, "result")
    assert (result["state"], result["step"]) == ("finished", 4)
    assert records[-1] == result


@pytest.mark.slow
def test_an_error_is_a_line_of_its_level(tmp_path):
    """A mistake in the settings, and one that is found while data are read, end with a line of the level error."""
    for mistake, code in (("model.kind=absent", 2), ("data.path=nowhere", 3)):
        settings = tiny(corpus(tmp_path), mistake)
        process = run("train", *settings, "--log-format", "json", "--quiet", cwd=tmp_path)
        assert process.returncode == code
        assert process.stderr == ""
        records = lines_of(process.stdout)
        assert [record["level"] for record in of(records, "message")] == ["error"]
        assert not records[-1]["message"].startswith("error")


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--supervise"], ["distributed.processes=2", "optimizer.batch_size=4"]])
def test_a_signal_is_answered_in_json(tmp_path, more):
    """A run that SIGTERM stops says so in its own lines, also under a supervisor and in several processes."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=100000", "state_store.every=0", *more)
    with start("train", *settings, "--log-format", "json", cwd=tmp_path) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if json.loads(line)["event"] == "metrics":
                process.send_signal(signal.SIGTERM)
                break
        lines += process.stdout.readlines()
        assert process.wait() == 143
    records = lines_of("".join(lines))
    assert any("received SIGTERM" in record.get("message", "") for record in records)
    assert of(records, "result")[-1]["state"] == "stopped"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["prepare"], "tokens"),
        (["tune", "--space", "space.yaml", "--trials", "1"], "best"),
        (["tune", "--find-lr", "--steps", "10"], "rates"),
    ],
)
def test_a_preparation_and_a_search_write_json_lines(tmp_path, command, named):
    """Their progress and problems are messages, and their end is a result with what --json prints."""
    settings = tiny(corpus(tmp_path), "data.mode=cache", "run.budget.steps=2")
    (tmp_path / "space.yaml").write_text("optimizer.learning_rate: {choices: [0.001]}")
    process = run(*command, *settings, "--log-format", "json", cwd=tmp_path)
    assert (process.returncode, process.stderr) == (0, ""), process.stdout
    records = lines_of(process.stdout)
    assert {record["event"] for record in records} <= {"message", "result"}
    assert records[-1]["event"] == "result"
    assert named in records[-1]


def test_a_preparation_that_fails_ends_with_a_line_of_its_level(tmp_path):
    """With --quiet the error is all that there is."""
    process = run("prepare", "data.path=nowhere", "--log-format", "json", "--quiet", cwd=tmp_path)
    assert (process.returncode, process.stderr) == (3, "")
    assert [record["level"] for record in lines_of(process.stdout)] == ["error"]


@pytest.mark.parametrize("command", [["train"], ["prepare"], ["tune", "--find-lr"]])
def test_two_meanings_of_standard_output_are_refused(tmp_path, command):
    """With --json standard output is one object, so both options together are a mistake."""
    process = run_here(*command, "--json", "--log-format", "json", cwd=tmp_path)
    assert process.returncode == 2
    assert "leave one of them out" in process.stderr
