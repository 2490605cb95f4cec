"""The verdict of `verify-resume`."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.verification.comparison import is_rounding
from holdfast.configs.error_messages import one_line
from holdfast.domain.counting import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.bootstrap.verification.comparison import Difference, StateComparison

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
        is_close = all(is_rounding(found, tolerance) for found in self.differences) and self.state.is_alike
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
