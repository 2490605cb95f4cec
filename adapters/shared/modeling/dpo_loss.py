"""The loss of direct preference optimization (DPO) on packed pairs, from hidden states, and its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy, logsigmoid
from torch.utils.checkpoint import checkpoint

from holdfast.adapters.shared.modeling.losses import rows_at_once
from holdfast.adapters.shared.network.ranks import world_size
from holdfast.domain.training.preference_loss import ROUNDING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from holdfast.domain.training.preference_loss import PreferenceRule


@final
class DpoLoss:
    """Computes the loss of ``rule`` for the pairs of a batch, and sums up the figures of an update.

    The log-probability of a reply is the sum over its tokens. A batch without reference log-probabilities has no pairs,
    but takes the time and the memory of one with as many targets.
    """

    def __init__(self, rule: PreferenceRule) -> None:
        self._rule = rule
        self._sums: Tensor | None = None

    def forget(self) -> None:
        """Begin to count for a new update."""
        self._sums = None

    def summed(self, losses: Tensor, pieces: Tensor | None, reference_margins: Tensor | None) -> Tensor:
        """Return the summed loss of the pairs in nats, an fp32 scalar.

        ``losses`` are those of the targets, fp32 (targets,), ``pieces`` the numbers of their pieces, int64 (targets,),
        and ``reference_margins`` the preference of the reference model for each pair's first piece, fp32 (pairs,).
        Without them the loss is 0, with the graph of ``losses``.
        """
        if reference_margins is None or pieces is None:
            self._count(losses.new_zeros(0), losses.new_zeros(0).bool())
            return losses.sum() * 0.0
        by_piece = losses.new_zeros(2 * len(reference_margins)).index_add(0, pieces, -losses)
        model_margins = by_piece[0::2] - by_piece[1::2]
        margins = model_margins - reference_margins
        scaled = self._rule.beta * margins
        smoothing = self._rule.label_smoothing
        each = -(1 - smoothing) * logsigmoid(scaled) - smoothing * logsigmoid(-scaled)
        tied = margins.abs() <= ROUNDING * (by_piece[0::2] + by_piece[1::2]).abs()
        self._count(scaled.detach(), tied)
        return each.sum()

    def figures(self) -> Mapping[str, Tensor]:
        """Return the mean reward margin of the update's pairs on all ranks, and the share of pairs with one above 0.

        Ties count as half. They are scalars on the device; collective. Empty if nothing was counted.
        """
        if (sums := self._sums) is None:
            return {}
        if world_size() > 1:
            sums = sums.clone()
            distributed.all_reduce(sums)
        pairs = sums[0].clamp(min=1)
        return {"reward_margin": sums[1] / pairs, "reward_accuracy": sums[2] / pairs}

    def _count(self, margins: Tensor, tied: Tensor) -> None:
        wins = torch.where(tied, 0.5, (margins > 0).float()).sum()
        sums = torch.stack([margins.new_full((), len(margins)), margins.sum(), wins])
        self._sums = sums if self._sums is None else self._sums + sums


def disable_dropout(network: nn.Module) -> bool:
    """Let ``network`` drop nothing in training, whatever its configuration says; return whether it would have.

    Modules hold the probabilities of dropout as ``p`` or under names of their own, such as ``attention_dropout``.
    """
    has_any = False
    for module in network.modules():
        for name, value in list(vars(module).items()):
            is_share = "drop" in name or (name == "p" and "Dropout" in type(module).__name__)
            if is_share and isinstance(value, float) and value > 0:
                setattr(module, name, 0.0)
                has_any = True
    return has_any


def target_losses(hidden: Tensor, head: Callable[[Tensor], Tensor], labels: Tensor, *, vocabulary: int) -> Tensor:
    """Return the cross-entropy of each label, fp32 (targets,), holding the logits of one chunk of targets.

    ``hidden`` is (targets, width) and ``labels`` int64 (targets,). A chunk's logits are computed again in the backward.
    """

    def of_chunk(part: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(head(part).float(), targets, reduction="none")

    at_once = rows_at_once(vocabulary)
    parts = zip(torch.split(hidden, at_once), torch.split(labels, at_once), strict=True)
    return torch.cat([checkpoint(of_chunk, part, targets, use_reentrant=False) for part, targets in parts])
