"""A soak: many faults in one supervised run."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.bootstrap.process.child_run import ChildFailedError, room_beside
from holdfast.bootstrap.process.exit_codes import ExitCode, code_of_signal
from holdfast.bootstrap.process.heartbeat_monitor import HeartbeatMonitor
from holdfast.bootstrap.process.printing import report_line
from holdfast.bootstrap.process.signals import StoppedAtOnce, stopping_on_signals
from holdfast.bootstrap.process.supervisor import Supervisor
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.verification.drill import applying, compared, kept_as_it_was
from holdfast.bootstrap.verification.fault_catalog import LEARNED, Planned, draw
from holdfast.bootstrap.verification.resume import PREFIX, VerifyResume, start
from holdfast.bootstrap.verification.short_run import MODULE
from holdfast.bootstrap.wiring.goodput_accounting import goodput_of, sentence_of
from holdfast.domain.counting import counted
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.fault_tolerance.restart_policy import RestartPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.bootstrap.verification.short_run import ShortRun

_STEPS_PER_FAULT = 4
_PREEMPTED = code_of_signal(signal.SIGTERM)
_SILENT_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class SoakOutcome:
    """The outcome of a soak: ``faults`` that happened, by drill, of ``planned`` ones; the rest as in ``Outcome``."""

    faults: Mapping[str, int]
    planned: int
    code: int
    equals: str
    holds: bool
    lost_steps: int
    seconds: tuple[float, float]
    goodput: str

    @property
    def survived(self) -> bool:
        """Return whether all faults occurred and the run nevertheless ended as its configuration promises."""
        return sum(self.faults.values()) == self.planned and self.code == ExitCode.FINISHED and self.holds

    def line(self) -> str:
        """Return the outcome for a person."""
        came = ", ".join(f"{name} {count}" for name, count in self.faults.items())
        return (
            f"soak: {'survived' if self.survived else 'NOT SURVIVED'} · {sum(self.faults.values())} of {self.planned} "
            f"faults came ({came}) · {self.equals} · the last start ended with {self.code} · "
            f"{counted(self.lost_steps, 'step')} lost · {self.seconds[0]:.1f} s, undisturbed {self.seconds[1]:.1f} s\n"
            f"{self.goodput}"
        )

    def to_json(self) -> str:
        """Return the outcome as JSON on one line."""
        return json.dumps({"drill": "soak", **asdict(self), "survived": self.survived})


@final
@dataclass(frozen=True, slots=True)
class Soak:
    """Puts ``count`` faults, drawn by ``seed`` from those that apply, into one supervised run of ``proof``."""

    proof: VerifyResume
    count: int
    seed: int

    def run(self, *, keep: bool) -> SoakOutcome:
        """Return the outcome; all files are deleted at the end unless ``keep``.

        Its end is compared with that of a run that has only the faults of ``LEARNED``. Raises ``ConfigurationError`` if
        the soak cannot be tried with these settings, ``ChildFailedError`` if that run failed.
        """
        proof, settings = self.proof, self.proof.settings
        proof.check()
        names = applying(settings)
        sizes = settings.run.cache_directory / "micro-batch"
        with (
            stopping_on_signals(lambda _reason, _number: False),
            room_beside(settings.run.directory, PREFIX, keep=keep) as room,
            kept_as_it_was(sizes),
        ):
            disturbed = self._disturbed(room / "disturbed", names)
            learned = [fault for fault in disturbed.faults if fault.drill in LEARNED]
            report_line(f"{disturbed.steps} steps with only the {len(learned)} faults that change the parameters")
            began = time.monotonic()
            reference = replace(disturbed, folder=str(room / "reference"), faults=learned)
            code, log = start(reference)
            if code:
                sys.stderr.write(log)
                raise ChildFailedError(code)
            seconds = time.monotonic() - began
            report_line(f"{disturbed.steps} steps with {len(disturbed.faults)} faults, supervised")
            began = time.monotonic()
            code = self._supervised(disturbed)
            return self._outcome(disturbed, reference, code, (time.monotonic() - began, seconds))

    def _disturbed(self, folder: Path, names: Sequence[str]) -> ShortRun:
        settings, health = self.proof.settings, self.proof.settings.recovery.health
        steps = max(_STEPS_PER_FAULT * self.count, 2 * health.window)
        budget = settings.run.budget.steps
        if budget is not None and budget < steps:
            msg = f"run.budget.steps is {budget}, and {self.count} faults take {steps} steps: try fewer --faults"
            raise ConfigurationError(msg)
        spikes = [Planned("spike", health.window + health.spike_steps, health.spike_steps)] if health.spike else []
        faults = draw(names, self.count, steps, spikes=spikes, seed=self.seed)
        return replace(self.proof.short_run(folder), steps=steps, every=_STEPS_PER_FAULT, faults=faults)

    def _supervised(self, run: ShortRun) -> int:
        """Return the exit code of the last start.

        A run that was asked to stop is started again, as a scheduler does with a preempted run.
        """
        folder = Path(run.folder)
        limits = RestartPolicy(max_restarts=2 * self.count, crash_loop=self.count + 1, first_seconds=0.0)
        while True:
            supervisor = Supervisor(
                [sys.executable, "-m", MODULE, run.to_argument()],
                folder,
                limits,
                HeartbeatMonitor(RunLayout(folder).heartbeats, _SILENT_SECONDS),
                grace_seconds=self.proof.settings.recovery.grace_seconds,
                report=report_line,
                output=sys.stderr,
            )
            code = supervisor.run()
            if supervisor.stopped_by is not None:
                raise StoppedAtOnce(supervisor.stopped_by)
            if code != _PREEMPTED:
                return code

    def _outcome(self, run: ShortRun, reference: ShortRun, code: int, seconds: tuple[float, float]) -> SoakOutcome:
        folder = Path(run.folder)
        came = [fault.drill for place, fault in enumerate(run.faults) if run.happened(place).exists()]
        equals, holds = compared(self.proof, Path(reference.folder), folder, run.every, is_long=True)
        return SoakOutcome(
            faults=dict(sorted(Counter(came).items())),
            planned=len(run.faults),
            code=code,
            equals=equals,
            holds=holds,
            lost_steps=sum(record["lost_steps"] for record in JsonLines(RunLayout(folder).restarts).read()),
            seconds=seconds,
            goodput=sentence_of(goodput_of(folder)),
        )
