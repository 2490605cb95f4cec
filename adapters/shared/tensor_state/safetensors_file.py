"""Writes captured tensors as safetensors files and reads them back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import torch
from typing_extensions import override

from holdfast.domain.errors import StateError
from holdfast.ports.state_store import StatePart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

# What the format calls them, and the order in which its package lays them out: safetensors/src/tensor.rs, Dtype.
_NAMES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_PLACES = {dtype: place for place, dtype in enumerate(_NAMES)}
_ALIGNMENT = 8


@final
@dataclass(frozen=True, slots=True)
class TensorsPart(StatePart):
    """A safetensors file of host tensors, streamed without copying them.

    The bytes are those of the safetensors package for the metadata ``{"format": "pt"}`` and ``more``. Raises
    ``StateError`` for a dtype that the format does not have.
    """

    name: str
    tensors: Mapping[str, Tensor]
    more: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, tensor in self.tensors.items():
            if tensor.dtype not in _NAMES:
                msg = f"{name} is {tensor.dtype}, which {self.name} cannot hold: train a model without such tensors"
                raise StateError(msg)

    @override
    def chunks(self) -> Iterator[bytes | memoryview]:
        yield tensors_header(self.tensors, self.more)
        for name in in_file_order(self.tensors):
            yield tensor_bytes(self.tensors[name])


def in_file_order(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names in the order of their bytes in a file: by dtype, then by name."""
    return sorted(tensors, key=lambda name: (_PLACES[tensors[name].dtype], name))


def tensors_header(tensors: Mapping[str, Tensor], more: Mapping[str, str]) -> bytes:
    """Return the header of a file of ``tensors``, of which only dtypes and shapes are used."""
    header: dict[str, object] = {"__metadata__": {"format": "pt", **more}}
    begin = 0
    for name in in_file_order(tensors):
        tensor = tensors[name]
        end = begin + tensor.nbytes
        offsets = [begin, end]
        header[name] = {"dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape), "data_offsets": offsets}
        begin = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a host tensor of any shape and dtype, not copied if it is contiguous."""
    data: memoryview = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return data


def dtype_name(dtype: torch.dtype) -> str:
    """Return the format's name of ``dtype``, which is one of ``DTYPES``."""
    return _NAMES[dtype]
