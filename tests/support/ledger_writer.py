"""Records steps in a ledger until it is killed, and continues from its checkpoint when it is started again.

In the middle it waits as long as FOLDER has a file ``hold``.

python ledger_writer.py SQLITE_FILE_OR_DSN FOLDER STEPS
"""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path

from holdfast.adapters.ledger.spilling import SpillingLedger
from holdfast.adapters.ledger.sql import LEDGER, SqlLedger
from holdfast.application.handlers.record_ledger import RecordLedger
from holdfast.domain.commands import SaveReason
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.events import CheckpointStarted, RunFinished, RunStarted, StepCompleted
from holdfast.domain.training.step_outcome import Progress, StepOutcome
from holdfast.ports.testing.ledger import ROWS, spans_of

EVERY = 10


def open_database(place: str):
    if place.startswith("postgresql:"):
        from holdfast.adapters.shared.sql.postgres_database import PostgresDatabase

        return PostgresDatabase(place, LEDGER)
    from holdfast.adapters.shared.sql.sqlite_database import SqliteDatabase

    return SqliteDatabase(Path(place), LEDGER)


def at(step: int) -> Progress:
    return Progress(step, 40 * step, Cursor(ROWS * step))


def main(place: str, folder: Path, steps: int) -> None:
    saved = folder / "checkpoint"
    ledger = SpillingLedger(SqlLedger(open_database(place)), folder / "calls", report=print)
    with closing(RecordLedger(ledger, "run", spans_of, {}, interval_seconds=0.01)) as recorder:
        begin = int(saved.read_text()) if saved.exists() else 0
        recorder.on_start(RunStarted(at(begin)))
        print("started", begin, flush=True)  # noqa: T201  the parent waits for it
        for step in range(begin + 1, steps + 1):
            outcome = StepOutcome([2.0 * step], 2, 40, 1.0, 0.1, 1, 0.01)
            recorder.on_step(StepCompleted(at(step), outcome))
            time.sleep(0.002)
            while step == steps // 2 and (folder / "hold").exists():
                time.sleep(0.01)
            if step % EVERY == 0:
                recorder.settle(CheckpointStarted(at(step), SaveReason.PERIODIC))
                saved.with_suffix(".new").write_text(str(step))
                saved.with_suffix(".new").replace(saved)
        recorder.on_end(RunFinished(at(steps)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
