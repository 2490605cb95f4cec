"""Collective operations with gradients, among the ranks of a group that have the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

if TYPE_CHECKING:
    from torch import Tensor


def sum_over(part: Tensor, group: Any) -> Tensor:
    """Return the sum of ``part`` over ranks, which all use alike: the gradient of the sum is that of each part."""
    total: Tensor = _Sum.apply(part, group)  # type: ignore[no-untyped-call]
    return total


def spread(value: Tensor, group: Any) -> Tensor:
    """Return ``value``, which all ranks have, for a different use on each: its gradients are summed over ranks."""
    same: Tensor = _SumOfGradients.apply(value, group)  # type: ignore[no-untyped-call]
    return same


def all_to_all(parts: Tensor, group: Any) -> Tensor:
    """Send ``parts[i]`` to rank ``i``; return what the ranks sent here, by rank. All parts have the same shape."""
    received: Tensor = _AllToAll.apply(parts, group)  # type: ignore[no-untyped-call]
    return received


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Any) -> Tensor:
        del ctx
        total = part.clone()
        distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        del ctx
        return gradients[0], None


class _SumOfGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        summed = gradients[0].clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(summed, group=ctx.group)
        return summed, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _exchange(parts, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _exchange(gradients[0], ctx.group), None


def _exchange(parts: Tensor, group: Any) -> Tensor:
    sent = parts.contiguous()
    received = torch.empty_like(sent)
    distributed.all_to_all_single(received, sent, group=group)
    return received
