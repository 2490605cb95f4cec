"""Files that the first rank consolidates from the slices that all ranks have written."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, final

import torch
from typing_extensions import override

from holdfast.adapters.shared.tensor_state.safetensors_file import in_file_order, tensor_bytes, tensors_header
from holdfast.adapters.shared.tensor_state.sharded_tensors import ShardLayout, SlicedTensors, TensorFile
from holdfast.ports.state_store import JoinedPart

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
    found = _FIRST_NUMBER.match(name)
    return name if found is None else found[0]


def _outlines(layout: ShardLayout, names: Sequence[str]) -> dict[str, Tensor]:
    found = {name: layout.tensors[name] for name in names}
    return {name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for name, tensor in found.items()}
