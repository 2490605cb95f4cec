"""A ledger has each step exactly once, however often the run and the server end in between."""

from __future__ import annotations

import random
import subprocess
import sys
from contextlib import closing

import pytest

from holdfast.adapters.ledger.sql import SqlLedger
from holdfast.ports.testing.ledger import ROWS, plain, spans_of
from tests.support import ledger_writer

STEPS = 120


def _start(place, folder):
    command = [sys.executable, "-m", "tests.support.ledger_writer", place, str(folder), str(STEPS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _check(place):
    with closing(SqlLedger(ledger_writer.open_database(place))) as ledger:
        steps = ledger.steps("run")
        assert steps.step.tolist() == list(range(1, STEPS + 1))
        assert steps.loss.tolist() == steps.step.tolist()
        for step in range(1, STEPS + 1):
            assert plain(ledger.documents_in("run", step)) == plain(spans_of((step - 1) * ROWS, step * ROWS))
        document = int(spans_of(0, 1).document[0])
        assert {taken.attempt for taken in ledger.steps_with(document)} == {0}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_run_killed_three_times_has_each_step_once(tmp_path, kind, request):
    """After three kills at random times the ledger has each step once, with the documents of its samples."""
    place = str(tmp_path / "ledger.sqlite") if kind == "sqlite" else request.getfixturevalue("postgres").new_database()
    chosen = random.Random(kind)
    for _ in range(3):
        with _start(place, tmp_path) as run:
            assert run.stdout.readline().startswith("started")
            try:
                run.wait(chosen.uniform(0.01, 0.25))
            except subprocess.TimeoutExpired:
                run.kill()
    with _start(place, tmp_path) as run:
        assert run.wait(60) == 0
    _check(place)
    assert not list((tmp_path / "calls").iterdir())


def test_a_server_that_is_gone_in_mid_run_loses_nothing(tmp_path, postgres):
    """A run whose server crashes and comes back, and that is killed meanwhile, has each step once in the end."""
    place, hold = postgres.new_database(), tmp_path / "hold"
    hold.touch()
    with _start(place, tmp_path) as run:
        assert run.stdout.readline().startswith("started")
        postgres.stop()
        hold.unlink()
        try:
            assert run.stdout.readline().startswith("the ledger is behind")
            run.kill()
        finally:
            postgres.start()
    with _start(place, tmp_path) as run:
        assert run.wait(60) == 0
    _check(place)
