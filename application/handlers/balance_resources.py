"""Adapts the run's use of the machine to the resources that are free."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, final

from holdfast.domain.commands import AdjustResources
from holdfast.domain.resources.balance_policy import Knob, KnobSetting, ResourceReading, SaveTiming

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.application.inbox import Inbox
    from holdfast.domain.events import BatchSplit, CheckpointSaved, StepCompleted
    from holdfast.domain.resources.balance_policy import BalancePolicy, BalanceState, KnobChange, ResourceSample
    from holdfast.ports.resource_probe import ResourceProbe

_READING_SECONDS = 0.25  # shorter steps are combined


@final
class BalanceResources:
    """Reports steps, saves and the ``latest`` sample of the machine to ``policy``, and asks for the changes it wants.

    ``state`` holds the knobs and their values.
    """

    def __init__(
        self,
        policy: BalancePolicy,
        state: BalanceState,
        inbox: Inbox,
        latest: Callable[[], ResourceSample | None],
    ) -> None:
        self._policy = policy
        self._state = state
        self._inbox = inbox
        self._latest = latest
        self._reading = ResourceReading(0.0, 0.0, 0, steps=0)

    def on_step(self, event: StepCompleted) -> None:
        """Pass a step, or several short ones together, to the policy."""
        outcome, so_far = event.outcome, self._reading
        self._reading = reading = ResourceReading(
            so_far.step_seconds + outcome.step_seconds,
            so_far.wait_seconds + outcome.supply.wait_seconds,
            max(so_far.batches_ready, outcome.supply.batches_ready),
            so_far.steps + 1,
        )
        if reading.step_seconds + reading.wait_seconds < _READING_SECONDS:
            return
        self._reading = ResourceReading(0.0, 0.0, 0, steps=0)
        if (sample := self._latest()) is not None:
            stalled = sample.pressure.memory
            reading = replace(reading, memory=sample.memory, processors=sample.processors, stalled=stalled)
        self._decide(*self._policy.after_steps(self._state, reading))

    def on_save(self, event: CheckpointSaved) -> None:
        """Pass a durable checkpoint to the policy."""
        self._decide(*self._policy.after_save(self._state, SaveTiming(event.seconds, event.stall_seconds)))

    def on_split(self, event: BatchSplit) -> None:
        """Adopt a micro-batch that another handler made smaller as the usual one."""
        rows, before = event.micro_batch, self._state.knobs.get(Knob.MICRO_BATCH)
        if before is not None and before.value != rows:
            setting = KnobSetting(rows, usual=rows, minimum=1, maximum=rows)
            self._state = replace(self._state, knobs={**self._state.knobs, Knob.MICRO_BATCH: setting})

    def _decide(self, state: BalanceState, change: KnobChange | None) -> None:
        self._state = state
        if change is not None:
            self._inbox.post(AdjustResources(change.knob, change.before, change.after, change.reason))


_PATIENCE_SECONDS = 1.0


@final
class ResourceSampler:
    """Samples ``probe`` every ``seconds`` in a thread, so that no step waits for the operating system.

    A probe that fails is not asked again, and ``latest`` raises its error once.
    """

    def __init__(self, probe: ResourceProbe, *, seconds: float) -> None:
        self._probe = probe
        self._seconds = seconds
        self._ended = threading.Event()
        self._latest: ResourceSample | None = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._look, name="resources", daemon=True)
        self._thread.start()

    def latest(self) -> ResourceSample | None:
        """Return the newest sample, None before the first one; raises the error of the probe once."""
        if (error := self._error) is not None:  # cleared only if seen, as the thread may set it at any time
            self._error = None
            raise error
        return self._latest

    def close(self) -> None:
        """End the thread without waiting for a probe that hangs; a second call has no effect."""
        self._ended.set()
        if self._thread is None:
            self._probe.close()
        else:
            self._thread.join(_PATIENCE_SECONDS)

    def _look(self) -> None:
        try:
            while not self._ended.wait(self._seconds):
                self._latest = self._probe.sample()
        except Exception as error:  # noqa: BLE001  raised by ``latest``
            self._latest = None
            self._error = error
        finally:
            self._probe.close()
