"""Cross-entropy of a linear head that never holds all logits."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from torch.utils._triton import has_triton
from torch.utils.checkpoint import checkpoint

from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.memory_estimate import FEWEST_ROWS, LOGITS_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from torch import Tensor

    _LossesOf: TypeAlias = Callable[[Tensor, Tensor | None, Tensor, bool], tuple[Tensor, Tensor]]

_CHUNKS_OF_MEMORY = 160
IGNORED = -100  # the label of ignored tokens, as in ``torch.nn.functional.cross_entropy``


def rows_at_once(vocabulary: int, device: str = "cpu") -> int:
    """Return the number of tokens in a chunk of logits on ``device``, at least 64.

    Their fp32 logits take 64 MiB; where one kernel computes their loss (bf16 on a GPU), their logits take a 160th of
    the memory of the GPU (512 MiB of 80 GiB). Each chunk reads and writes the whole gradient of the head, which costs
    the more, the fewer tokens share it.
    """
    if _is_fused(device, _computed_dtype(device)):
        memory = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        return max(FEWEST_ROWS, memory // (_CHUNKS_OF_MEMORY * 2 * vocabulary))
    return max(FEWEST_ROWS, LOGITS_BYTES // (4 * vocabulary))


def chunked_cross_entropy(
    hidden: Tensor,
    head_weight: Tensor,
    head_bias: Tensor | None,
    labels: Tensor,
    *,
    rows_at_once: int,
    places: Tensor | None = None,
    each: Tensor | None = None,
) -> Tensor:
    """Return the summed cross-entropy in nats, fp32, of ``hidden @ head_weight.T + head_bias``, a chunk at a time.

    ``hidden`` is (tokens, width), ``head_weight`` (vocabulary, width), ``labels`` int64 (tokens,), -100 for ignored
    tokens, which add nothing to the loss. The gradients are computed in the forward, while a chunk's logits exist, and
    scaled in the backward (fused linear cross-entropy of Liger: Hsu et al., arXiv 2410.10989), so only one backward
    through a graph is possible. Products are computed in autocast's dtype where autocast is on, the softmax and the sum
    of the weight's gradient in fp32. ``places``, if given, are the places of the labels that are not ignored, int64, in
    increasing order; a GPU would have to be waited for to find them. Without gradients the loss of each label that is
    not ignored is also written to ``each``, fp32 (tokens,) or shorter, if it is given.
    """
    if places is None:
        places = torch.nonzero(labels != IGNORED)[:, 0]
    arguments = (hidden, head_weight, head_bias, labels, places)
    if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in arguments[:3]):
        loss: Tensor = _ChunkedCrossEntropy.apply(*arguments, rows_at_once)  # type: ignore[no-untyped-call]
        return loss
    return _sum_losses(*arguments, rows_at_once, _Gradients(hidden, head_weight, head_bias, (False,) * 3), each)


def chunked_rows(
    loss: Callable[[Tensor, Tensor], Tensor],
    hidden: Tensor,
    head: Callable[[Tensor], Tensor],
    labels: Tensor,
    *,
    rows_at_once: int,
) -> Tensor:
    """Return the sum of ``loss(head(hidden), labels)`` over chunks of tokens, holding one chunk's logits.

    For custom losses, whose gradient is unknown: each chunk's logits are recomputed in the backward, which costs
    another product with the head. ``loss`` takes fp32 logits (tokens, vocabulary) and labels int64 (tokens,), and
    returns the sum of independent losses of the tokens.
    """

    def summed(part: Tensor, targets: Tensor) -> Tensor:
        return loss(head(part).float(), targets)

    parts = zip(torch.split(hidden, rows_at_once), torch.split(labels, rows_at_once), strict=True)
    sums = [checkpoint(summed, part, targets, use_reentrant=False) for part, targets in parts]
    total: Tensor = torch.stack(sums).sum()
    return total


def liger_cross_entropy(hidden: Tensor, head_weight: Tensor, head_bias: Tensor | None, labels: Tensor) -> Tensor:
    """Return the loss of ``chunked_cross_entropy``, by the Triton kernels of the package liger-kernel, on CUDA.

    Shapes and dtypes are those of ``chunked_cross_entropy``. Only ``model.loss=liger`` chooses it: it computes the same
    within the rounding of bf16, and is only a little faster. Raises ``ConfigurationError`` if the package is not
    installed.
    """
    try:
        liger = import_module("liger_kernel.transformers")
    except ImportError as error:
        msg = "model.loss is liger, but the package liger-kernel is not installed: install it, or use auto"
        raise ConfigurationError(msg) from error
    fused = liger.LigerFusedLinearCrossEntropyLoss(ignore_index=IGNORED, reduction="sum")
    loss: Tensor = fused(head_weight, hidden, labels, head_bias)
    return loss


class _Gradients:
    """Gradients of hidden, weight and bias that grow chunk by chunk; None for those that are not needed."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, wanted: tuple[bool, ...]) -> None:
        self.hidden = torch.zeros_like(hidden) if wanted[0] else None
        self.weight = torch.zeros_like(weight, dtype=torch.float32) if wanted[1] else None
        self.bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and wanted[2] else None
        self.any = any(wanted)

    def add(self, rows: Tensor, logits: Tensor, hidden: Tensor, weight: Tensor) -> None:
        """Add the gradients of the chunk ``rows``, from the gradient of its ``logits``."""
        if self.bias is not None:
            self.bias += logits.sum(0, dtype=torch.float32)
        of_products = logits.to(weight.dtype)
        if self.hidden is not None:
            self.hidden[rows] = (of_products @ weight).to(self.hidden.dtype)
        if self.weight is None:
            return
        if weight.dtype == torch.float32:
            self.weight.addmm_(of_products.T, hidden)
        elif weight.is_cuda:  # the product is added within the kernel, before it is rounded
            torch.addmm(self.weight, of_products.T, hidden, out_dtype=torch.float32, out=self.weight)
        else:
            self.weight += of_products.T @ hidden


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        places: Tensor,
        rows_at_once: int,
    ) -> Tensor:
        gradients = _Gradients(hidden, weight, bias, ctx.needs_input_grad[:3])
        loss = _sum_losses(hidden, weight, bias, labels, places, rows_at_once, gradients)
        of_bias = None if gradients.bias is None or bias is None else gradients.bias.to(bias.dtype)
        of_weight = None if gradients.weight is None else gradients.weight.to(weight.dtype)
        ctx.gradients = [gradients.hidden, of_weight, of_bias]
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            msg = "the chunked loss supports one backward only: compute the loss again"
            raise RuntimeError(msg)
        # drop these references, so that autograd takes the tensors over without a copy
        gradients, ctx.gradients = ctx.gradients, None
        return (*(None if each is None else each.mul_(scale) for each in gradients), None, None, None)


def _sum_losses(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    places: Tensor,
    rows_at_once: int,
    gradients: _Gradients,
    each: Tensor | None = None,
) -> Tensor:
    kind = hidden.device.type
    dtype = _computed_dtype(kind) or weight.dtype
    with torch.autocast(kind, enabled=False):
        weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        # the loss is scaled only later, and until then fp16 would round small gradients to zero
        exact = weight.float() if gradients.any and dtype == torch.float16 else weight
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        losses_of = _fused(weight) or _plain(weight, min(rows_at_once, len(places)))
        for rows in torch.split(places, rows_at_once):
            part = hidden[rows].to(dtype)
            losses, of_logits = losses_of(part, bias, labels[rows], gradients.any)
            total += losses.sum()
            if each is not None:
                each[rows] = losses
            if gradients.any:
                gradients.add(rows, of_logits, part.to(exact.dtype), exact)
    return total


def _computed_dtype(device: str) -> torch.dtype | None:
    """Return autocast's dtype, None if it is off."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def _is_fused(device: str, dtype: torch.dtype | None) -> bool:
    return device == "cuda" and dtype == torch.bfloat16 and has_triton()


def _fused(weight: Tensor) -> _LossesOf | None:
    """Return the way of a GPU in bf16: one kernel, which writes the gradient over the logits; elsewhere None."""
    if not _is_fused(weight.device.type, weight.dtype):
        return None
    from holdfast.adapters.shared.modeling.cross_entropy_kernel import cross_entropy_in_place

    def losses_of(part: Tensor, bias: Tensor | None, targets: Tensor, differentiates: bool) -> tuple[Tensor, Tensor]:  # noqa: FBT001
        logits = linear(part, weight, bias)
        return cross_entropy_in_place(logits, targets, with_gradient=differentiates), logits

    return losses_of


def _plain(weight: Tensor, rows: int) -> _LossesOf:
    """Return the way that works everywhere, for chunks of at most ``rows`` tokens."""
    # reused for all chunks: host memory of this size would be mapped and cleared for each one
    scratch = weight.new_empty(2, rows, len(weight), dtype=torch.float32)

    def losses_of(part: Tensor, bias: Tensor | None, targets: Tensor, differentiates: bool) -> tuple[Tensor, Tensor]:  # noqa: FBT001
        logits, log_probabilities = scratch[:, : len(part)]
        _multiply(part, weight, bias, out=logits)
        torch.log_softmax(logits, dim=-1, out=log_probabilities)
        chosen = log_probabilities.gather(1, targets[:, None])
        if differentiates:
            of_logits = torch.exp(log_probabilities, out=logits)
            of_logits.scatter_add_(1, targets[:, None], of_logits.new_full(chosen.shape, -1.0))
        return -chosen[:, 0], logits

    return losses_of


def _multiply(part: Tensor, weight: Tensor, bias: Tensor | None, *, out: Tensor) -> None:
    if weight.dtype != out.dtype:
        out.copy_(linear(part, weight, bias))
        return
    torch.mm(part, weight.T, out=out)
    if bias is not None:
        out += bias
