"""Files that the first rank consolidates from the slices that all ranks have written."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, final

import torch
from typing_extensions import override

from holdfast.adapters.shared.tensor_state.safetensors_file import in_file_order, tensor_bytes, tensors_header
from holdfast.adapters.shared.tensor_state.sharded_tensors import ShardLayout, SlicedTensors, TensorFile
from holdfast.domain.errors import StateError
from holdfast.ports.state_store import JoinedPart, StatePart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    Read = Callable[[str, int, int], bytes]
    Convert = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]

_ELEMENTS_AT_ONCE = 1 << 18  # larger pieces stay behind in the allocator's memory
_FIRST_NUMBER = re.compile(r"^.*?\.\d+\.")


def rank_file(kind: str, rank: int, num_ranks: int) -> str:
    """Return the name of the file of ``kind`` that ``rank`` writes."""
    return f"{kind}/rank-{rank:05d}-of-{num_ranks:05d}.safetensors"


@final
@dataclass(frozen=True, slots=True)
class ShardLayoutPart(JoinedPart):
    """The ``ShardLayout`` of the files ``sources``, which are not removed."""

    name: str
    sources: Sequence[str]
    consumes: Sequence[str] = ()

    @override
    def chunks(self, read: Read) -> Iterator[bytes]:
        yield _open(self.sources, read).layout.to_json().encode()


@final
@dataclass(frozen=True, slots=True)
class ConsolidatedTensors(JoinedPart):
    """A safetensors file of whole tensors, made of the slices in ``consumes``, and of ``constants``.

    ``convert`` returns their saved names and forms. It gets one layer at a time (the tensors with the same name up to
    the first number), so its results must depend on that layer alone. Tensors that it only renames are copied in
    pieces; memory holds one layer of the others.
    """

    name: str
    consumes: Sequence[str]
    convert: Convert = dict
    constants: Mapping[str, Tensor] = field(default_factory=dict)

    @override
    def chunks(self, read: Read) -> Iterator[bytes | memoryview]:
        slices = _open(self.consumes, read)
        outline, origin, same = dict(self.constants), dict[str, list[str]](), dict[str, str]()
        for names in _layers(slices.layout.tensors):
            before = _outlines(slices.layout, names)
            sources = {id(tensor): source for source, tensor in before.items()}
            for name, tensor in self.convert(before).items():
                outline[name], origin[name] = tensor, names
                if id(tensor) in sources:
                    same[name] = sources[id(tensor)]
        yield tensors_header(outline, {})
        held: tuple[list[str], Mapping[str, Tensor]] = [], {}
        for name in in_file_order(outline):
            if name in self.constants:
                yield tensor_bytes(self.constants[name])
                continue
            if name in same:
                yield from _pieces(slices, same[name])
                continue
            if held[0] is not origin[name]:
                held = [], {}  # one layer is freed before the next is read
                held = origin[name], self.convert({source: slices.whole(source) for source in origin[name]})
            yield tensor_bytes(held[1][name])


def _pieces(slices: SlicedTensors, name: str) -> Iterator[memoryview]:
    size = slices.shapes[name].numel()
    for begin in range(0, size, _ELEMENTS_AT_ONCE):
        yield tensor_bytes(slices.read(name, begin, min(_ELEMENTS_AT_ONCE, size - begin)))


def _open(files: Sequence[str], read: Read) -> SlicedTensors:
    opened = {name: TensorFile(name, partial(read, name)) for name in files}
    return SlicedTensors(ShardLayout.of(list(opened.values())), opened.__getitem__)


def _layers(names: Mapping[str, object]) -> Iterator[list[str]]:
    for _, group in groupby(sorted(names), key=_layer_of):
        yield list(group)


def _layer_of(name: str) -> str:
    match = _FIRST_NUMBER.match(name)
    return name if match is None else match[0]


def _outlines(layout: ShardLayout, names: Sequence[str]) -> dict[str, Tensor]:
    tensors = {name: layout.tensors[name] for name in names}
    return {name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for name, tensor in tensors.items()}


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
