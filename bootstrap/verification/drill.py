"""Runs drills: a short run with a fault, restarted as needed, compared with an undisturbed one."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.bootstrap.process.child_run import ChildFailedError, room_beside
from holdfast.bootstrap.process.exit_codes import ExitCode, code_of_signal
from holdfast.bootstrap.process.printing import report_line
from holdfast.bootstrap.process.signals import StoppedAtOnce, stopping_on_signals
from holdfast.bootstrap.process.supervisor import HeartbeatMonitor, Supervisor
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.stages.attach.run_records import goodput_of, sentence_of
from holdfast.bootstrap.verification.fault_catalog import DRILLS, LEARNED, Planned, draw
from holdfast.bootstrap.verification.resume import PREFIX, VerifyResume, first_steps, start
from holdfast.bootstrap.verification.short_run import MODULE
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.fault_tolerance.restart_policy import RestartPolicy
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.bootstrap.verification.short_run import ShortRun
    from holdfast.configs.sections.recovery import HealthSettings
    from holdfast.configs.settings import TrainSettings

MOST_STARTS = 4
_TOLD = (
    "UpdateDropped",
    "RolledBack",
    "CheckpointFailed",
    "MemoryExhausted",
    "BatchSplit",
    "StopRequested",
    "RunFailed",
    "HandlerFailed",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a drill: ``codes`` are the exit codes of its starts, ``equals`` describes how its end compares.

    ``happened`` is whether the fault occurred at all, ``lost_steps`` the number of complete steps that were repeated,
    ``seconds`` the time of all its starts and that of the undisturbed run, ``events`` the counts of reported events.
    """

    drill: str
    happened: bool
    codes: Sequence[int]
    equals: str
    holds: bool
    lost_steps: int
    seconds: tuple[float, float]
    events: dict[str, int]

    @property
    def survived(self) -> bool:
        """Return whether the fault occurred and the run nevertheless ended as its configuration promises."""
        return self.happened and self.codes[-1] == 0 and self.holds

    def line(self) -> str:
        """Return the outcome for a person."""
        if not self.happened:
            return f"{self.drill}: the fault did not occur, so nothing is shown: try more --steps"
        counts = ", ".join(f"{count} {name}" for name, count in self.events.items())
        codes = ", ".join(map(str, self.codes))
        return (
            f"{self.drill}: {'survived' if self.survived else 'NOT SURVIVED'} · {self.equals} · "
            f"{counted(len(self.codes), 'start')} (codes {codes}) · {counted(self.lost_steps, 'step')} lost · "
            f"{self.seconds[0]:.1f} s, undisturbed {self.seconds[1]:.1f} s" + (f" · {counts}" if counts else "")
        )

    def to_json(self) -> str:
        """Return the outcome as JSON on one line."""
        return json.dumps({**asdict(self), "survived": self.survived})


@final
@dataclass(frozen=True, slots=True)
class Drills:
    """Runs drills on the runs of ``proof``, which are those of `verify-resume`."""

    proof: VerifyResume

    def run(self, names: Sequence[str], *, keep: bool) -> Iterator[Outcome]:
        """Yield the outcome of each drill in ``names``; all files are deleted at the end unless ``keep``.

        Raises ``ConfigurationError`` for a drill that cannot be tried, ``ChildFailedError`` if the undisturbed run
        failed.
        """
        proof = self.proof
        proof.check()
        for name in names:
            if (reason := without_sense(name, proof.settings)) is not None:
                msg = f"{name}: {reason}"
                raise ConfigurationError(msg)
        sizes = proof.settings.run.cache_directory / "micro-batch"
        with (
            stopping_on_signals(lambda _reason, _number: False),
            room_beside(proof.settings.run.directory, PREFIX, keep=keep) as room,
        ):
            undisturbed = proof.short_run(room / "undisturbed")
            report_line(f"{undisturbed.steps} steps without interruption")
            began = time.monotonic()
            code, log = start(undisturbed)
            if code:
                sys.stderr.write(log)
                raise ChildFailedError(code)
            seconds = time.monotonic() - began
            for name in names:
                report_line(f"{name}: {DRILLS[name]}")
                run = disturbed(proof.short_run(room / name), name, proof.settings.recovery.health)
                with kept_as_it_was(sizes):  # the next drill must not learn how little memory this one had
                    outcome = self._drill(run, name, Path(undisturbed.folder), seconds)
                yield outcome

    def _drill(self, run: ShortRun, name: str, undisturbed: Path, undisturbed_seconds: float) -> Outcome:
        began, codes = time.monotonic(), list[int]()
        while len(codes) < MOST_STARTS and (not codes or codes[-1]):
            code, log = start(run)
            codes.append(code)
        if codes[-1]:
            sys.stderr.write(log)
        folder = Path(run.folder)
        records = list(JsonLines(RunLayout(folder).events).read())
        counts = Counter(str(record["event"]) for record in records)
        if name == "nan":  # the drop is intended, so the end cannot equal the undisturbed one
            equals, holds = "but for one update", counts["UpdateDropped"] == 1
        elif name == "spike":
            equals, holds = "but for the batches that led astray", counts["RolledBack"] == 1
        else:
            equals, holds = compared(self.proof, undisturbed, folder, run.every)
        return Outcome(
            drill=name,
            happened=run.happened(0).exists(),
            codes=codes,
            equals=equals,
            holds=holds,
            lost_steps=sum(max(0, run.faults[0].step - 1 - begun) for begun in first_steps(folder)[1:]),
            seconds=(time.monotonic() - began, undisturbed_seconds),
            events={name: counts[name] for name in _TOLD if counts[name]},
        )


def compared(
    proof: VerifyResume, undisturbed: Path, disturbed: Path, every: int, *, is_long: bool = False
) -> tuple[str, bool]:
    """Return the comparison of the ends of two runs, and whether it is as the configuration promises.

    If bitwise equality is not promised, gradient norms do not count in a run that ``is_long``: they amplify rounding
    from step to step, and losses hardly do.
    """
    try:
        verdict = proof.verdict(undisturbed, disturbed, every)
    except StateError as error:
        return str(error), False
    # the checkpoint that a start took does not matter here: only the steps and the end are compared
    verdict = replace(verdict, saved=verdict.resumed_from)
    left_out = {"checkpoint", "grad_norm"} if is_long and not verdict.promises_bits else {"checkpoint"}
    differences = [one for one in verdict.differences if one.what not in left_out]
    verdict = replace(verdict, differences=differences)
    first = next((one for one in (*differences, verdict.state.first) if one is not None), None)
    if verdict.holds or first is None:
        return verdict.word, verdict.holds
    return f"{verdict.word} (first {first.what} of {first.where}: {first.values[0]}, {first.values[1]})", False


def applying(settings: TrainSettings) -> Sequence[str]:
    """Return the drills that apply to a run of ``settings``."""
    return [name for name in DRILLS if without_sense(name, settings) is None]


def spike_steps(health: HealthSettings) -> int:
    """Return the number of steps needed to detect a spike, roll back and continue."""
    return health.window // 2 + 3 * health.spike_steps


def without_sense(name: str, settings: TrainSettings) -> str | None:
    """Return the reason why the drill ``name`` shows nothing with ``settings``, None if it can show something."""
    health, budget = settings.recovery.health, settings.run.budget.steps
    if name == "s3-503" and "s3://" not in settings.data.model_dump_json():  # wherever a source has its addresses
        return "nothing is read from S3 with these settings: name another drill, or data at s3://..."
    if name == "hang" and not settings.recovery.watchdog.enabled:
        return "nothing would end a run that hangs: set recovery.watchdog.enabled=true"
    if name == "spike" and not health.spike:
        return "a run does not roll back after a spike with these settings: set recovery.health.spike=true"
    if name == "spike" and budget is not None and budget < spike_steps(health):
        return f"run.budget.steps is {budget}, and a spike takes {spike_steps(health)} steps: allow as many"
    return None


def disturbed(run: ShortRun, name: str, health: HealthSettings) -> ShortRun:
    """Return ``run`` with the fault of the drill ``name`` at the last step before a second checkpoint.

    A spike is detected by comparison with earlier losses, so it comes later, in a longer run.
    """
    if name != "spike":
        return replace(run, faults=[Planned(name, 2 * run.every)])
    step = health.window // 2 + health.spike_steps
    return replace(run, faults=[Planned(name, step, health.spike_steps)], steps=max(run.steps, spike_steps(health)))


@contextmanager
def kept_as_it_was(folder: Path) -> Iterator[None]:
    """Restore the small files of ``folder`` after the block, as sizes that a drill records for memory are wrong."""
    before = {path: path.read_bytes() for path in folder.glob("*.json")}
    try:
        yield
    finally:
        for path in folder.glob("*.json"):
            if path not in before:
                path.unlink()
        for path, content in before.items():
            path.write_bytes(content)


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
