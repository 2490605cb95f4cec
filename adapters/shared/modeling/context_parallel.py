"""Context parallelism: the tokens of a row shared by the ranks of a group, with the documents of a row kept apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch
from torch import distributed
from torch.nn.functional import pad

from holdfast.adapters.shared.modeling.attention import CONTEXT_PARALLEL, register_attention, varlen_attention
from holdfast.adapters.shared.modeling.collectives import all_to_all, sum_over
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

_HEADS = ("num_attention_heads", "num_key_value_heads")


@final
class ContextParallelism:
    """Divides the tokens of each row among the ranks of ``group``, which have the same rows (Ulysses).

    Between the layers a rank has consecutive tokens of all heads; in attention it has all tokens of some heads, so that
    a kernel for packed documents separates them as usual (Jacobs et al., arXiv 2309.14509). ``tensor`` ranks share the
    heads already. Raises ``ConfigurationError`` if the heads cannot be divided.
    """

    def __init__(self, network: Any, group: Any, *, tensor: int) -> None:
        self._group = group
        self._size = distributed.get_world_size(group)
        self._rank = distributed.get_rank(group)
        self._documents: tuple[Tensor, int] | None = None
        _check_divisible(network.config, self._size, tensor)
        if hasattr(network, "divide_rows"):
            network.divide_rows(self)
            return
        register_attention(CONTEXT_PARALLEL, _OfHuggingFace(self))
        network.set_attn_implementation(CONTEXT_PARALLEL)

    def padded(self, values: Tensor, padding: int) -> Tensor:
        """Return ``values`` (rows, length) with so many of ``padding`` at the end of a row that ranks can divide it."""
        return pad(values, (0, -values.shape[1] % self._size), value=padding)

    def own_arguments(self, arguments: Mapping[str, Any], position_ids: Tensor, ends: Tensor) -> dict[str, Any]:
        """Return the ``arguments`` of a network for this rank's tokens of rows with ``position_ids`` (rows, length).

        ``ends`` are those of the documents in the flattened whole rows, int32, with a first 0.
        """
        self._documents = ends, position_ids.shape[1]
        return {**arguments, "position_ids": self.own_tokens(position_ids)}

    def own_tokens(self, values: Tensor) -> Tensor:
        """Return the part of ``values`` (rows, length), which are padded, at this rank's tokens."""
        return values.chunk(self._size, dim=1)[self._rank].contiguous()

    def whole_rows(self, own: Tensor) -> Tensor:
        """Return the values (rows, length) of all ranks' tokens, of which this rank has ``own``, without a gradient."""
        parts = [torch.empty_like(own) for _ in range(self._size)]
        distributed.all_gather(parts, own, group=self._group)
        return torch.cat(parts, dim=1)

    def total(self, part: Tensor) -> Tensor:
        """Return the sum of each rank's ``part``; its gradient is that of the sum."""
        return sum_over(part, self._group)

    def to_heads(self, tokens: Tensor) -> Tensor:
        """Return (rows, heads / ranks, length, width) from (rows, heads, length / ranks, width)."""
        parts: Tensor = tokens.unflatten(1, (self._size, -1))  # type: ignore[no-untyped-call]
        parts = parts.movedim(1, 0)
        return all_to_all(parts, self._group).movedim(0, 2).flatten(2, 3)

    def to_tokens(self, heads: Tensor) -> Tensor:
        """Return (rows, heads, length / ranks, width) from (rows, heads / ranks, length, width)."""
        parts: Tensor = heads.unflatten(2, (self._size, -1))  # type: ignore[no-untyped-call]
        parts = parts.movedim(2, 0)
        return all_to_all(parts, self._group).movedim(0, 1).flatten(1, 2)

    @property
    def documents(self) -> tuple[Tensor, int]:
        """Return the ends of the documents in the whole rows, and the length of a row."""
        assert self._documents is not None, "a forward pass begins with own_arguments"
        return self._documents


@final
class _OfHuggingFace:
    """An attention function in the sense of transformers, for rows that are divided."""

    mask = "lengths"

    def __init__(self, context: ContextParallelism) -> None:
        self._context = context

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, None]:
        if options.get("cu_seq_lens_q") is None:  # generating: each rank has all tokens
            return varlen_attention(module, query, key, value, attention_mask, **options)
        query, key, value = (self._context.to_heads(each) for each in (query, key, value))
        found, _ = varlen_attention(module, query, key, value, attention_mask, **options)
        return self._context.to_tokens(found.transpose(1, 2)).transpose(1, 2), None


def _check_divisible(config: Any, size: int, tensor: int) -> None:
    for name in _HEADS:
        number = getattr(config, name, None)
        if number is not None and number % (size * tensor):
            axes = f"distributed.mesh.context={size}" + (f" x tensor={tensor}" if tensor > 1 else "")
            msg = f"{axes} does not divide the model's {name} of {number}: choose a divisor"
            raise ConfigurationError(msg)
