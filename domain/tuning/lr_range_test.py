"""The evaluation of a learning-rate range test."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Sequence

_SMOOTHING = 0.9
_FEWEST = 8
_DIVERGED = 1.25
_LEAST_FALL = 1e-3


@final
@dataclass(frozen=True, slots=True)
class RangeTestResult:
    """The result of a range test: the learning rates, and the smoothed losses as far as they are finite.

    ``suggestion`` is the rate at which the smoothed loss falls fastest, as a function of the logarithm of the rate.
    ``lowest`` is the rate of the lowest loss, which is too high for a whole run. ``diverged`` is the rate at which the
    loss had risen by a quarter above its lowest value, None if it never did.
    """

    rates: Sequence[float]
    losses: Sequence[float]
    suggestion: float
    lowest: float
    diverged: float | None


def evaluate_range_test(rates: Sequence[float], losses: Sequence[float]) -> RangeTestResult | None:
    """Return the result of a test with the loss of each step in nats; ``rates`` rise.

    None if the loss does not fall in it, or if there are fewer than 8 steps with a finite loss.
    """
    finite = next((count for count, loss in enumerate(losses) if not math.isfinite(loss)), len(losses))
    smooth = _smoothed(losses[:finite])
    end, lowest = len(smooth), 0
    for place, loss in enumerate(smooth):
        lowest = place if loss < smooth[lowest] else lowest
        if loss > smooth[lowest] * _DIVERGED:
            end = place
            break
    if end < _FEWEST or smooth[lowest] > smooth[0] - _LEAST_FALL * abs(smooth[0]):
        return None
    slopes = {place: _slope(rates, smooth, place) for place in range(1, lowest + 1) if place + 1 < len(smooth)}
    steepest = min(slopes, key=lambda place: slopes[place], default=0)
    if not slopes or slopes[steepest] >= 0:
        return None
    diverged = rates[min(end, len(rates) - 1)] if end < len(smooth) or finite < len(losses) else None
    return RangeTestResult(rates[:end], smooth[:end], rates[steepest], rates[lowest], diverged)


def _smoothed(losses: Sequence[float]) -> list[float]:
    """Return the exponential moving average of ``losses``, corrected for its begin."""
    found, mean = [], 0.0
    for count, loss in enumerate(losses, 1):
        mean = _SMOOTHING * mean + (1 - _SMOOTHING) * loss
        found.append(mean / (1 - _SMOOTHING**count))
    return found


def _slope(rates: Sequence[float], losses: Sequence[float], place: int) -> float:
    """Return the change of the loss for a rise of the rate by a factor of e, around ``place``."""
    return (losses[place + 1] - losses[place - 1]) / math.log(rates[place + 1] / rates[place - 1])
