"""Direct preference optimization (DPO): its settings, and the figures of pairs of replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

ROUNDING = 1e-5
"""A margin is a tie up to this share of the log-probabilities of its pair: sums in fp32 differ by as much."""


@dataclass(frozen=True, slots=True)
class PreferenceRule:
    """The loss of a pair, as a function of how much more the model prefers its first reply than the reference does.

    With a margin m, in nats, the loss is -log sigmoid(``beta`` m) (Rafailov et al., arXiv 2305.18290). A
    ``label_smoothing`` above 0 is the share of pairs whose labels are taken to be wrong: that share of the loss is
    -log sigmoid(-``beta`` m) (Mitchell, cDPO). Raises ``ConfigurationError`` for impossible values.
    """

    beta: float = 0.1
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not (self.beta > 0 and 0 <= self.label_smoothing < 0.5):
            msg = f"beta is {self.beta} and label_smoothing {self.label_smoothing}: they must be above 0, and 0 to 0.5"
            raise ConfigurationError(msg)

    def losses(self, margins: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the loss of each pair, float64 (pairs,), in nats."""
        scaled = self.beta * margins
        losses: NDArray[np.float64] = (1 - self.label_smoothing) * np.logaddexp(0, -scaled)
        return losses + self.label_smoothing * np.logaddexp(0, scaled)


def pair_figures(
    rule: PreferenceRule, model: NDArray[np.float64], reference: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return four figures of each pair, float64 (4, pairs), from log-probabilities, float64 (2 x pairs,).

    They are its loss, the rewards of the chosen and the rejected reply, and 1 if the first is the higher one, else 0,
    or 0.5 for a tie. A reward is beta times the log-probability that the model adds to that of the reference model.
    Log-probabilities are in the order chosen, rejected, chosen, ...
    """
    chosen, rejected = rule.beta * (model - reference).reshape(-1, 2).T
    margins = chosen - rejected
    tied = np.abs(margins) <= rule.beta * ROUNDING * np.abs(model.reshape(-1, 2).sum(1))
    return np.stack([rule.losses(margins / rule.beta), chosen, rejected, np.where(tied, 0.5, margins > 0)])


def mean_rewards(sums: Sequence[float], pairs: int) -> dict[str, float]:
    """Return the mean figures of ``pairs`` by the names of their metrics, from three sums.

    They are those of the last three figures of ``pair_figures``.
    """
    chosen, rejected, wins = sums
    return {
        "reward_margin": (chosen - rejected) / pairs,
        "reward_accuracy": wins / pairs,
        "reward_chosen": chosen / pairs,
        "reward_rejected": rejected / pairs,
    }
