"""The evaluation of a learning-rate range test."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHARE_OF_WINDOW = 12  # to each side
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


def evaluate_range_test(rates: Sequence[float], losses: Sequence[float], num_steps: int) -> RangeTestResult | None:
    """Return the result of a test of ``num_steps`` steps from the losses of those so far, in nats; ``rates`` rise.

    None if the loss does not fall in it, or if there are fewer than 8 steps with a finite loss. Steps after the one at
    which the loss has diverged change nothing.
    """
    finite = next((count for count, loss in enumerate(losses) if not math.isfinite(loss)), len(losses))
    is_whole = finite < len(losses) or finite >= num_steps
    smooth = _smoothed(losses[:finite], max(1, num_steps // _SHARE_OF_WINDOW), is_whole=is_whole)
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


def _smoothed(losses: Sequence[float], width: int, *, is_whole: bool) -> list[float]:
    """Return the mean around each of ``losses``, with weights that fall to both sides, so that no curve is shifted.

    Near both ends the window is narrower, unless more losses may follow: then the last ``width`` losses have no mean.
    """
    found = []
    for place in range(len(losses) if is_whole else max(0, len(losses) - width)):
        reach = min(width, place, len(losses) - 1 - place)
        weights = {at: reach + 1 - abs(at - place) for at in range(place - reach, place + reach + 1)}
        found.append(sum(weight * losses[at] for at, weight in weights.items()) / sum(weights.values()))
    return found


def _slope(rates: Sequence[float], losses: Sequence[float], place: int) -> float:
    """Return the change of the loss for a rise of the rate by a factor of e, around ``place``."""
    return (losses[place + 1] - losses[place - 1]) / math.log(rates[place + 1] / rates[place - 1])
