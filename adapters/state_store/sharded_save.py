"""The rendezvous of the ranks that write one checkpoint: small files in its staging folder, and no collectives.

    .ranks/open.json         rank 0 has created the draft; holds the key that encrypts the files
    .ranks/rank-00001.json   the sizes and hashes of that rank's files, which are durable, or its error

Each file is written atomically. They are deleted before the checkpoint gets its name.
"""

from __future__ import annotations

import contextlib
import json
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn, final
from uuid import uuid4

from holdfast.adapters.state_store.corruption import CorruptCheckpoint
from holdfast.adapters.state_store.hashed_file import VerifiedPieces
from holdfast.adapters.state_store.hashing import hash_file
from holdfast.adapters.state_store.manifest import key_from_record, key_record, stored_files
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from holdfast.adapters.shared.files.file_operations import FileOperations
    from holdfast.adapters.state_store.checkpoint_encryption import FileCipher
    from holdfast.adapters.state_store.manifest import CheckpointFile
    from holdfast.ports.key_provider import WrappedKey
    from holdfast.ports.state_store import StateShare

RANKS = ".ranks"
_OPEN = "open.json"
_POLL_SECONDS = 0.05


def publish_key(files: FileOperations, folder: Path, key: WrappedKey | None) -> None:
    """Announce to the other ranks that the draft ``folder`` exists, and the key for its files."""
    files.make_folder(folder / RANKS)
    _leave(files, folder / RANKS / _OPEN, {"encryption": key_record(key)})


def await_key(files: FileOperations, folder: Path, share: StateShare) -> WrappedKey | None:
    """Wait until rank 0 has created the draft ``folder``; return its key, None if files are not encrypted.

    Raises ``StateError`` after ``share.patience`` seconds, or once the save is over.
    """
    deadline = time.monotonic() + share.patience
    while (record := _read(files, folder / RANKS / _OPEN)) is None:
        if share.is_over() or time.monotonic() > deadline:
            patience = f"{share.patience:.0f} s"
            msg = f"rank 0 did not create {folder} within {patience}, or has exited: look for the error in its output"
            raise StateError(msg)
        time.sleep(_POLL_SECONDS)
    return key_from_record(record.get("encryption"))


def report_files(files: FileOperations, folder: Path, rank: int, stored: Sequence[CheckpointFile]) -> None:
    """Report to rank 0 that the files ``stored`` are durable."""
    described = [{"path": file.path, "size": file.size, "hash": file.hash} for file in stored]
    _leave(files, folder / RANKS / record_of(rank), {"files": described})


def report_failure(files: FileOperations, folder: Path, rank: int, problem: object) -> None:
    """Report to rank 0 the error that prevents this rank's files, if the disk can still be written."""
    with contextlib.suppress(OSError):
        _leave(files, folder / RANKS / record_of(rank), {"problem": str(problem) or type(problem).__name__})


def await_reports(files: FileOperations, folder: Path, share: StateShare) -> Sequence[CheckpointFile]:
    """Wait for the files of all other ranks and return them as reported.

    Raises ``StateError`` if a rank reports a failure or does not report within ``share.patience`` seconds.
    """
    found: dict[int, Sequence[CheckpointFile]] = {}
    deadline = time.monotonic() + share.patience
    while missing := [rank for rank in range(1, share.num_ranks) if rank not in found]:
        for rank in missing:
            if (record := _read(files, folder / RANKS / record_of(rank))) is not None:
                found[rank] = _files_in(record, rank)
        if missing[0] not in found:
            if share.is_over() or time.monotonic() > deadline:
                msg = (
                    f"rank {missing[0]} of {share.num_ranks} did not write its part within {share.patience:.0f} s, "
                    "or has exited: look for the error in its output"
                )
                raise StateError(msg)
            time.sleep(_POLL_SECONDS)
    return [file for rank in sorted(found) for file in found[rank]]


@final
class StagedFileReader:
    """Reads files of the draft ``folder`` at any offset, decrypted if there is a ``cipher``.

    The bytes are compared with the hashes in ``stored``, or authenticated. Raises ``StateError`` if they are wrong.
    """

    def __init__(
        self, files: FileOperations, folder: Path, cipher: FileCipher | None, stored: Mapping[str, CheckpointFile]
    ) -> None:
        self._files = files
        self._folder = folder
        self._cipher = cipher
        self._stored = stored
        self._verified: set[str] = set()
        self._opened: dict[str, Callable[[int, int], bytes]] = {}
        self._stack = ExitStack()

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Return ``size`` bytes of the file ``name`` from ``offset`` on, fewer at its end."""
        if name not in self._opened:
            self._opened[name] = self._open(name)
        return self._opened[name](offset, size)

    def _open(self, name: str) -> Callable[[int, int], bytes]:
        file = self._stack.enter_context(self._files.open_file(self._folder / name))
        if self._cipher is not None:
            return self._stack.enter_context(self._cipher.open(name, file)).read
        pieces = VerifiedPieces(file, self._folder / name)
        if pieces.hash != self._stored[name].hash:
            self._check(self._stored[name])  # the first reading may have been wrong
            pieces = VerifiedPieces(file, self._folder / name)
            if pieces.hash != self._stored[name].hash:
                self._raise_damaged(name)
        self._verified.add(name)
        return pieces.read

    def check_others(self, own: Collection[str]) -> None:
        """Verify the other ranks' files that were not read; raises ``StateError``. ``own`` are this rank's files."""
        for name, file in self._stored.items():
            if name not in self._verified and name not in own:
                self._check(file)

    def _check(self, file: CheckpointFile) -> None:
        path = self._folder / file.path
        if path.stat().st_size != file.size or all(hash_file(self._files, path) != file.hash for _ in range(2)):
            self._raise_damaged(file.path)

    def _raise_damaged(self, name: str) -> NoReturn:
        msg = f"{self._folder / name} does not have the bytes that its rank wrote: check the disk and the network"
        raise StateError(msg)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()


def record_of(rank: int) -> str:
    """Return the name of the file in ``RANKS`` by which ``rank`` reports."""
    return f"rank-{rank:05d}.json"


def _leave(files: FileOperations, path: Path, record: Mapping[str, Any]) -> None:
    staging = path.with_name(f"{path.name}.{uuid4().hex}")  # an earlier attempt may have failed half-way
    files.write_file(staging, json.dumps(record).encode())
    files.sync_file(staging)
    files.rename(staging, path)


def _read(files: FileOperations, path: Path) -> Mapping[str, Any] | None:
    """Return the record at ``path``, None if it does not exist yet."""
    try:
        with files.open_file(path) as file:
            record = json.loads(file.read())
    except FileNotFoundError:
        return None
    assert isinstance(record, dict)
    return record


def _files_in(record: Mapping[str, Any], rank: int) -> Sequence[CheckpointFile]:
    if "problem" in record:
        msg = f"rank {rank} could not write its part: {record['problem']}"
        raise StateError(msg)
    try:
        return stored_files(record.get("files"))
    except CorruptCheckpoint as corruption:
        msg = f"rank {rank} described its files in the form of another version: {corruption}"
        raise StateError(msg) from corruption
