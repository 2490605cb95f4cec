"""Compares two runs that should be equal."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.adapters.state_store.manifest import COMMIT, MANIFEST
from holdfast.bootstrap.run_folder.layout import RECORD, RunLayout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from holdfast.ports.state_store import CheckpointInfo

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
            first, second = (found.get(step, {}).get(name) for found in (undisturbed, resumed))
            if first != second:
                yield step, Difference(name, f"step {step}", (first, second))


def differing_positions(
    undisturbed: Sequence[CheckpointInfo], resumed: Sequence[CheckpointInfo]
) -> Iterator[tuple[int, Difference]]:
    """Yield each step whose checkpoints have different positions in the data, and the difference."""
    first, second = ({info.progress.step: info.progress for info in found} for found in (undisturbed, resumed))
    for step in sorted({*first, *second}):
        if step not in first or step not in second:
            values = ["saved" if step in found else "missing" for found in (first, second)]
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
    found = StateComparison()
    for name in sorted(_files(undisturbed) | _files(resumed)):
        first, second = undisturbed / name, resumed / name
        if not (first.is_file() and second.is_file()):
            values = ["there" if path.is_file() else "missing" for path in (first, second)]
            found.add(Difference("file", name, values), is_alike=False)
        elif name.endswith(_TENSORS):
            _compare_tensors(name, first, second, found)
        else:
            found.num_bytes += first.stat().st_size
            if (difference := _differing_bytes(name, first, second)) is not None:
                found.add(difference, is_alike=False)
    return found


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
