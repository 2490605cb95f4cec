"""A file with one call of a ledger: its arguments as JSON, the bytes of its arrays, and a checksum."""

from __future__ import annotations

import json
import math
import struct
import zlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.domain.data.document_spans import Spans, UnitName
from holdfast.domain.errors import StateError
from holdfast.ports.ledger import CheckpointRecord, Rejects, StepRecords

if TYPE_CHECKING:
    from holdfast.ports.ledger import Ledger

_MAGIC = b"HFLEDGER1\n"
_LENGTH = struct.Struct("<I")
_DTYPES = {np.dtype(name).str: np.dtype(name) for name in ("<i8", "<u8", "<f8")}
_RECORDS = {kind.__name__: kind for kind in (StepRecords, Spans, Rejects, CheckpointRecord)}
_METHODS = ("begin_run", "end_run", "record", "roll_back", "reject", "checkpoint")


@dataclass(frozen=True, slots=True, eq=False)
class LedgerCall:
    """A call of the ledger's ``method``, which records something, with its arguments."""

    method: str
    arguments: tuple[Any, ...]

    def apply(self, ledger: Ledger) -> None:
        """Make the call."""
        getattr(ledger, self.method)(*self.arguments)


def encode(call: LedgerCall) -> bytes:
    """Return ``call`` as the bytes of a file."""
    arrays: list[np.ndarray[Any, Any]] = []
    record = {"method": call.method, "arguments": [_packed(value, arrays) for value in call.arguments]}
    header = json.dumps(record | {"arrays": [[array.dtype.str, len(array)] for array in arrays]}).encode()
    body = b"".join([_MAGIC, _LENGTH.pack(len(header)), header, *(array.tobytes() for array in arrays)])
    return body + _LENGTH.pack(zlib.crc32(body))


def decode(content: bytes) -> LedgerCall:
    """Return the call that ``encode`` described; raises ``StateError`` if a byte of it is missing or different."""
    body, checksum = content[: -_LENGTH.size], content[-_LENGTH.size :]
    if not body.startswith(_MAGIC) or checksum != _LENGTH.pack(zlib.crc32(body)):
        msg = "its bytes are not those that were written"
        raise StateError(msg)
    place = len(_MAGIC) + _LENGTH.size
    end = place + _LENGTH.unpack_from(body, len(_MAGIC))[0]
    record = json.loads(body[place:end])
    if record["method"] not in _METHODS:
        msg = f"it has a call {record['method']}, which this version of Holdfast does not know"
        raise StateError(msg)
    arrays = []
    for dtype, length in record["arrays"]:
        arrays.append(np.frombuffer(body, _DTYPES[dtype], length, end))
        end += arrays[-1].nbytes
    return LedgerCall(record["method"], tuple(_unpacked(value, arrays) for value in record["arguments"]))


def _packed(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, np.ndarray):
        little = value.astype(value.dtype.newbyteorder("<"), copy=False)
        arrays.append(little if little.dtype.str in _DTYPES else little.astype("<i8"))
        return {"array": len(arrays) - 1}
    if type(value).__name__ in _RECORDS:
        return {type(value).__name__: [_packed(getattr(value, field.name), arrays) for field in fields(value)]}
    if isinstance(value, float) and not math.isfinite(value):
        msg = f"the ledger cannot record the time {value}"
        raise StateError(msg)
    return {"json": value}


def _unpacked(value: dict[str, Any], arrays: list[np.ndarray[Any, Any]]) -> Any:
    ((kind, content),) = value.items()
    if kind == "array":
        return arrays[content]
    if kind == "json":
        return content
    names = [field.name for field in fields(_RECORDS[kind])]
    values = dict(zip(names, (_unpacked(one, arrays) for one in content), strict=True))
    for name in ("rule", "reason"):
        values |= {name: tuple(values[name])} if isinstance(values.get(name), list) else {}
    if "units" in values:
        values["units"] = tuple(UnitName(*unit) for unit in values["units"])
    return _RECORDS[kind](**values)
