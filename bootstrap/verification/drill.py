"""Runs drills: a short run with a fault, restarted as needed, compared with an undisturbed one."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.bootstrap.process.child_run import ChildFailedError, room_beside
from holdfast.bootstrap.process.printing import report_line
from holdfast.bootstrap.process.signals import stopping_on_signals
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.verification.comparison import first_steps
from holdfast.bootstrap.verification.fault_catalog import DRILLS, Planned
from holdfast.bootstrap.verification.resume import PREFIX, VerifyResume, start
from holdfast.domain.counting import counted
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    found = [one for one in verdict.differences if one.what not in left_out]
    verdict = replace(verdict, differences=found)
    first = next((one for one in (*found, verdict.state.first) if one is not None), None)
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
