"""The cross-entropy of logits on a GPU, and their gradient in their own place, by one Triton kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
from triton import language as tl

if TYPE_CHECKING:
    from torch import Tensor

_MOST_columns = 8192  # at once; a row with more is read in several parts


def cross_entropy_in_place(logits: Tensor, targets: Tensor, *, with_gradient: bool) -> Tensor:
    """Return the losses in nats, fp32 (tokens,), of ``logits`` (tokens, vocabulary), which their gradient replaces.

    ``logits`` are contiguous and on a GPU, in any float format; ``targets`` are int64 (tokens,). Sums are computed in
    fp32. Without ``with_gradient`` the logits stay. The result is the same in each run.
    """
    tokens, vocabulary = logits.shape
    losses = torch.empty(tokens, dtype=torch.float32, device=logits.device)
    columns = min(_MOST_columns, triton.next_power_of_2(vocabulary))
    with torch.cuda.device(logits.device):
        _kernel[(tokens,)](
            logits,
            targets,
            losses,
            vocabulary,
            logits.stride(0),
            with_gradient=with_gradient,
            columns=columns,
            num_warps=16 if columns >= 4096 else 4,
        )
    return losses


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    logits,  # noqa: ANN001  Triton makes pointers of tensors
    targets,  # noqa: ANN001
    losses,  # noqa: ANN001
    vocabulary,  # noqa: ANN001
    stride,  # noqa: ANN001
    with_gradient: tl.constexpr,
    columns: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)  # 64 bits: a chunk may hold more than 2**31 logits
    row = logits + token * stride
    target = tl.load(targets + token)
    of_target = tl.load(row + target).to(tl.float32)
    # each lane keeps the largest logit and the sum of its own columns; they are joined once, after the last part
    largest = tl.full((columns,), float("-inf"), tl.float32)
    total = tl.zeros((columns,), tl.float32)
    for begin in range(0, vocabulary, columns):
        places = begin + tl.arange(0, columns)
        part = tl.load(row + places, mask=places < vocabulary, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(largest, part)
        # a lane without a finite logit so far: exp(-inf - -inf) would be NaN
        kept = tl.where(largest == float("-inf"), 0.0, total * tl.exp(largest - larger))
        total = kept + tl.where(part == float("-inf"), 0.0, tl.exp(part - larger))
        largest = larger
    most = tl.max(largest, axis=0)
    summed = tl.sum(tl.where(largest == float("-inf"), 0.0, total * tl.exp(largest - most)), axis=0)
    logarithm = most + tl.log(summed)
    tl.store(losses + token, logarithm - of_target)
    if with_gradient:
        for begin in range(0, vocabulary, columns):
            places = begin + tl.arange(0, columns)
            part = tl.load(row + places, mask=places < vocabulary, other=float("-inf")).to(tl.float32)
            gradient = tl.exp(part - logarithm) - tl.where(places == target, 1.0, 0.0)
            tl.store(row + places, gradient.to(logits.dtype.element_ty), mask=places < vocabulary)
