"""The faults that each drill injects into a run."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsFloat, cast, final

from holdfast.bootstrap.verification.fault_catalog import SHORT_STEPS, SLOW_SAVE_SECONDS
from holdfast.bootstrap.verification.fault_proxies import FaultyStateStore, FaultyStream, FaultyTrainable, Hooks
from holdfast.bootstrap.verification.s3_outage import busy
from holdfast.bootstrap.wiring.part_overrides import Around
from holdfast.bootstrap.wiring.process_group import is_first_rank
from holdfast.domain.errors import NonFiniteGradients, OutOfMemory, StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.bootstrap.verification.fault_catalog import Planned

_SPIKE = 100.0


class WorkerDied(BaseException):
    """The end of a thread that reads data, as after the panic of a library."""


@final
@dataclass(slots=True)
class Fault:
    """A fault that occurs once in a run, over all its processes: at ``step``, marked by the file ``happened``."""

    step: int
    happened: Path
    length: int = 1
    most_rows: int | None = None
    has_begun: bool = False

    def comes(self, step: int) -> bool:
        """Return whether the fault occurs now, at ``step``."""
        if step < self.step or self.happened.exists():
            return False
        self.happened.touch()
        return True

    def kill(self, step: int) -> None:
        """Kill this process at once."""
        if self.comes(step):
            os.kill(os.getpid(), signal.SIGKILL)

    def ask_to_stop(self, step: int) -> None:
        """Send this process the signal of a scheduler."""
        if self.comes(step):
            os.kill(os.getpid(), signal.SIGTERM)

    def hang(self, step: int) -> None:
        """Hang, but not in the first step of a process, which may take long anyway."""
        if self.has_begun and self.comes(step):
            while True:
                time.sleep(1.0)
        self.has_begun = True

    def run_short(self, step: int, rows: int) -> None:
        """Leave memory for half the rows for some steps; raises ``OutOfMemory`` for more rows."""
        if self.comes(step):
            self.step, self.most_rows = step, rows // 2
        if self.most_rows is None or step >= self.step + SHORT_STEPS or rows <= self.most_rows:
            return
        self.most_rows = self.most_rows or None  # a single row is refused but once
        msg = f"no memory for {rows} rows (drill)"
        raise OutOfMemory(msg)

    def spoil(self, step: int) -> None:
        """Raise ``NonFiniteGradients`` whenever the step is taken."""
        if step == self.step:
            self.happened.touch()
            msg = f"the gradients of step {step} are not finite (drill)"
            raise NonFiniteGradients(msg)

    def exaggerate(self, step: int, samples: int, loss: SupportsFloat) -> SupportsFloat:
        """Return a loss that is far too high for a few batches, whenever they are taken; they end at ``samples``."""
        spoilt = self.happened.read_text().split() if self.happened.exists() else []
        if step >= self.step and len(spoilt) < self.length and str(samples) not in spoilt:
            spoilt.append(str(samples))
            self.happened.write_text(" ".join(spoilt))
        return cast("Any", loss) * _SPIKE if str(samples) in spoilt else loss

    def refuse(self, step: int) -> None:
        """Raise ``StateError``, as if the disk had no room for a checkpoint."""
        if self.comes(step):
            msg = f"checkpoint {step} cannot be written, no space left on the device (drill): free some space there"
            raise StateError(msg)

    def delay(self, step: int) -> None:
        """Delay a checkpoint by some seconds."""
        if self.comes(step):
            time.sleep(SLOW_SAVE_SECONDS)

    def die_reading(self, step: int) -> None:
        """Raise ``WorkerDied`` in the thread that prefetches."""
        if self.comes(step):
            raise WorkerDied


_PLANT: Mapping[str, Callable[[Hooks, Fault], None]] = {
    "kill": lambda hooks, fault: hooks.before_apply.append(fault.kill),
    "sigterm": lambda hooks, fault: hooks.before_apply.append(fault.ask_to_stop),
    "oom": lambda hooks, fault: hooks.before_part.append(fault.run_short),
    "nan": lambda hooks, fault: hooks.before_apply.append(fault.spoil),
    "spike": lambda hooks, fault: hooks.adjust_loss.append(fault.exaggerate),
    "full-disk": lambda hooks, fault: hooks.before_save.append(fault.refuse),
    "slow-disk": lambda hooks, fault: hooks.before_save.append(fault.delay),
    "dead-worker": lambda hooks, fault: hooks.before_batch.append(fault.die_reading),
    "hang": lambda hooks, fault: hooks.before_apply.append(fault.hang),
}


def faults_of(planned: Sequence[Planned], marker: Callable[[int], Path]) -> dict[str, Any]:
    """Return the wrappers of a run's parts, by part name, that cause the faults of ``planned``.

    ``marker`` names the file that marks that the fault at a place in ``planned`` has happened.
    """
    if not planned or not is_first_rank():
        return {}
    hooks = Hooks()
    busy([marker(place) for place, fault in enumerate(planned) if fault.drill == "s3-503"])
    for place, fault in enumerate(planned):
        if fault.drill != "s3-503":
            _PLANT[fault.drill](hooks, Fault(fault.step, marker(place), fault.length))
    return {
        "trainable": Around(lambda trainable: FaultyTrainable(trainable, hooks)),
        "state_store": Around(lambda store: FaultyStateStore(store, hooks)),
        "trained_stream": Around(lambda stream: FaultyStream(stream, hooks)),
    }
