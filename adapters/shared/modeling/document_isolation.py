"""Probes a model for leaks: a token must see no later token and no other document."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from holdfast.adapters.shared.modeling.attention import packed_arguments
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

_LENGTHS = (11, 5, 17)  # of the documents: not multiples of any block size of a model
# shares of the logits' scale
_SAME = 1e-5  # between rows of one batch
_CLOSE = 1e-4  # between batches of different shapes
_MOST = 0.05  # the largest rounding of a half-precision kernel


def probe_isolation(network: nn.Module, *, length: int, vocabulary: int) -> bool:
    """Return whether ``network`` gives each document of a packed row the logits that it has in a row of its own.

    ``length`` (at least 6) is the longest row that it takes, ``vocabulary`` the number of its ids. It runs two batches
    of at most 85 tokens on the network's device, in evaluation mode, within the caller's autocast, and does not change
    gradients and random state, so it may be called again on another device or with another kernel. Two rows are packed,
    as a kernel may separate documents in one row and not in several. Raises ``ConfigurationError`` if a token's logits
    depend on a later one, or are no finite numbers.
    """
    documents = _documents(length, vocabulary)
    with as_evaluated(network):
        alone, again, altered = _lone_logits(network, documents, vocabulary)
        if _differ(altered, alone[-1][: len(altered)], rounding=_largest(again - alone[-1]), least=_SAME):
            _refuse_non_finite(network, alone[-1])
            msg = (
                f"{type(network).__name__} is not causal: its tokens see later ones, so it cannot learn to predict them"
            )
            raise ConfigurationError(msg)
        packed = _packed_logits(network, documents)
    # no document precedes the first of a row: a difference there is rounding
    rounding = _largest(packed[0][0] - alone[0])
    pairs = [pair for row in packed for pair in zip(row, alone, strict=True)]
    return not any(_differ(here, there, rounding=rounding, least=_CLOSE) for here, there in pairs)


def raise_mixed_rows(network: nn.Module, sequence_length: int) -> None:
    """Raise ``ConfigurationError``: the model cannot separate the documents that the settings pack into rows."""
    msg = (
        f"{type(network).__name__} mixes the documents of a packed row: set data.packing.kind=sliding and "
        f"data.packing.stride={sequence_length}, which give each document rows of its own"
    )
    raise ConfigurationError(msg)


@contextmanager
def as_evaluated(network: nn.Module) -> Iterator[None]:
    """Put ``network`` in evaluation mode without gradients within the block; restore mode and random states."""
    was_training = [module for module in network.modules() if module.training]
    device = next(network.parameters()).device
    network.eval()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad():
            yield
    finally:
        for module in was_training:
            module.training = True


def random_tokens(count: int, vocabulary: int) -> Tensor:
    """Return ``count`` ids below ``vocabulary``, int64, always the same ones."""
    return torch.randint(0, vocabulary, (count,), generator=torch.Generator().manual_seed(0))


def _refuse_non_finite(network: nn.Module, logits: Tensor) -> None:
    """Raise ``ConfigurationError`` that names the first tensor with NaN or infinity if ``logits`` are not finite."""
    if bool(torch.isfinite(logits).all()):
        return
    tensors = (*network.named_parameters(), *network.named_buffers())
    not_finite = (name for name, tensor in tensors if tensor.is_floating_point() and not torch.isfinite(tensor).all())
    cause = "" if (name := next(not_finite, None)) is None else f", as {name} holds NaN or infinity"
    msg = (
        f"the logits of {type(network).__name__} are no finite numbers before any step{cause}: take other weights, or "
        "a precision in which they do not overflow (optimizer.precision=fp32)"
    )
    raise ConfigurationError(msg)


def _documents(length: int, vocabulary: int) -> list[Tensor]:
    lengths = list(_LENGTHS)
    if sum(lengths) > length:
        lengths = [length // 3, 1, length - length // 3 - 1]
    return list(torch.split(random_tokens(sum(lengths), vocabulary), lengths))


def _packed_logits(network: nn.Module, documents: list[Tensor]) -> list[list[Tensor]]:
    orders = ([0, 1, 2], [2, 0, 1])
    rows = [[documents[place] for place in order] for order in orders]
    positions = [[torch.arange(len(each)) for each in row] for row in rows]
    logits = _logits(network, _join(rows), _join(positions))
    in_order: list[list[Tensor]] = []
    for order, of_row in zip(orders, logits, strict=True):
        parts = torch.split(of_row, [len(documents[place]) for place in order])
        in_order.append([parts[order.index(place)] for place in range(len(documents))])
    return in_order


def _lone_logits(network: nn.Module, documents: list[Tensor], vocabulary: int) -> tuple[list[Tensor], Tensor, Tensor]:
    last = documents[-1]
    kept = len(last) // 2
    altered = torch.where(torch.arange(len(last)) < kept, last, (last + 1) % vocabulary)
    rows = [*documents, last, altered]
    longest = max(map(len, rows))
    # the tokens after a document change nothing in a causal model, and do in another
    padded = torch.stack([torch.cat([row, row.new_full((longest - len(row),), int(row[0]))]) for row in rows])
    logits = _logits(network, padded, torch.arange(longest).expand(len(rows), -1))
    *alone, again, altered = (of_row[: len(row)] for of_row, row in zip(logits, rows, strict=True))
    return alone, again, altered[:kept]


def _largest(difference: Tensor) -> float:
    return float(difference.abs().max())


def _differ(here: Tensor, there: Tensor, *, rounding: float, least: float) -> bool:
    scale = _largest(there)
    return not _largest(here - there) <= min(max(least * scale, 10 * rounding), _MOST * scale)


def _join(rows: list[list[Tensor]]) -> Tensor:
    return torch.stack([torch.cat(row) for row in rows])


def _logits(network: nn.Module, input_ids: Tensor, position_ids: Tensor) -> Tensor:
    device = next(network.parameters()).device
    arguments: dict[str, Any] = packed_arguments(network, position_ids.to(device))
    logits: Tensor = network(input_ids=input_ids.to(device), **arguments).logits
    return logits.float().cpu()
