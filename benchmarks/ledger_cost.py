"""Cost of the ledger for training: ``python -m benchmarks.ledger_cost``."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from benchmarks.phases import PhasedRun, cost, num_phases
from benchmarks.report import Figure, main
from benchmarks.smoke import SMALL_RUN
from holdfast.application.handlers.record_ledger import RecordLedger

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from holdfast.domain.events import StepCompleted

STEPS, PAIRS = 40, 30  # of a phase, and phases with the ledger
_LIMIT = 1.01


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the cost of a ledger in a file, and how much it recorded."""
    on_step, num_steps = RecordLedger.on_step, 0
    pairs, length = (1, 2) if options.smoke else (options.pairs, options.steps)
    expected = num_phases(pairs) // 2 * length
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            *((*SMALL_RUN, f"run.cache_dir={folder}/cache") if options.smoke else ()),
            f"run.dir={folder}/run",
            "ledger=sqlite",
            "monitors=[jsonl]",
        ]
        phased = PhasedRun(overrides, length, num_phases(pairs))

        def gated(ledger: RecordLedger, event: StepCompleted) -> None:
            nonlocal num_steps
            if phased.is_on:
                num_steps += 1
                on_step(ledger, event)
            else:
                ledger._samples = event.progress.cursor.samples  # noqa: SLF001  the next step begins with them

        RecordLedger.on_step = gated  # type: ignore[assignment, method-assign]
        ratio = cost(phased.run())
    return [
        Figure(
            f"time of a step with the ledger / without, median of {pairs} phases of {length} steps [95 % interval]",
            "{:.4f}x [{:.4f}, {:.4f}]".format(*ratio),
            f"<= {_LIMIT}x (the interval reaches it)",
            ratio[1] <= _LIMIT,
        ),
        Figure(
            "steps recorded in the ledger", f"{num_steps:,}", f"{expected:,}", num_steps == expected, is_equality=True
        ),
    ]


if __name__ == "__main__":
    main(
        "ledger_cost",
        "The default run with a ledger in the run folder, which records the steps of every other phase. A phase with "
        "the ledger is compared with the mean of the phases before and after it.",
        measure,
        ("torch",),
        add_options=lambda parser: (
            parser.add_argument("--pairs", type=int, default=PAIRS, help="phases with the ledger"),
            parser.add_argument("--steps", type=int, default=STEPS, help="steps of a phase"),
        ),
    )
