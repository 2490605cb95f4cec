"""A run whose sizes are auto decides them once and keeps to them."""

from __future__ import annotations

import json

from tests.support.command_line import SAME_RHYTHM, corpus, run_here, tiny

AUTO = ("data.sequence_length=auto", "optimizer.batch_size=auto")


def record_of(folder):
    return json.loads((folder / "runs" / "sizes" / "run.json").read_text())


def test_sizes_are_decided_once_and_kept(tmp_path):
    """Row length and batch are written down with their reasons, stay over a resume, and serve an evaluation."""
    overrides = [*tiny(corpus(tmp_path), *AUTO, SAME_RHYTHM, "run.name=sizes")]
    assert run_here("train", *overrides, "run.budget.steps=2", cwd=tmp_path).returncode == 0
    began = record_of(tmp_path)
    assert began["settings"]["data"]["sequence_length"] == began["settings"]["optimizer"]["batch_size"] == "auto"
    decided = {name: began["auto"][name] for name in ("data.sequence_length", "optimizer.batch_size")}
    assert all(int(entry["value"]) >= 1 and entry["reason"] for entry in decided.values())
    resumed = run_here("train", *overrides, "run.budget.steps=3", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert {name: record_of(tmp_path)["auto"][name] for name in decided} == decided
    rows, length = int(decided["optimizer.batch_size"]["value"]), int(decided["data.sequence_length"]["value"])
    metrics = (tmp_path / "runs" / "sizes" / "metrics.jsonl").read_text().splitlines()
    steps = [record for record in map(json.loads, metrics) if "loss" in record]
    assert [record["tokens"] for record in steps][-1] == 3 * rows * length
    evaluated = run_here("evaluate", "runs/sizes", cwd=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr


def test_a_batch_of_tokens_trains(tmp_path):
    """The step has as many tokens as were asked for, in whole rows."""
    overrides = tiny(corpus(tmp_path), "data.sequence_length=48", "optimizer.batch_size=null", "run.name=sizes")
    overrides += ["optimizer.batch_tokens=200"]
    assert run_here("train", *overrides, "run.budget.steps=1", cwd=tmp_path).returncode == 0
    metrics = (tmp_path / "runs" / "sizes" / "metrics.jsonl").read_text().splitlines()
    assert [record["tokens"] for record in map(json.loads, metrics) if "loss" in record] == [4 * 48]
