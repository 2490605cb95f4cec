"""Compares a loss that never holds all logits with the plain one: its value and its gradients, on real tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import distributed
from torch.nn.functional import cross_entropy

from holdfast.adapters.shared.modeling.losses import IGNORED, rows_at_once
from holdfast.adapters.shared.network.ranks import world_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    OwnLoss = Callable[[Tensor, Tensor], Tensor]

_EXACT = (1e-4, 1e-3)
_ROUNDED = (2e-3, 2e-2)  # of bf16 and fp16, which round products to 8 and 11 bits


@dataclass(frozen=True, slots=True)
class LossDifference:
    """The differences of the loss and of its gradients from the plain ones, as shares of these."""

    loss: float
    gradient: float


@dataclass(frozen=True, slots=True)
class LossTolerance:
    """The largest differences that rounding explains."""

    loss: float
    gradient: float

    @classmethod
    def of(cls, precision: str) -> LossTolerance:
        """Return the tolerance in the precision of training, such as fp32 or bf16."""
        return cls(*(_EXACT if precision == "fp32" else _ROUNDED))

    def allows(self, difference: LossDifference) -> bool:
        """Return whether ``difference`` is within the tolerance; NaN is not."""
        return difference.loss <= self.loss and difference.gradient <= self.gradient


@final
class LossProbe:
    """Compares the loss of a model once, within its forward.

    ``judge`` gets the largest difference of all ranks; it is called on all ranks or on none, and may raise an error. At
    most three chunks of tokens are compared, so that the plain logits take little memory. The gradients are those of
    the hidden states and of the head, unless it is frozen. Nothing is added to the gradients of parameters.
    """

    def __init__(self, judge: Callable[[LossDifference], object]) -> None:
        self._judge = judge

    def compare(
        self,
        fused: Callable[[Tensor, Tensor], Tensor],
        hidden: Tensor,
        head: Any,
        labels: Tensor,
        own_loss: OwnLoss | None,
    ) -> None:
        """Compare ``fused`` with the plain loss for ``hidden`` (tokens, width) and ``labels`` (tokens,); collective."""
        worst = hidden.new_zeros(3, dtype=torch.float32)  # whether anything was compared, and the differences
        targets = torch.nonzero(labels != IGNORED)[:, 0]
        if len(targets):
            part = slice(int(targets[0]), int(targets[0]) + 2 * rows_at_once(head.out_features) + 1)
            difference = _difference(fused, hidden[part], head, labels[part], own_loss)
            worst = worst.new_tensor([1.0, difference.loss, difference.gradient]).nan_to_num(nan=math.inf)
        if world_size() > 1:
            distributed.all_reduce(worst, op=distributed.ReduceOp.MAX)
        compared, loss, gradient = worst.tolist()
        if compared:
            self._judge(LossDifference(loss, gradient))


def _difference(
    fused: Callable[[Tensor, Tensor], Tensor], hidden: Tensor, head: Any, labels: Tensor, own_loss: OwnLoss | None
) -> LossDifference:
    with torch.enable_grad():
        leaf = hidden.detach().requires_grad_()
        inputs = [leaf, *(parameter for parameter in head.parameters() if parameter.requires_grad)]
        fused_loss = fused(leaf, labels)
        gradients = torch.autograd.grad(fused_loss, inputs)
        plain_loss = _plain(leaf, head, labels, own_loss)
        expected = torch.autograd.grad(plain_loss, inputs)
    return LossDifference(_share(fused_loss.detach(), plain_loss.detach()), max(map(_share, gradients, expected)))


def _plain(hidden: Tensor, head: Any, labels: Tensor, own_loss: OwnLoss | None) -> Tensor:
    kind = hidden.device.type
    # the head may have been cast, and cached, without a gradient
    with torch.autocast(
        kind, torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind), cache_enabled=False
    ):
        logits = head(hidden).float()
    if own_loss is not None:
        return own_loss(logits, labels)
    return cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")


def _share(found: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference as a share of the norm of ``expected``."""
    difference = (found.double() - expected.double()).norm()
    return float(difference / expected.double().norm().clamp(min=1e-30))
