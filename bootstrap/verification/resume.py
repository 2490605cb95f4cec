"""Proof that a configuration resumes exactly: the same short run is done twice, and killed once in its middle."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.adapters.state_store.manifest import COMMIT, MANIFEST
from holdfast.application.inbox import Inbox
from holdfast.bootstrap.adapter_choice.process_group import is_launched
from holdfast.bootstrap.adapter_choice.state_stores import StoreRequest, disk_store
from holdfast.bootstrap.process.child_run import ChildFailedError, room_beside, run_in_child
from holdfast.bootstrap.process.printing import report_line
from holdfast.bootstrap.process.signals import stopping_on_signals
from holdfast.bootstrap.run_folder.layout import RECORD, RunLayout
from holdfast.bootstrap.run_folder.record_file import read_record
from holdfast.bootstrap.verification.short_run import MODULE, ShortRun
from holdfast.configs.error_messages import one_line
from holdfast.configs.sections.distributed import TorchDistributedSettings
from holdfast.configs.sections.state_store import DiskStateStoreSettings
from holdfast.domain.checkpoints.reproducibility import Reproducibility
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.state_store import CheckpointInfo, StateStore

FEWEST_STEPS = 3
PREFIX = ".verify-resume-"
"""The beginning of the name of a folder for the runs."""


@final
@dataclass(frozen=True, slots=True)
class VerifyResume:
    """Trains ``steps`` steps of ``settings`` (from ``config`` and ``arguments``), once undisturbed and once killed."""

    settings: TrainSettings
    config: Sequence[Path]
    arguments: Sequence[str]
    steps: int

    def run(self, *, keep: bool) -> Verdict:
        """Return the verdict; all files are deleted at the end unless ``keep``.

        Raises ``ConfigurationError`` for settings that cannot be tried, ``ChildFailedError`` if one of the runs failed.
        """
        self.check()
        with (
            stopping_on_signals(lambda _reason, _number: False),
            room_beside(self.settings.run.directory, PREFIX, keep=keep) as room,
        ):
            undisturbed = self.short_run(room / "undisturbed")
            report_line(f"1 of 3: {undisturbed.steps} steps without interruption")
            _train(undisturbed)
            every = undisturbed.every
            killed = replace(self.short_run(room / "killed"), kill_after=2 * every)
            if (last := max(steps_of(Path(undisturbed.folder)), default=0)) < 2 * every:
                msg = f"the run ends at step {last} by itself: give it more data, or --steps {max(FEWEST_STEPS, last)}"
                raise ConfigurationError(msg)
            report_line(f"2 of 3: the same, killed (SIGKILL) after step {2 * every}")
            _train(killed)
            report_line(f"3 of 3: the killed run, resumed from checkpoint-{every} by a new process")
            _train(replace(killed, kill_after=None))
            return self.verdict(Path(undisturbed.folder), Path(killed.folder), every)

    def check(self) -> None:
        """Raise ``ConfigurationError`` for settings that cannot be tried."""
        if not isinstance(self.settings.state_store, DiskStateStoreSettings):
            msg = f"state_store.kind is {self.settings.state_store.kind}: checkpoints are compared for disk only"
            raise ConfigurationError(msg)
        if is_launched() or isinstance(self.settings.distributed, TorchDistributedSettings):
            msg = (
                "verify-resume starts its processes itself: leave torchrun away, and set distributed.kind=auto and "
                "distributed.processes"
            )
            raise ConfigurationError(msg)
        budget = self.settings.run.budget.steps
        if budget is not None and budget < FEWEST_STEPS:
            msg = f"run.budget.steps is {budget}, but a comparison needs at least {FEWEST_STEPS} steps: raise it"
            raise ConfigurationError(msg)

    def short_run(self, folder: Path) -> ShortRun:
        """Return the undisturbed run in ``folder``."""
        steps = min(self.steps, self.settings.run.budget.steps or self.steps)
        config = [str(path) for path in self.config]
        return ShortRun(config, list(self.arguments), str(folder), steps, every=max(1, steps // 3))

    def _store(self, folder: Path) -> StateStore:
        chosen = self.settings.state_store.model_copy(update={"archive": None})
        assert isinstance(chosen, DiskStateStoreSettings)  # seen by check
        return disk_store(StoreRequest(chosen, self.settings.run, folder, Inbox(), report_line))

    def _chosen(self, run: Path) -> Mapping[str, str]:
        """Return the precision, and the value that was chosen for each setting that is auto."""
        resolved = {name: entry["value"] for name, entry in read_record(run)["auto"].items()}
        return {"optimizer.precision": self.settings.optimizer.precision, **resolved}

    def verdict(self, undisturbed: Path, killed: Path, every: int) -> Verdict:
        """Return the verdict on two runs, of which the second was killed after step ``2 * every``.

        Raises ``StateError`` if one of them has no checkpoint that verifies.
        """
        steps = steps_of(undisturbed)
        stores = self._store(undisturbed), self._store(killed)
        positions = differing_positions(*(store.list() for store in stores))
        differences = [*positions, *differing_steps(steps, steps_of(killed))]
        first, second = (store.load() for store in stores)
        if first.folder is None or first.info is None or second.folder is None or second.info is None:
            msg = "a run left no checkpoint that verifies: run verify-resume again with --keep and inspect both runs"
            raise StateError(msg)
        return Verdict(
            steps=max(steps),
            killed_after=2 * every,
            saved=every,
            resumed_from=(first_steps(killed) or [0])[-1],
            promises_bits=self.settings.run.deterministic and second.info.contract is Reproducibility.BITWISE,
            conditions={**first.info.conditions, **self._chosen(undisturbed)},
            differences=[found for _, found in sorted(differences, key=lambda found: found[0])],
            state=compare_states(first.folder, second.folder),
        )


def _train(run: ShortRun) -> None:
    """Do ``run`` in a new process, as ``train`` would; raises ``ChildFailedError`` if it fails."""
    code, log = start(run)
    if code and not (run.kill_after is not None and run.killed.exists()):
        sys.stderr.write(log)
        raise ChildFailedError(code)


def start(run: ShortRun) -> tuple[int, str]:
    """Run ``run`` in a new process; return its exit code, as a shell reports it, and its standard error."""
    return run_in_child([sys.executable, "-m", MODULE, run.to_argument()], Path(run.folder).with_name("log"))


_SINGLE, _HALF = 1e-3, 1e-2
_LONGEST = 120


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of `verify-resume`: ``differences`` in the order of the steps, and ``state``, the last checkpoints.

    ``saved`` is the step of the checkpoint that was durable when the run was killed, ``resumed_from`` the step at which
    the new process began. ``promises_bits`` is whether the configuration promises bitwise equality, and not only
    equality up to rounding.
    """

    steps: int
    killed_after: int
    saved: int
    resumed_from: int
    promises_bits: bool
    conditions: Mapping[str, str]
    differences: Sequence[Difference]
    state: StateComparison

    @property
    def word(self) -> str:
        """Return the verdict: bit for bit, within rounding, or different."""
        if self.resumed_from != self.saved:
            return "different"
        if not self.differences and not self.state.num_differing:
            return "bit for bit"
        tolerance = _SINGLE if self.conditions.get("optimizer.precision", "fp32") == "fp32" else _HALF
        is_close = all(is_rounding(difference, tolerance) for difference in self.differences) and self.state.is_alike
        return "within rounding" if is_close else "different"

    @property
    def holds(self) -> bool:
        """Return whether the run resumes as its configuration promises."""
        return self.word == "bit for bit" or (self.word == "within rounding" and not self.promises_bits)

    def to_json(self) -> str:
        """Return the verdict as JSON."""
        first = self.differences[0] if self.differences else self.state.first
        record = {
            "verdict": self.word,
            "holds": self.holds,
            "promises": "bitwise" if self.promises_bits else "numerical",
            "steps": self.steps,
            "killed_after": self.killed_after,
            "saved": self.saved,
            "resumed_from": self.resumed_from,
            "first_difference": _record(first),
            "differences": len(self.differences),
            "tensors": self.state.num_tensors,
            "differing_tensors": self.state.num_differing,
            "first_tensor": _record(self.state.first),
            "largest": _record(self.state.largest),
            "conditions": dict(self.conditions),
        }
        return json.dumps(record, indent=1)

    def lines(self) -> Sequence[str]:
        """Return the verdict as lines for a person."""
        lost = self.killed_after - self.saved
        steps = counted(lost, "step")
        begun = f"killed after step {self.killed_after}, resumed from step {self.resumed_from}, {steps} lost"
        lines = [f"{self.word}: {counted(self.steps, 'step')}, {begun}"]
        if self.resumed_from != self.saved:
            lines.append(f"the resume did not use checkpoint-{self.saved}, which was complete: inspect it with --keep")
        lines += self._differing_lines()
        state = self.state
        if self.word == "bit for bit":
            lines.append(
                f"the same: loss and gradient norm of each step, positions in the data, {state.num_tensors:,} tensors "
                f"and all other files of checkpoint-{self.steps} ({state.num_bytes:,} bytes)"
            )
        elif not self.promises_bits:
            lines.append("the configuration promises equality only up to rounding (contract numerical)")
        conditions = ", ".join(f"{name} {value}" for name, value in self.conditions.items() if value)
        return [*lines, f"conditions: {one_line(conditions)}"]

    def _differing_lines(self) -> Sequence[str]:
        lines = []
        if self.differences:
            first = self.differences[0]
            lines.append(f"first difference: {_line(first)}")
            if first.where in _before(self.saved):
                lines.append("that is before the kill: the same steps give other results here in any process")
        state = self.state
        if state.first is not None:
            lines.append(f"state: {state.num_differing:,} tensors or files differ, the first: {_line(state.first)}")
        if state.largest is not None:
            lines.append(f"largest difference: {state.largest.distance:.3g} in {_line(state.largest)}")
        return lines


def _before(step: int) -> Sequence[str]:
    return [f"step {number}" for number in range(1, step + 1)]


def _line(found: Difference) -> str:
    both = [_value(value) for value in found.values]
    return f"{found.what} of {one_line(found.where)} is {both[0]} undisturbed and {both[1]} resumed"


def _value(value: float | str | None) -> str:
    return "missing" if value is None else one_line(str(value), _LONGEST)


def _record(found: Difference | None) -> Mapping[str, Any] | None:
    if found is None:
        return None
    undisturbed, resumed = (
        repr(value) if isinstance(value, float) and not math.isfinite(value) else value for value in found.values
    )
    return {"what": found.what, "where": found.where, "undisturbed": undisturbed, "resumed": resumed}


_FIGURES = ("tokens", "lr", "loss", "grad_norm")
_ROUNDED = ("loss", "grad_norm")
_TENSORS = ".safetensors"
# these files differ in any case: they record the writer, the place and the time
_OWN = {MANIFEST, COMMIT, RECORD}


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between the two runs: its kind ``what``, the place ``where``, and both values.

    ``values`` has the value of the undisturbed run and that of the resumed run, None if a run has no value.
    """

    what: str
    where: str
    values: Sequence[float | str | None]
    distance: float = math.inf

    @property
    def relative(self) -> float:
        """Return the distance between two figures as a share of the larger one, infinite for other values."""
        first, second = self.values
        if not (isinstance(first, float) and isinstance(second, float)):
            return math.inf
        larger = max(abs(first), abs(second))
        return abs(first - second) / larger if larger else 0.0


def steps_of(run: Path) -> Mapping[int, Mapping[str, Any]]:
    """Return the figures of each step of ``run``."""
    return {record["step"]: record for record in JsonLines(RunLayout(run).metrics).read() if "loss" in record}


def first_steps(run: Path) -> Sequence[int]:
    """Return the step at which each process of ``run`` began."""
    events = JsonLines(RunLayout(run).events).read()
    return [record["step"] for record in events if record["event"] == "RunStarted"]


def differing_steps(
    undisturbed: Mapping[int, Mapping[str, Any]], resumed: Mapping[int, Mapping[str, Any]]
) -> Iterator[tuple[int, Difference]]:
    """Yield each step with a figure that differs, and the difference."""
    for step in sorted({*undisturbed, *resumed}):
        for name in _FIGURES:
            first, second = (losses.get(step, {}).get(name) for losses in (undisturbed, resumed))
            if first != second:
                yield step, Difference(name, f"step {step}", (first, second))


def differing_positions(
    undisturbed: Sequence[CheckpointInfo], resumed: Sequence[CheckpointInfo]
) -> Iterator[tuple[int, Difference]]:
    """Yield each step whose checkpoints have different positions in the data, and the difference."""
    first, second = ({info.progress.step: info.progress for info in infos} for infos in (undisturbed, resumed))
    for step in sorted({*first, *second}):
        if step not in first or step not in second:
            values = ["saved" if step in infos else "missing" for infos in (first, second)]
            yield step, Difference("checkpoint", f"step {step}", values)
            continue
        cursors = first[step].cursor, second[step].cursor
        if cursors[0].samples != cursors[1].samples:
            yield step, Difference("sample", f"step {step}", [str(cursor.samples) for cursor in cursors])
        if cursors[0].lanes != cursors[1].lanes:
            values = [json.dumps(cursor.to_json()["lanes"]) for cursor in cursors]
            yield step, Difference("lanes", f"step {step}", values)


def is_rounding(difference: Difference, tolerance: float) -> bool:
    """Return whether a difference between steps can come from rounding: it is of a figure and within ``tolerance``."""
    return difference.what in _ROUNDED and difference.relative <= tolerance


@dataclass(slots=True)
class StateComparison:
    """The comparison of two checkpoints; ``largest`` is the difference with the largest distance."""

    num_tensors: int = 0
    num_bytes: int = 0
    num_differing: int = 0
    first: Difference | None = None
    largest: Difference | None = None
    is_alike: bool = True

    def add(self, difference: Difference, *, is_alike: bool) -> None:
        """Add a tensor or file that differs; ``is_alike`` if only its numbers differ."""
        self.num_differing += 1
        self.is_alike = self.is_alike and is_alike
        self.first = self.first or difference
        if is_alike and (self.largest is None or difference.distance > self.largest.distance):
            self.largest = difference


def compare_states(undisturbed: Path, resumed: Path) -> StateComparison:
    """Return the comparison of two checkpoints' files: tensor by tensor, and all other files byte by byte."""
    comparison = StateComparison()
    for name in sorted(_files(undisturbed) | _files(resumed)):
        first, second = undisturbed / name, resumed / name
        if not (first.is_file() and second.is_file()):
            values = ["there" if path.is_file() else "missing" for path in (first, second)]
            comparison.add(Difference("file", name, values), is_alike=False)
        elif name.endswith(_TENSORS):
            _compare_tensors(name, first, second, comparison)
        else:
            comparison.num_bytes += first.stat().st_size
            if (difference := _differing_bytes(name, first, second)) is not None:
                comparison.add(difference, is_alike=False)
    return comparison


def _files(folder: Path) -> set[str]:
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return names - _OWN


def _compare_tensors(name: str, first: Path, second: Path, found: StateComparison) -> None:
    from safetensors import safe_open

    with safe_open(first, "pt") as ours, safe_open(second, "pt") as theirs:
        known = set(ours.keys()), set(theirs.keys())
        for key in sorted(known[0] | known[1]):
            found.num_tensors += 1
            where = f"{name} {key}"
            if not (key in known[0] and key in known[1]):
                values = ["there" if key in keys else "missing" for keys in known]
                found.add(Difference("tensor", where, values), is_alike=False)
            else:
                _compare(where, ours.get_tensor(key), theirs.get_tensor(key), found)


def _compare(where: str, first: Tensor, second: Tensor, found: StateComparison) -> None:
    import torch

    found.num_bytes += first.nbytes
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        values = [f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in (first, second)]
        found.add(Difference("tensor", where, values), is_alike=False)
        return
    if torch.equal(*(tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (first, second))):
        return
    numbers = [tensor.reshape(-1).to(torch.float64) for tensor in (first, second)]
    distances = torch.where(numbers[0].isfinite() & numbers[1].isfinite(), (numbers[0] - numbers[1]).abs(), math.inf)
    is_same = (numbers[0] == numbers[1]) | (numbers[0].isnan() & numbers[1].isnan())
    distances = torch.where(is_same, 0.0, distances)
    place = int(distances.argmax())
    index = [int(number) for number in np.unravel_index(place, first.shape)]
    both = [float(tensor[place]) for tensor in numbers]
    distance = float(distances[place])
    found.add(Difference("tensor", f"{where}{index}", both, distance), is_alike=math.isfinite(distance))


def _differing_bytes(name: str, first: Path, second: Path) -> Difference | None:
    ours, theirs = first.read_bytes(), second.read_bytes()
    if ours == theirs:
        return None
    place = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    values = [repr(content[place : place + 20]) for content in (ours, theirs)]
    return Difference("file", f"{name} from byte {place:,} on", values)
