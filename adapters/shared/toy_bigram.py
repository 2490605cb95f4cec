"""A bigram language model in numpy, small enough to read: built and trained by the in-memory adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from holdfast.domain.data.batch import Batch


@dataclass(slots=True)
class BigramModel:
    """Predicts a token only from the one before it; ``logits`` are float64 (vocabulary, vocabulary)."""

    logits: NDArray[np.float64]

    def loss(self, batch: Batch) -> tuple[float, NDArray[np.float64]]:
        """Return the summed loss of the batch's targets in nats, and its gradient in the shape of ``logits``."""
        rows, columns = np.nonzero(batch.loss_mask)
        before, targets = batch.input_ids[rows, columns - 1], batch.input_ids[rows, columns]
        logits = self.logits[before]
        logits = logits - logits.max(axis=1, keepdims=True)
        log_probabilities = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        picked = np.arange(len(targets))
        loss = -float(log_probabilities[picked, targets].sum())
        slope = np.exp(log_probabilities)
        slope[picked, targets] -= 1.0
        gradient = np.zeros_like(self.logits)
        np.add.at(gradient, before, slope)
        return loss, gradient
