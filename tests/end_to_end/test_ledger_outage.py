"""A run whose ledger's server goes away, and which is killed meanwhile."""

from __future__ import annotations

import json
import signal
import time
from contextlib import closing

import pytest

from holdfast.adapters.ledger.sql import LEDGER, SqlLedger
from holdfast.adapters.shared.sql.postgres_database import PostgresDatabase
from tests.support.command_line import SAME_RHYTHM, corpus, run_here, start, tiny

STEPS = 600
DOWN_SECONDS = 20.0
CHECKED = (1, 2, 200, 400, 599, 600)


def train(folder, settings, seconds=None):
    """Train, and kill the run after ``seconds``; return whether it ended by itself."""
    process = start("train", *settings, cwd=folder)
    if seconds is not None:
        deadline = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=300)
    assert process.returncode in {0, -signal.SIGKILL}, errors
    return process.returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_without_its_server_loses_no_step(tmp_path, postgres, monkeypatch):
    """The server is gone for a while and the run is killed three times: each step stands there once, as it was."""
    place = postgres.new_database()
    monkeypatch.setenv("LEDGER_DSN", place)
    settings = [
        *tiny(corpus(tmp_path), SAME_RHYTHM),
        *("ledger.dsn=env:LEDGER_DSN", f"run.budget.steps={STEPS}", "state_store.every=50", "evaluation.every=500"),
    ]
    train(tmp_path, settings, 14.0)
    postgres.stop()
    stopped = time.monotonic()
    train(tmp_path, settings, 12.0)
    train(tmp_path, settings, 13.0)
    time.sleep(max(0.0, stopped + DOWN_SECONDS - time.monotonic()))
    postgres.start()
    assert train(tmp_path, settings)

    identity = json.loads((tmp_path / "runs/default/run.json").read_text())["id"]
    with closing(SqlLedger(PostgresDatabase(place, LEDGER))) as ledger:
        recorded = ledger.steps(identity)
        assert recorded.step.tolist() == list(range(1, STEPS + 1))
        assert recorded.first_sample.tolist() == [0, *recorded.end_sample.tolist()[:-1]]
        for step in CHECKED:
            spans = ledger.documents_in(identity, step)
            traced = run_here("samples", "runs/default", "--step", str(step), "--json", cwd=tmp_path)
            assert traced.returncode == 0, traced.stderr
            [found] = json.loads(traced.stdout)["steps"]
            expected = [(each["sample"], each["document"], each["first_token"]) for each in found["documents"]]
            columns = (spans.sample.tolist(), spans.document.tolist(), spans.first_token.tolist())
            assert [(g, f"{document:016x}", first) for g, document, first in zip(*columns, strict=True)] == expected
