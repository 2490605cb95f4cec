"""The manifest of a stored checkpoint, which describes its content byte for byte."""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from holdfast.adapters.state_store.hashing import CorruptCheckpoint, CorruptionKind, hash_bytes
from holdfast.domain.checkpoints.reproducibility import Reproducibility
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.key_provider import WrappedKey
from holdfast.ports.state_store import CheckpointInfo, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MANIFEST = "MANIFEST.json"
COMMIT = "COMMIT"
SCHEMA = 2
LARGEST_MANIFEST = 16 << 20


def commit_of(manifest: bytes) -> bytes:
    """Return the content of COMMIT for the bytes of a manifest; this form is the same in every schema."""
    return f"{hash_bytes(manifest)}\n".encode("ascii")


class OtherSchemaError(Exception):
    """The manifest was written by another version of this program, so it cannot be verified."""


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A file of a checkpoint: ``path`` relative in POSIX form, ``size`` in bytes, ``hash`` as ``hash_bytes`` gives."""

    path: str
    size: int
    hash: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a checkpoint and the complete list of its files; ``generation`` counts a store's saves.

    ``snapshot`` has no parts. Fields that earlier versions did not write (evaluation loss, contract, conditions, time)
    get their defaults. With a ``wrapped_key`` the files are encrypted, and their sizes and hashes are those of the
    encrypted files. ``provenance`` is the origin of weights that no training step made, as JSON; empty for a state of
    training, and then not written.
    """

    save_id: str
    generation: int
    snapshot: Snapshot
    files: Sequence[CheckpointFile]
    wrapped_key: WrappedKey | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def progress(self) -> Progress:
        """Return the progress of the run."""
        return self.snapshot.progress

    def info(self, location: str) -> CheckpointInfo:
        """Return the entry of a list of checkpoints for this one, stored at ``location``."""
        told = self.snapshot
        return CheckpointInfo(
            told.progress,
            told.reason,
            location,
            self.num_bytes,
            told.evaluation_loss,
            told.contract,
            told.conditions,
            told.saved_at,
        )

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
            "reason": self.snapshot.reason,
            "evaluation_loss": self.snapshot.evaluation_loss,
            "contract": self.snapshot.contract,
            "conditions": dict(self.snapshot.conditions),
            "saved_at": self.snapshot.saved_at,
            "encryption": key_record(self.wrapped_key),
            **({"provenance": dict(self.provenance)} if self.provenance else {}),
            "files": [{"path": file.path, "size": file.size, "hash": file.hash} for file in self.files],
        }
        return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Return the manifest that ``to_bytes`` wrote.

        Raises ``CorruptCheckpoint`` for anything else, ``OtherSchemaError`` for the manifest of another version.
        """
        record = _mapping(_parse(data), "the whole")
        _check_schema(_count(record, "schema"))
        manifest = cls(
            save_id=_text(record, "save_id"),
            generation=_count(record, "generation"),
            snapshot=_snapshot(record),
            files=stored_files(record.get("files")),
            wrapped_key=key_from_record(record.get("encryption")),
            provenance=_mapping(record.get("provenance", {}), "'provenance'"),
        )
        if manifest.progress.step != _count(record, "step"):
            raise CorruptCheckpoint(CorruptionKind.BAD_MANIFEST, "'step' differs from the step in 'progress'")
        return manifest


def _snapshot(record: Mapping[str, Any]) -> Snapshot:
    return Snapshot(
        _progress(_mapping(record.get("progress"), "'progress'")),
        _text(record, "reason"),
        parts=(),
        evaluation_loss=_number(record, "evaluation_loss"),
        contract=_contract(record.get("contract", Reproducibility.BITWISE)),
        conditions=_conditions(_mapping(record.get("conditions", {}), "'conditions'")),
        saved_at=_number(record, "saved_at") or 0.0,
    )


def _parse(data: bytes) -> object:
    if len(data) > LARGEST_MANIFEST:
        raise CorruptCheckpoint(CorruptionKind.BAD_MANIFEST, f"it has more than {LARGEST_MANIFEST} bytes")
    try:
        parsed: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(CorruptionKind.BAD_MANIFEST, "it cannot be read as JSON") from error
    return parsed


def _check_schema(schema: int) -> None:
    if schema < 1:
        raise CorruptCheckpoint(CorruptionKind.BAD_MANIFEST, f"schema {schema} never existed")
    if schema != SCHEMA:
        raise OtherSchemaError(schema)


def _mapping(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise CorruptCheckpoint(CorruptionKind.BAD_MANIFEST, f"{name} is not an object")
    return value


def _count(record: Mapping[str, Any], name: str) -> int:
    value = record.get(name)
    if type(value) is not int or not 0 <= value < 2**63:
        raise CorruptCheckpoint(CorruptionKind.BAD_MANIFEST, f"{name!r} is not a count")
    return value


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        raise CorruptCheckpoint(CorruptionKind.BAD_MANIFEST, f"{name!r} is not text")
    return value


def _number(record: Mapping[str, Any], name: str) -> float | None:
    value = record.get(name)
    if value is None or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise CorruptCheckpoint(CorruptionKind.BAD_MANIFEST, f"{name!r} is not a finite number")


def _progress(record: Mapping[str, Any]) -> Progress:
    cursor = _mapping(record.get("cursor"), "'cursor'")
    _count(record, "tokens")
    _count(cursor, "samples")
    try:
        if not all(type(number) is int and 0 <= number < 2**63 for lane in cursor["lanes"] for number in lane):
            raise CorruptCheckpoint(CorruptionKind.BAD_MANIFEST, "a lane holds values that are not counts")
        return Progress.from_json(record)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptCheckpoint(CorruptionKind.BAD_MANIFEST, "'progress' has the wrong fields") from error


def _contract(value: object) -> Reproducibility:
    if not isinstance(value, str) or value not in list(Reproducibility):
        raise CorruptCheckpoint(CorruptionKind.BAD_MANIFEST, "'contract' is unknown")
    return Reproducibility(value)


def key_record(key: WrappedKey | None) -> Mapping[str, str] | None:
    """Return ``key`` as JSON."""
    return None if key is None else {"key_id": key.key_id, "wrapped_key": b64encode(key.data).decode("ascii")}


def key_from_record(value: object) -> WrappedKey | None:
    """Return the key from the JSON of ``key_record``; raises ``CorruptCheckpoint`` for anything else."""
    if value is None:
        return None
    record = _mapping(value, "'encryption'")
    try:
        return WrappedKey(_text(record, "key_id"), b64decode(_text(record, "wrapped_key"), validate=True))
    except ValueError as error:
        raise CorruptCheckpoint(CorruptionKind.BAD_MANIFEST, "'wrapped_key' is not base64") from error


def _conditions(record: Mapping[str, Any]) -> Mapping[str, str]:
    if not all(isinstance(value, str) for value in record.values()):
        raise CorruptCheckpoint(CorruptionKind.BAD_MANIFEST, "'conditions' holds values that are not text")
    return record


def stored_files(records: object) -> Sequence[CheckpointFile]:
    """Return the files that a JSON list describes; raises ``CorruptCheckpoint`` if it does not."""
    if not isinstance(records, list):
        raise CorruptCheckpoint(CorruptionKind.BAD_MANIFEST, "'files' is not a list")
    files = [_file(_mapping(record, "a file")) for record in records]
    if len({file.path for file in files}) != len(files):
        raise CorruptCheckpoint(CorruptionKind.BAD_MANIFEST, "a file is listed twice")
    return files


def _file(record: Mapping[str, Any]) -> CheckpointFile:
    path = _text(record, "path")
    _check_path(path)
    return CheckpointFile(path, _count(record, "size"), _text(record, "hash"))


def check_names(paths: Iterable[str]) -> None:
    """Raise ``CorruptCheckpoint`` unless one checkpoint can contain files of all these names."""
    seen = set()
    for path in sorted(paths):
        _check_path(path)
        if path in seen or any(str(folder) in seen for folder in PurePosixPath(path).parents):
            raise CorruptCheckpoint(
                CorruptionKind.BAD_MANIFEST, f"{path!r} is the name of more than one file or folder"
            )
        seen.add(path)


def _check_path(path: str) -> None:
    pure = PurePosixPath(path)
    is_inside = not pure.is_absolute() and ".." not in pure.parts and path not in {"", ".", MANIFEST, COMMIT}
    if not is_inside or str(pure) != path or "\0" in path:
        raise CorruptCheckpoint(
            CorruptionKind.BAD_MANIFEST, f"it lists {path[:200]!r}, which is not a normal path inside the checkpoint"
        )
