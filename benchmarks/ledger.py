"""Rate at which ledgers record spans, time of the two questions, and size: ``python -m benchmarks.ledger``."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.smoke import add_smoke, end_smoke
from holdfast.adapters.ledger.spilling import SpillingLedger
from holdfast.adapters.ledger.sql import LEDGER, SqlLedger
from holdfast.adapters.shared.sql.sqlite_database import SqliteDatabase
from holdfast.domain.data.batch import Spans, UnitName
from holdfast.ports.ledger import StepRecords

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.ports.ledger import Ledger

ROWS, SPANS = 256, 1024  # of a step
STEPS = 16  # of a record
_UNITS = tuple(UnitName(f"source{number % 4}", f"file{number}.jsonl") for number in range(1000))


def document_id(number: Any) -> Any:
    """Return the id of the document ``number``, uint64."""
    with np.errstate(over="ignore"):
        return np.asarray(number).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def material(first_step: int, num_documents: int) -> tuple[StepRecords, Spans]:
    """Return ``STEPS`` steps from ``first_step`` on, with random documents among ``num_documents``."""
    step = np.arange(first_step, first_step + STEPS)
    begin = (step - 1) * ROWS
    steps = StepRecords(step, begin, begin + ROWS, np.full(STEPS, 2.5), np.full(STEPS, ROWS * 2048))
    total = STEPS * SPANS
    chosen = np.random.default_rng(first_step)
    document = chosen.integers(0, num_documents, total)
    spans = Spans(
        sample=np.repeat(np.arange(begin[0], begin[-1] + ROWS), SPANS // ROWS),
        epoch=np.zeros(total, np.int64),
        unit=document % len(_UNITS),
        document=document_id(document),
        position=document // len(_UNITS),
        first_token=np.zeros(total, np.int64),
        num_tokens=np.full(total, 512),
        units=_UNITS,
    )
    return steps, spans


def fill(ledger: Ledger, first_step: int, num_spans: int, num_documents: int) -> tuple[int, float]:
    """Record ``num_spans`` spans or a few more; return the next step, and the seconds until all are recorded."""
    step, seconds = first_step, 0.0
    while (step - first_step) * SPANS < num_spans:
        steps, spans = material(step, num_documents)
        began = time.perf_counter()
        ledger.record("run", steps, spans)
        seconds += time.perf_counter() - began
        step += STEPS
    began = time.perf_counter()
    ledger.flush()
    return step, seconds + time.perf_counter() - began


def time_of(ask: Callable[[int], object], numbers: list[int]) -> tuple[float, float]:
    """Return the median and the longest of the milliseconds that ``ask`` takes for each of ``numbers``."""
    taken = []
    for number in numbers:
        began = time.perf_counter()
        ask(number)
        taken.append(1000 * (time.perf_counter() - began))
    return statistics.median(taken), max(taken)


def measure(name: str, ledger: Ledger, num_spans: int, size: Callable[[], int]) -> None:
    """Print a row of the table for ``ledger``: a million spans first, then more up to ``num_spans``."""
    num_documents, million = max(num_spans // 3, 1), 1_000_000
    ledger.begin_run("run", {}, time.time())
    step, first_seconds = fill(ledger, 1, min(million, num_spans), num_documents)
    step, more_seconds = fill(ledger, step, max(num_spans - million, 0), num_documents)
    chosen = np.random.default_rng(0)
    in_step = time_of(lambda number: ledger.documents_in("run", number), chosen.integers(1, step, 50).tolist())
    documents = document_id(chosen.integers(0, num_documents, 50)).tolist()
    with_document = time_of(ledger.steps_with, documents)
    recorded = (step - 1) * SPANS
    print(
        f"| {name} | {recorded:,} | {first_seconds:.1f} | {first_seconds + more_seconds:.1f} | "
        f"{in_step[0]:.1f} / {in_step[1]:.1f} | {with_document[0]:.1f} / {with_document[1]:.1f} | "
        f"{size() / recorded * million / 1e6:.0f} MB |",
        flush=True,
    )


def compare(ledger: Ledger) -> None:
    """Record some steps; end the process if the ledger answers either question otherwise than they were recorded."""
    num_documents = 100
    ledger.begin_run("run", {}, time.time())
    fill(ledger, 1, STEPS * SPANS, num_documents)
    _, spans = material(1, num_documents)
    first = spans.document[spans.sample < ROWS]
    found = ledger.documents_in("run", 1).document
    steps = {taken.step for taken in ledger.steps_with(int(first[0]))}
    wanted = set((1 + spans.sample[spans.document == first[0]] // ROWS).tolist())
    different = [] if sorted(found) == sorted(first) else ["the documents of a step are not those that were recorded"]
    different += [] if steps == wanted else ["the steps of a document are not those that were recorded"]
    end_smoke(different)


def main() -> None:
    """Measure a ledger of each kind, with the files of calls in front of it as in a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=10_000_000, help="number of spans in the end")
    parser.add_argument("--dsn", help="PostgreSQL database, which is left with the measured rows (default: none)")
    parser.add_argument("--folder", type=Path, help="folder for SQLite and the calls (default: a temporary one)")
    add_smoke(parser)
    options = parser.parse_args()
    if options.smoke:
        with tempfile.TemporaryDirectory() as name:
            sqlite = SqlLedger(SqliteDatabase(Path(name) / "ledger.sqlite", LEDGER))
            with closing(_spilling(sqlite, Path(name) / "calls")) as ledger:
                compare(ledger)
        return
    print("| kind | spans | s for the first 10^6 | s in all | ms: documents of a step, median / longest | ", end="")
    print("ms: steps of a document | size of 10^6 spans |\n|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        file = folder / "ledger.sqlite"
        sqlite = SqlLedger(SqliteDatabase(file, LEDGER))
        with closing(_spilling(sqlite, folder / "sqlite-calls")) as ledger:
            measure("sqlite", ledger, options.spans, lambda: file.stat().st_size)
        if options.dsn:
            from holdfast.adapters.shared.sql.postgres_database import PostgresDatabase

            database = PostgresDatabase(options.dsn, LEDGER)
            with closing(_spilling(SqlLedger(database), folder / "postgres-calls")) as ledger:
                measure("postgres", ledger, options.spans, lambda: _size_of(database))


def _spilling(inner: Ledger, folder: Path) -> Ledger:
    return SpillingLedger(inner, folder, report=print, patience_seconds=3600)


def _size_of(database: Any) -> int:
    with database.transaction():
        return int(database.rows("SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables")[0][0])


if __name__ == "__main__":
    main()
