"""Shares of a state that the ranks of a failed run left, each by itself, and the checkpoint that is made of them.

shares/<save_id>/                          the files of all ranks
shares/<save_id>/.ranks/rank-00001.json    the manifest of that rank's files, which are durable
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, final
from uuid import uuid4

from holdfast.adapters.state_store.checkpoint_writer import write_parts
from holdfast.adapters.state_store.corruption import CorruptCheckpoint
from holdfast.adapters.state_store.manifest import COMMIT, MANIFEST, Manifest, OtherSchemaError
from holdfast.adapters.state_store.sharded_save import RANKS, record_of
from holdfast.adapters.state_store.store_folder import is_there
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from holdfast.adapters.shared.files.file_operations import FileOperations
    from holdfast.adapters.state_store.checkpoint_writer import CheckpointWriter
    from holdfast.ports.state_store import JoinedPart, Snapshot

_RECORD = re.compile(r"rank-(\d{5})\.json")


@final
class LeftShares:
    """The sets of shares under ``root``; one process at a time may complete a set. All methods raise ``OSError``."""

    def __init__(self, root: Path, files: FileOperations, writer: CheckpointWriter) -> None:
        self._root = root
        self._files = files
        self._writer = writer

    def leave(self, snapshot: Snapshot) -> None:
        """Write the parts of one rank's ``snapshot`` durably, without waiting for other ranks."""
        share = snapshot.share
        assert share is not None
        folder = self._root / share.save_id
        inner = {
            parent for part in snapshot.parts for parent in (folder / part.name).parents if folder in parent.parents
        }
        folders = [self._root, folder, folder / RANKS, *sorted(inner)]
        for path in folders:
            with contextlib.suppress(FileExistsError):  # another rank was first
                self._files.make_folder(path)
        stored = write_parts(self._files, snapshot, folder, None)
        manifest = Manifest(share.save_id, 0, replace(snapshot, parts=(), share=None), stored)
        for path in reversed(folders):
            self._files.sync_folder(path)
        self._write_whole(folder / RANKS / record_of(share.rank), manifest.to_bytes())
        self._files.sync_folder(folder / RANKS)

    def folders(self) -> Sequence[Path]:
        """Return the folders of all sets."""
        return [path for path in sorted(self._root.iterdir()) if path.is_dir()] if self._root.is_dir() else []

    def complete(
        self,
        folder: Path,
        num_ranks: int,
        joined: Callable[[], Sequence[JoinedPart]],
        *,
        generation: int,
        newer_than: int,
    ) -> Manifest | None:
        """Make a complete checkpoint in ``folder`` of the shares there; return its manifest. Repeatable after a crash.

        ``joined`` returns the files that are made of those of the ranks. None, with nothing changed, if its step is not
        later than ``newer_than``. Raises ``StateError`` unless each of ``num_ranks`` ranks has left its share of the
        same step, and if a file is damaged.
        """
        is_sealed = is_there(folder / COMMIT)
        shares = [self._read(folder / MANIFEST)] if is_sealed else self._shares_in(folder, num_ranks)
        if shares[0].progress.step <= newer_than:
            return None
        manifest = shares[0] if is_sealed else self._joined(folder, shares, joined(), generation)
        self._keep_only(folder, {folder / file.path for file in manifest.files} | {folder / MANIFEST, folder / COMMIT})
        return manifest

    def remove(self, folder: Path) -> None:
        """Delete the set ``folder``."""
        self._files.remove_tree(folder)

    def _shares_in(self, folder: Path, num_ranks: int) -> Sequence[Manifest]:
        """Return the manifests of all ranks in the order of ranks."""
        records = {int(match[1]) for path in self._records(folder) if (match := _RECORD.fullmatch(path.name))}
        if missing := sorted(set(range(num_ranks)) - records):
            msg = f"rank {missing[0]} of {num_ranks} left none"
            raise StateError(msg)
        if max(records) >= num_ranks:
            msg = f"{max(records) + 1} ranks or more left them, and {num_ranks} continue"
            raise StateError(msg)
        found = [self._read(folder / RANKS / record_of(rank)) for rank in range(num_ranks)]
        if len(steps := {manifest.progress.step for manifest in found}) > 1:
            msg = f"the ranks were at different steps, {min(steps)} to {max(steps)}"
            raise StateError(msg)
        return found

    def _joined(
        self, folder: Path, shares: Sequence[Manifest], joined: Sequence[JoinedPart], generation: int
    ) -> Manifest:
        for path in [folder / MANIFEST, *(folder / part.name for part in joined)]:
            if is_there(path):  # of an attempt that a crash ended
                self._files.remove_file(path)
        stored = self._writer.join(joined, folder, [file for share in shares for file in share.files])
        first = shares[0].snapshot
        cursor = Cursor.join([share.progress.cursor for share in shares])
        told = replace(first, progress=replace(first.progress, cursor=cursor))
        manifest = Manifest(folder.name, generation, told, stored)
        self._writer.seal(folder, manifest)
        self._files.sync_folder(folder)
        return manifest

    def _keep_only(self, folder: Path, listed: set[Path]) -> None:
        """Delete the files of ``folder`` that are not ``listed``, and the folders that are then empty."""
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    self._files.remove_folder(path)
                else:
                    self._files.sync_folder(path)
            elif path not in listed:
                self._files.remove_file(path)
        self._files.sync_folder(folder)

    def _records(self, folder: Path) -> Sequence[Path]:
        return sorted((folder / RANKS).iterdir()) if (folder / RANKS).is_dir() else []

    def _read(self, path: Path) -> Manifest:
        try:
            with self._files.open_file(path) as file:
                return Manifest.from_bytes(file.read())
        except (CorruptCheckpoint, OtherSchemaError) as error:
            msg = f"{path} is damaged or of another version: {error}"
            raise StateError(msg) from error

    def _write_whole(self, path: Path, data: bytes) -> None:
        draft = path.with_name(f"{path.name}.{uuid4().hex}")
        self._files.write_file(draft, data)
        self._files.sync_file(draft)
        self._files.rename(draft, path)
