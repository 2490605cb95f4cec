"""A safetensors file of weighted means, computed a range at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from typing_extensions import override

from holdfast.adapters.shared.tensor_state.safetensors_file import in_file_order, tensor_bytes, tensors_header
from holdfast.domain.errors import StateError
from holdfast.ports.state_store import StatePart

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from holdfast.adapters.shared.tensor_state.sharded_tensors import SlicedTensors

_RANGE = 4 << 20  # elements


@final
@dataclass(frozen=True, slots=True)
class MeanTensors(StatePart):
    """The file ``name`` of the means of the tensors ``names`` in all ``sources``, with relative ``weights``.

    Sums are fp64, and a mean has the dtype of its tensor. Tensors that are not floating-point must be equal in all
    sources. The sources are open while chunks are read. Raises ``StateError`` if their tensors differ in name, shape or
    dtype, or where they must be equal.
    """

    name: str
    names: Sequence[str]
    sources: Sequence[SlicedTensors]
    weights: Sequence[float]

    @override
    def chunks(self) -> Iterator[bytes | memoryview]:
        first = self.sources[0].layout.tensors
        for source in self.sources:
            self._check_same(source)
        outline = {name: torch.empty(first[name].shape, dtype=first[name].dtype, device="meta") for name in self.names}
        yield tensors_header(outline, {})
        for name in in_file_order(outline):
            count = outline[name].numel()
            for start in range(0, count, _RANGE):
                yield tensor_bytes(self._mean(name, start, min(_RANGE, count - start)))

    def _mean(self, name: str, start: int, count: int) -> Tensor:
        parts = [source.read(name, start, count) for source in self.sources]
        if not parts[0].is_floating_point():
            if any(not torch.equal(part, parts[0]) for part in parts):
                msg = f"{name} differs between the checkpoints and has no mean: average checkpoints of one run"
                raise StateError(msg)
            return parts[0]
        total = torch.zeros(count, dtype=torch.float64)
        for part, weight in zip(parts, self.weights, strict=True):
            total.add_(part.double(), alpha=weight)
        return (total / math.fsum(self.weights)).to(parts[0].dtype)

    def _check_same(self, source: SlicedTensors) -> None:
        first, other = self.sources[0].layout.tensors, source.layout.tensors
        for name in self.names:
            if name not in other or (other[name].shape, other[name].dtype) != (first[name].shape, first[name].dtype):
                msg = f"{name} is not the same tensor in all checkpoints: average checkpoints of one model"
                raise StateError(msg)
