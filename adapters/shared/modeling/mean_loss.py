"""The mean loss of a network on batches, in the precision of its weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from holdfast.adapters.shared.modeling.document_isolation import as_evaluated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
    from holdfast.domain.data.batch import Batch


def mean_loss(
    model: CausalLanguageModel, batches: Sequence[Batch], *, passed: Callable[[int], object] = lambda _: None
) -> float:
    """Return the mean loss of the targets in ``batches``, in nats per token, without dropout and without autocast.

    The model must be on the CPU, and the batches must have a target. ``passed`` gets the number of targets of each
    batch after it.
    """
    nats = []
    with as_evaluated(model):
        for batch in batches:
            arrays = batch.input_ids, batch.position_ids, batch.loss_mask
            nats.append(float(model(*map(torch.from_numpy, arrays))))
            passed(batch.num_targets)
    return math.fsum(nats) / sum(batch.num_targets for batch in batches)
