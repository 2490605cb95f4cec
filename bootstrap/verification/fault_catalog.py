"""The drills with their descriptions, and the steps of their faults."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SLOW_SAVE_SECONDS = 3.0
SHORT_STEPS = 8
BUSY_ANSWERS = 4
DRILLS: Mapping[str, str] = {
    "kill": "the process is killed (SIGKILL) in the middle of a step",
    "sigterm": "a scheduler asks it to stop (SIGTERM) in the middle of a step",
    "oom": f"for {SHORT_STEPS} steps there is memory for half the rows",
    "nan": "a step's gradients are not finite",
    "spike": "the losses of a few batches are a hundred times as high",
    "full-disk": "the disk is full when a checkpoint is written",
    "slow-disk": f"a checkpoint takes {SLOW_SAVE_SECONDS:.0f} seconds more",
    "s3-503": f"S3 answers {BUSY_ANSWERS} requests for data with 503 (SlowDown)",
    "dead-worker": "the thread that reads data ahead dies",
    "hang": "a step never ends",
}
SOAK = "many of these faults, at random, in one supervised run"
LEARNED = frozenset({"nan", "spike"})
"""The drills that change the learned parameters; their reference is a run with no other faults."""

_GAP = 8  # steps between two of those


@dataclass(frozen=True, slots=True)
class Planned:
    """The fault of ``drill`` at ``step``, or as soon after it as possible; a spike lasts ``length`` batches.

    The faults of ``s3-503`` occur at the first requests of a process, one after another.
    """

    drill: str
    step: int
    length: int = 1


def draw(names: Sequence[str], count: int, steps: int, *, spikes: Sequence[Planned], seed: int) -> Sequence[Planned]:
    """Return ``count`` faults in the order of their steps: ``spikes``, and faults of ``names`` at random steps.

    Each has its own step. Faults that change the learned parameters keep a distance, and no disk is full while a run
    rolls back to a checkpoint after a spike. No fault is in the first two or the last four of all ``steps``.
    """
    rng = random.Random(seed)  # noqa: S311  no secret
    others = [name for name in names if name != "spike"]
    planned = list(spikes[:count])
    returns = [step for fault in planned for step in range(fault.step - _GAP, fault.step + fault.length + _GAP)]
    learned = [*returns]
    while len(planned) < count:
        fault = Planned(rng.choice(others), rng.randint(3, steps - 4))
        is_taken = fault.step in {other.step for other in planned}
        if is_taken or fault.step in {"full-disk": returns, "nan": learned}.get(fault.drill, ()):
            continue
        if fault.drill in LEARNED:
            learned += range(fault.step - _GAP, fault.step + _GAP)
        planned.append(fault)
    return sorted(planned, key=lambda fault: fault.step)
