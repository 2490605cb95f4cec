"""A run that is killed when a checkpoint is durable and the ledger does not know it yet."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from holdfast.adapters.ledger.sql import LEDGER, SqlLedger
from holdfast.adapters.shared.sql.sqlite_database import SqliteDatabase
from tests.support.command_line import SAME_RHYTHM, corpus, environment, run_here, tiny

pytestmark = pytest.mark.slow

KILLED_AFTER_A_SAVE = """
import os, signal, sys
from holdfast.bootstrap.run import Run
from holdfast.bootstrap.adapter_choice.part_overrides import Around
from holdfast.configs.settings_layers import load_settings
from holdfast.ports.forwarding.state_store import ForwardingStateStore

class Killed(ForwardingStateStore):
    def save(self, snapshot):
        info = super().save(snapshot)
        if snapshot.progress.step == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        return info

Run(load_settings([], sys.argv[1:], {}).settings, {"state_store": Around(Killed)}).run()
"""


def test_a_checkpoint_that_no_process_could_record_is_recorded_by_the_next_start(tmp_path):
    """The ledger has each checkpoint of the run, also the one after which it was killed."""
    settings = tiny(corpus(tmp_path), SAME_RHYTHM, "run.budget.steps=15", "ledger.kind=sqlite", "state_store.keep=10")
    command = [sys.executable, "-c", KILLED_AFTER_A_SAVE, *settings]
    process = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr
    run = tmp_path / "runs/default"
    assert (run / "checkpoints/checkpoint-10/COMMIT").exists()
    assert run_here("train", *settings, cwd=tmp_path).returncode == 0
    identity = json.loads((run / "run.json").read_text())["id"]
    with closing(SqlLedger(SqliteDatabase(run / "ledger.sqlite", LEDGER))) as ledger:
        found = {one.step: one for one in ledger.checkpoints(identity)}
    assert sorted(found) == [5, 10, 15]
    assert found[10].location == str(run / "checkpoints/checkpoint-10")
