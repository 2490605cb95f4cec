"""The description of a stored checkpoint: what it holds, to the byte."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from adapters.state_store.defect import Defect, Flaw
from adapters.state_store.tree import hash_bytes
from domain.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MANIFEST = "MANIFEST.json"
COMMIT = "COMMIT"
SCHEMA = 2
LARGEST_MANIFEST = 16 << 20


def commit_of(manifest: bytes) -> bytes:
    """Return what COMMIT holds for the bytes of a manifest; this form is the same in every schema."""
    return f"{hash_bytes(manifest)}\n".encode("ascii")


class OtherSchemaError(Exception):
    """The manifest is of another version of this program, which may be right and cannot be judged."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a checkpoint: ``path`` relative in POSIX form, ``size`` in bytes, ``hash`` as ``hash_bytes`` gives."""

    path: str
    size: int
    hash: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The snapshot that a checkpoint is, and the closed list of its files; ``generation`` counts a store's saves.

    ``evaluation_loss`` is None where nobody measured, and in manifests of before it was written.
    """

    save_id: str
    generation: int
    progress: Progress
    reason: str
    files: Sequence[StoredFile]
    evaluation_loss: float | None = None

    @property
    def num_bytes(self) -> int:
        """Return the size of the listed files."""
        return sum(file.size for file in self.files)

    def to_bytes(self) -> bytes:
        """Return the manifest as canonical JSON: sorted keys, no spaces, ASCII."""
        record = {
            "schema": SCHEMA,
            "save_id": self.save_id,
            "generation": self.generation,
            "step": self.progress.step,
            "progress": self.progress.to_json(),
            "reason": self.reason,
            "evaluation_loss": self.evaluation_loss,
            "files": [{"path": file.path, "size": file.size, "hash": file.hash} for file in self.files],
        }
        return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Return the manifest that ``to_bytes`` wrote.

        Raises ``Defect`` for anything else, and ``OtherSchemaError`` for the manifest of another version.
        """
        record = _mapping(_parse(data), "the whole")
        _check_schema(_count(record, "schema"))
        manifest = cls(
            save_id=_text(record, "save_id"),
            generation=_count(record, "generation"),
            progress=_progress(_mapping(record.get("progress"), "progress")),
            reason=_text(record, "reason"),
            files=_files(record.get("files")),
            evaluation_loss=_loss(record.get("evaluation_loss")),
        )
        if manifest.progress.step != _count(record, "step"):
            raise Defect(Flaw.BAD_MANIFEST, "step and progress disagree")
        return manifest


def _parse(data: bytes) -> object:
    if len(data) > LARGEST_MANIFEST:
        raise Defect(Flaw.BAD_MANIFEST, f"it has more than {LARGEST_MANIFEST} bytes")
    try:
        parsed: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Defect(Flaw.BAD_MANIFEST, "it cannot be read as JSON") from error
    return parsed


def _check_schema(schema: int) -> None:
    if schema < 1:
        raise Defect(Flaw.BAD_MANIFEST, f"schema {schema} never was")
    if schema != SCHEMA:
        raise OtherSchemaError(schema)


def _mapping(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Defect(Flaw.BAD_MANIFEST, f"{name} is not an object")
    return value


def _count(record: Mapping[str, Any], name: str) -> int:
    value = record.get(name)
    if type(value) is not int or not 0 <= value < 2**63:
        raise Defect(Flaw.BAD_MANIFEST, f"{name} is not a count")
    return value


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        raise Defect(Flaw.BAD_MANIFEST, f"{name} is not a text")
    return value


def _loss(value: object) -> float | None:
    if value is None or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise Defect(Flaw.BAD_MANIFEST, "evaluation_loss is not a finite number")


def _progress(record: Mapping[str, Any]) -> Progress:
    cursor = _mapping(record.get("cursor"), "cursor")
    _count(record, "tokens")
    _count(cursor, "samples")
    try:
        if not all(type(number) is int and 0 <= number < 2**63 for lane in cursor["lanes"] for number in lane):
            raise Defect(Flaw.BAD_MANIFEST, "a lane holds something else than counts")
        return Progress.from_json(record)
    except (KeyError, TypeError) as error:
        raise Defect(Flaw.BAD_MANIFEST, "progress has other fields") from error


def _files(records: object) -> Sequence[StoredFile]:
    if not isinstance(records, list):
        raise Defect(Flaw.BAD_MANIFEST, "files is not a list")
    files = [_file(_mapping(record, "a file")) for record in records]
    if len({file.path for file in files}) != len(files):
        raise Defect(Flaw.BAD_MANIFEST, "a file is listed twice")
    return files


def _file(record: Mapping[str, Any]) -> StoredFile:
    path = _text(record, "path")
    if not _is_normal(path):
        raise Defect(Flaw.BAD_MANIFEST, f"it lists {path[:200]!r}, which is not a normal path inside the checkpoint")
    return StoredFile(path, _count(record, "size"), _text(record, "hash"))


def _is_normal(path: str) -> bool:
    pure = PurePosixPath(path)
    is_inside = not pure.is_absolute() and ".." not in pure.parts and path not in {"", ".", MANIFEST, COMMIT}
    return is_inside and str(pure) == path and "\0" not in path
