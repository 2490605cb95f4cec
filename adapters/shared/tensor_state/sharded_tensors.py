"""Safetensors files that each hold slices of tensors, read as any range of a whole tensor."""

from __future__ import annotations

import json
import math
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, final

import torch

from holdfast.adapters.shared.tensor_state.local_shards import TensorBlock, cover
from holdfast.adapters.shared.tensor_state.safetensors_file import DTYPES, TensorsPart, dtype_name
from holdfast.domain.errors import StateError
from holdfast.ports.state_store import open_plainly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from holdfast.adapters.shared.tensor_state.local_shards import Slice
    from holdfast.ports.state_store import OpenFile

_SLICES = "slices"  # in a file's metadata: of each tensor the whole shape and where the slice starts
_LARGEST_HEADER = 100_000_000  # the largest header that the safetensors package accepts
_PIECE = 16 << 20
_NOWHERE = TensorBlock(0, 0)


def slices_part(name: str, slices: Mapping[str, Slice]) -> TensorsPart:
    """Return the file ``name`` of ``slices``, flat, with their places in its metadata."""
    places = {tensor: {"shape": list(piece.shape), **_place_record(piece.place)} for tensor, piece in slices.items()}
    tensors = {tensor: piece.values for tensor, piece in slices.items()}
    return TensorsPart(name, tensors, {_SLICES: json.dumps(places, separators=(",", ":"))})


@dataclass(frozen=True, slots=True)
class Sliced:
    """A tensor spread over several files: the place of the part in each, of size 0 if the file has none of it."""

    dtype: torch.dtype
    shape: torch.Size
    places: Sequence[TensorBlock]


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """The part of each tensor in each file; the parts of a tensor make up all of it."""

    files: Sequence[str]
    tensors: Mapping[str, Sliced]

    def __post_init__(self) -> None:
        for name, tensor in self.tensors.items():
            if len(tensor.places) != len(self.files) or not cover(tensor.places, tensor.shape.numel()):
                msg = f"the ranks' slices of {name} do not cover all of it: restore another checkpoint"
                raise StateError(msg)

    @classmethod
    def of(cls, files: Sequence[TensorFile]) -> ShardLayout:
        """Return the layout of ``files``; a part that is in several files is read from the first."""
        tensors: dict[str, Sliced] = {}
        for number, file in enumerate(files):
            for name, (dtype, shape, place) in file.slices.items():
                known = tensors.get(name) or Sliced(dtype, shape, [_NOWHERE] * len(files))
                places = list(known.places)
                if place not in places:
                    places[number] = place
                tensors[name] = Sliced(dtype, shape, places)
        return cls([file.name for file in files], tensors)

    @classmethod
    def from_json(cls, text: bytes, where: object) -> ShardLayout:
        """Read the JSON of ``to_json``; raises ``StateError`` about ``where`` for any other text."""
        try:
            record = json.loads(text)
            tensors = {
                str(name): Sliced(
                    DTYPES[entry["dtype"]],
                    torch.Size(entry["shape"]),
                    [TensorBlock(*map(int, numbers)) for numbers in entry["ranges"]],
                )
                for name, entry in record["tensors"].items()
            }
            return cls([str(name) for name in record["files"]], tensors)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            what = type(error).__name__
            msg = f"{where} does not describe the ranks' slices ({what}): restore another checkpoint"
            raise StateError(msg) from error

    def to_json(self) -> str:
        """Return the layout as one line of JSON, which other programs can read too."""
        tensors = {
            name: {
                "dtype": dtype_name(tensor.dtype),
                "shape": list(tensor.shape),
                "ranges": list(map(_numbers, tensor.places)),
            }
            for name, tensor in self.tensors.items()
        }
        return json.dumps({"files": list(self.files), "tensors": tensors}, sort_keys=True, separators=(",", ":")) + "\n"


@final
class TensorFile:
    """A safetensors file, read by ranges: ``read`` takes an offset and a number of bytes and returns the bytes.

    It is not mapped, as a sector that cannot be read would then end the process. ``fill``, if given, reads from an
    offset on into a buffer and returns how many bytes there were, which saves a copy. Raises ``StateError`` about
    ``name`` if it is damaged. ``slices`` are its tensors: dtype, shape of the whole, and the place of the part in it.
    """

    def __init__(
        self, name: str, read: Callable[[int, int], bytes], *, fill: Callable[[int, memoryview], int] | None = None
    ) -> None:
        self.name = name
        self._read = read
        self._fill = fill or self._copy
        length = int.from_bytes(self._exactly(0, 8), "little")
        if length > _LARGEST_HEADER:
            self._raise_damaged("its header is too long")
        self._begin = 8 + length
        self._offsets: dict[str, int] = {}
        self.slices: dict[str, tuple[torch.dtype, torch.Size, TensorBlock]] = {}
        try:
            end = self._parse(json.loads(self._exactly(8, length)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._raise_damaged(f"its header is invalid ({type(error).__name__})")
        if end:
            self._exactly(self._begin + end - 1, 1)

    def read_into(self, target: Tensor, name: str, first: int) -> None:
        """Fill ``target`` (count,), a host tensor, with elements of the slice of ``name`` from its ``first`` on.

        Raises ``StateError`` if the slice lacks some of them or has another dtype than ``target``.
        """
        dtype, _, place = self.slices[name]
        if first < 0 or first + target.numel() > place.size or target.dtype != dtype:
            self._raise_damaged(f"it has another range of {name}")
        offset = self._begin + self._offsets[name] + first * dtype.itemsize
        view = target.view(torch.uint8).numpy()
        for begin in range(0, len(view), _PIECE):
            piece = view[begin : begin + _PIECE].data
            if self._fill(offset + begin, piece) != len(piece):
                self._raise_damaged("it is cut short")

    def _parse(self, header: Mapping[str, Any]) -> int:
        places = json.loads(header.get("__metadata__", {}).get(_SLICES, "{}"))
        end = 0
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            dtype, own = DTYPES[entry["dtype"]], torch.Size(entry["shape"])
            begin, stop = map(int, entry["data_offsets"])
            if begin < 0 or stop - begin != own.numel() * dtype.itemsize:
                self._raise_damaged(f"{name} has another size")
            place = places.get(name, {"shape": own, "start": 0})
            self.slices[name] = dtype, torch.Size(place["shape"]), _place_from(place, own.numel())
            self._offsets[name] = begin
            end = max(end, stop)
        return end

    def _copy(self, offset: int, target: memoryview) -> int:
        data = self._read(offset, len(target))
        target[: len(data)] = data
        return len(data)

    def _exactly(self, offset: int, size: int) -> bytes:
        data = self._read(offset, size)
        if len(data) != size:
            self._raise_damaged("it is cut short")
        return data

    def _raise_damaged(self, why: str) -> NoReturn:
        msg = f"{self.name} cannot be read, {why}: restore another checkpoint"
        raise StateError(msg)


@final
class SlicedTensors:
    """The tensors of ``layout``, any range of them; a file is opened, by its name, when it is first needed."""

    def __init__(self, layout: ShardLayout, open_file: Callable[[str], TensorFile]) -> None:
        self.layout = layout
        self._open_file = open_file
        self._files: dict[str, TensorFile] = {}

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """Return the shape of each tensor, by name."""
        return {name: tensor.shape for name, tensor in self.layout.tensors.items()}

    def read(self, name: str, start: int, count: int, into: Tensor | None = None) -> Tensor:
        """Return ``count`` elements of the flattened tensor ``name`` from ``start`` on, in the dtype that was saved.

        If ``into``, a host tensor (count,), has that dtype, it is overwritten and returned.
        """
        tensor = self.layout.tensors[name]
        values = torch.empty(count, dtype=tensor.dtype) if into is None or into.dtype != tensor.dtype else into
        for file, place in zip(self.layout.files, tensor.places, strict=True):
            if place.repeats > 1:
                self._read_runs(file, name, place, start, values)
                continue
            first, last = max(start, place.start), min(start + count, place.start + place.length)
            if first < last:
                self._opened(file).read_into(values[first - start : last - start], name, first - place.start)
        return values

    def _read_runs(self, file: str, name: str, place: TensorBlock, start: int, found: Tensor) -> None:
        """Fill the elements of ``found``, which begins at ``start``, that lie in the runs of ``place``."""
        first = max(0, -(-(start - place.start - place.length + 1) // place.stride))
        last = min(place.repeats, -(-(start + found.numel() - place.start) // place.stride))
        if first >= last:
            return
        runs = torch.empty(last - first, place.length, dtype=found.dtype)
        self._opened(file).read_into(runs.view(-1), name, first * place.length)
        begins = range(place.start + first * place.stride - start, found.numel(), place.stride)
        for number in {0, len(runs) - 1}:  # a range may begin and end within a run
            low, high = max(0, begins[number]), min(found.numel(), begins[number] + place.length)
            found[low:high] = runs[number, low - begins[number] : high - begins[number]]
        if len(runs) > 2:
            shape = (len(runs) - 2, place.length)
            found[begins[1] :].as_strided(shape, (place.stride, 1)).copy_(runs[1:-1])

    def whole(self, name: str) -> Tensor:
        """Return the whole tensor ``name``, in the shape and dtype that were saved."""
        shape = self.layout.tensors[name].shape
        return self.read(name, 0, math.prod(shape)).view(shape)

    def _opened(self, name: str) -> TensorFile:
        if name not in self._files:
            self._files[name] = self._open_file(name)
        return self._files[name]


def _place_record(place: TensorBlock) -> dict[str, int]:
    """Return the start of ``place``, and what a block of columns has besides."""
    if place.repeats == 1:
        return {"start": place.start}
    return {"start": place.start, "stride": place.stride, "repeats": place.repeats}


def _place_from(record: Mapping[str, Any], size: int) -> TensorBlock:
    """Return the place of ``size`` elements that ``_place_record`` described."""
    repeats, stride = int(record.get("repeats", 1)), int(record.get("stride", 0))
    if repeats < 1 or size % repeats:
        msg = "runs of different lengths"
        raise ValueError(msg)
    return TensorBlock(int(record["start"]), size // repeats, stride, repeats)


def _numbers(place: TensorBlock) -> list[int]:
    """Return ``place`` as a list: start and count, and of several runs also stride and repeats."""
    return list(place[:2] if place.repeats == 1 else place)


@contextmanager
def saved_tensors(path: Path, open_file: OpenFile) -> Iterator[SlicedTensors]:
    """Yield the tensors that a ``TensorsPart`` wrote to ``path``; raises ``StateError`` if it cannot be read."""
    try:
        with open_file(path) as file:
            whole = TensorFile(str(path), file.read, fill=file.fill)
            yield SlicedTensors(ShardLayout.of([whole]), lambda _: whole)
    except OSError as error:
        msg = f"{path} cannot be read: {error}; restore another checkpoint"
        raise StateError(msg) from error


@contextmanager
def tensors_in(paths: Sequence[Path]) -> Iterator[SlicedTensors]:
    """Yield the tensors of the safetensors files ``paths``, each whole in one of them.

    Raises ``StateError`` if a file cannot be read.
    """
    with ExitStack() as stack:
        try:
            opened = [(str(path), stack.enter_context(open_plainly(path))) for path in paths]
            files = {name: TensorFile(name, file.read, fill=file.fill) for name, file in opened}
            yield SlicedTensors(ShardLayout.of(list(files.values())), files.__getitem__)
        except OSError as error:
            msg = f"the weights cannot be read: {error}; copy them again"
            raise StateError(msg) from error
