"""Ranges of saved tensors that a model has under other names, or in other forms."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, final

import torch

from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from holdfast.adapters.shared.tensor_state.consolidation import Convert
    from holdfast.adapters.shared.tensor_state.local_shards import ReadRange
    from holdfast.adapters.shared.tensor_state.sharded_tensors import SlicedTensors


def converted_ranges(saved: SlicedTensors, convert: Convert) -> tuple[dict[str, ReadRange], dict[str, torch.Size]]:
    """Return the readers and the shapes of the tensors that ``convert`` makes of ``saved``, by their names.

    ``convert`` gets one tensor at a time. A tensor that it only renames is read by ranges; of one that it changes,
    memory holds the whole until the next such tensor is read.
    """
    ranges: dict[str, ReadRange] = {}
    shapes: dict[str, torch.Size] = {}
    changed = _ChangedTensor(saved, convert)
    for source, tensor in saved.layout.tensors.items():
        outline = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        for name, result in convert({source: outline}).items():
            shapes[name] = result.shape
            ranges[name] = partial(saved.read, source) if result is outline else partial(changed.read, source, name)
    return ranges, shapes


def check_same_weights(own: Mapping[str, torch.Size], saved: Mapping[str, torch.Size]) -> None:
    """Raise ``StateError`` unless the weights of a checkpoint have the names and shapes of the model's ``own``."""
    if own.keys() != saved.keys():
        differing = sorted(own.keys() ^ saved.keys())
        msg = f"the checkpoint's weights are of another model: {differing[0]} and {len(differing) - 1} more differ"
        raise StateError(msg)
    for name, shape in own.items():
        if shape != saved[name]:
            msg = f"{name} is {tuple(saved[name])} in the checkpoint and {tuple(shape)} in the model"
            raise StateError(msg)


@final
class _ChangedTensor:
    """The results of the conversion of one tensor, the last that was read."""

    def __init__(self, saved: SlicedTensors, convert: Convert) -> None:
        self._saved = saved
        self._convert = convert
        self._source = ""
        self._results: Mapping[str, Tensor] = {}

    def read(self, source: str, name: str, start: int, count: int, _into: Tensor | None = None) -> Tensor:
        """Return a range of the result ``name`` of ``source``, as ``ReadRange`` promises."""
        if source != self._source:
            self._source, self._results = source, {}  # one is freed before the next is read
            self._results = self._convert({source: self._saved.whole(source)})
        return self._results[name].reshape(-1)[start : start + count]
