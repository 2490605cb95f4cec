"""A run records its steps, and the documents in them, in a ledger that agrees with what is traced afterwards."""

from __future__ import annotations

import json
from contextlib import closing

import numpy as np
import pytest

from holdfast.adapters.ledger.sql import LEDGER, SqlLedger
from holdfast.adapters.shared.sql.sqlite_database import SqliteDatabase
from tests.support.command_line import corpus, run_here, tiny


def spans_by_step(folder, steps, name="default"):
    """Return what ``samples`` says of each step."""
    found = {}
    for step in steps:
        result = run_here("samples", f"runs/{name}", "--step", str(step), "--json", cwd=folder)
        assert result.returncode == 0, result.stderr
        found[step] = json.loads(result.stdout)
    return found


RULES = (
    "data.validation={fields: {id: {min: 5}}, outliers: {length: {zscore: 8}}}",
    "data.transforms=[{kind: pii, options: {find: [email]}}]",
    "data.dedup=exact",
)


@pytest.mark.parametrize(("mode", "rules"), [("cache", RULES), ("stream", RULES[:2])])
def test_ledger_and_tracing_agree(tmp_path, mode, rules):
    """After a run that was continued, each step stands once, with the documents that ``samples`` computes."""
    path = corpus(tmp_path)
    originals = path.read_text().splitlines()
    end_of_originals = path.stat().st_size
    path.write_text("\n".join([*originals, *originals[20:40]]) + "\n")  # copies, which ``dedup`` leaves out
    settings = [*tiny(path), f"data.mode={mode}", *rules, "ledger=sqlite"]
    for steps in (3, 6):
        trained = run_here("train", *settings, f"run.budget.steps={steps}", cwd=tmp_path)
        assert trained.returncode == 0, trained.stderr
    identity = json.loads((tmp_path / "runs/default/run.json").read_text())["id"]
    with closing(SqlLedger(SqliteDatabase(tmp_path / "runs/default/ledger.sqlite", LEDGER))) as ledger:
        recorded = ledger.steps(identity)
        assert recorded.step.tolist() == [1, 2, 3, 4, 5, 6]
        assert recorded.first_sample.tolist() == [0, *recorded.end_sample.tolist()[:-1]]
        assert np.isfinite(recorded.loss).all()
        lines = map(json.loads, (tmp_path / "runs/default/rejected.jsonl").read_text().splitlines())
        rejected = sorted((line["position"], line["rule"]) for line in lines)
        rejects = ledger.rejected(identity)
        assert rejected
        assert list(zip(rejects.position.tolist(), rejects.rule, strict=True)) == rejected
        assert [unit.source for unit in rejects.units] == ["files"]
        for step, traced in spans_by_step(tmp_path, (1, 4, 6)).items():
            spans = ledger.documents_in(identity, step)
            found = [
                (int(sample), f"{int(document):016x}", int(first), int(size))
                for sample, document, first, size in zip(
                    spans.sample, spans.document, spans.first_token, spans.num_tokens, strict=True
                )
            ]
            expected = [
                (each["sample"], each["document"], each["first_token"], each["tokens"])
                for each in traced["steps"][0]["documents"]
            ]
            assert found == expected
            if mode == "cache":
                assert spans.position.max() < end_of_originals
