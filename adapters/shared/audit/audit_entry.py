"""One line of an audit file.

    {"details":{...},"event":"...","previous":"HASH or null","sequence":N,"time":"UTC","hash":"HASH"}

HASH is ``blake3:`` and the hexadecimal BLAKE3 of the line as canonical JSON (sorted keys, no spaces, ASCII) without
``hash``; with a key it is ``blake3-keyed:`` and that of BLAKE3's keyed mode.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from blake3 import blake3

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import UnionType

LONGEST_LINE = 1 << 20
_MARK = b',"hash":"'
_END = b'"}\n'
_MEMBERS: Mapping[str, type | UnionType] = {
    "details": dict,
    "event": str,
    "previous": str | None,
    "sequence": int,
    "time": str,
}


class MalformedEntryError(Exception):
    """A line differs from the one that was written; the message completes "line N ..."."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """The content of a line; ``previous`` is the hash of the line before, None in the first, whose sequence is 1."""

    sequence: int
    time: str
    event: str
    details: Mapping[str, Any]
    previous: str | None
    hash: str


def new_line(
    event: str, details: Mapping[str, Any], *, after: AuditEntry | None, key: bytes | None
) -> tuple[bytes, AuditEntry]:
    """Return the line of ``event``, at the present time, that continues ``after``, and its content.

    ``details`` must be JSON values without NaN and infinities.
    """
    record: dict[str, Any] = {
        "sequence": after.sequence + 1 if after else 1,
        "time": datetime.now(UTC).isoformat(timespec="microseconds"),
        "event": event,
        "details": dict(details),
        "previous": after.hash if after else None,
    }
    body = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    digest = _hash(body, key)
    return body[:-1] + _MARK + digest.encode("ascii") + _END, AuditEntry(**record, hash=digest)


def read_line(line: bytes, key: bytes | None) -> AuditEntry:
    """Return the content of ``line``; raise ``MalformedEntryError`` if its hash does not match its bytes."""
    start, mark, stated = line.rpartition(_MARK)
    body = start + b"}"
    digest = _hash(body, key)
    if not mark or stated != digest.encode("ascii") + _END:
        raise MalformedEntryError(_why_not(stated, key))
    try:
        record = json.loads(body)
        is_one = record.keys() == _MEMBERS.keys()
        if is_one and all(isinstance(record[name], kind) for name, kind in _MEMBERS.items()):
            return AuditEntry(**record, hash=digest)
    except (ValueError, RecursionError):
        pass  # without a key anybody can compute the hash of a forged line
    msg = "is not a valid entry, although its hash is right: it was forged"
    raise MalformedEntryError(msg)


def _hash(body: bytes, key: bytes | None) -> str:
    if key is None:
        return f"blake3:{blake3(body).hexdigest()}"
    return f"blake3-keyed:{blake3(body, key=key).hexdigest()}"


def _why_not(stated: bytes, key: bytes | None) -> str:
    if key is None and stated.startswith(b"blake3-keyed:"):
        return "was written with a key: give that key"
    if key is not None and stated.startswith(b"blake3:"):
        return "was written without a key, so anybody may have written it"
    secret = "" if key is None else ", or the key is wrong"
    return f"is not what was written: it was changed, cut or added{secret}"
