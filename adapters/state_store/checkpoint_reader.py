"""Verifies and opens stored checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from holdfast.adapters.state_store.checkpoint_verification import read_manifest, require_sound
from holdfast.adapters.state_store.corruption import CorruptCheckpoint, CorruptionKind
from holdfast.adapters.state_store.verified_read import verify_while_read
from holdfast.domain.checkpoints.roles import Role
from holdfast.domain.errors import NonFiniteState, StateError
from holdfast.ports.state_store import Loaded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from holdfast.adapters.shared.files.file_operations import FileOperations
    from holdfast.adapters.state_store.access_guard import AccessGuard
    from holdfast.adapters.state_store.checkpoint_encryption import CheckpointEncryption, DecryptedCopy
    from holdfast.adapters.state_store.manifest import CheckpointFile, Manifest
    from holdfast.ports.state_store import OpenFile


@final
class CheckpointReader:
    """Reads the checkpoint in a folder, decrypted with ``encryption`` if necessary, if ``guard`` allows it.

    Both methods raise ``CorruptCheckpoint`` for a damaged checkpoint, ``OSError`` if the disk cannot be read, and
    ``StateError`` for a missing key or another version.
    """

    def __init__(self, files: FileOperations, guard: AccessGuard, encryption: CheckpointEncryption | None) -> None:
        self._files = files
        self._door = guard
        self._encryption = encryption

    def load(self, folder: Path) -> Loaded:
        """Return the checkpoint, each byte of it verified."""
        self._door.require(Role.READ, f"reading {folder}")
        manifest = read_manifest(self._files, folder)
        if manifest.wrapped_key is None:
            require_sound(self._files, folder, manifest)
            return Loaded(manifest.info(str(folder)), folder)
        opened = self._decrypted(folder, manifest)
        return Loaded(manifest.info(str(folder)), opened.folder, owner=opened)

    def restore(self, folder: Path, into: Callable[[Path, OpenFile], object]) -> Loaded:
        """Pass the checkpoint to ``into``, which reads it verified."""
        self._door.require(Role.READ, f"reading {folder}")
        manifest = read_manifest(self._files, folder)
        if manifest.wrapped_key is None:
            require_sound(self._files, folder, manifest, hashing=False)
            _hand_over(self._files, folder, manifest.files, into)
            return Loaded(manifest.info(str(folder)), folder)
        opened = self._decrypted(folder, manifest)
        _hand_over(self._files, opened.folder, opened.files, into)
        return Loaded(manifest.info(str(folder)), opened.folder, owner=opened)

    def _decrypted(self, folder: Path, manifest: Manifest) -> DecryptedCopy:
        assert manifest.wrapped_key is not None
        self._door.require(Role.KEY, f"opening {folder}, which is encrypted,")
        require_sound(self._files, folder, manifest, hashing=False)
        if self._encryption is None:
            key = manifest.wrapped_key.key_id
            msg = f"{folder} is encrypted with the key {key}: name that key with state_store.encryption.key"
            raise StateError(msg)
        return self._encryption.open(self._files, folder, manifest)


def _hand_over(
    files: FileOperations, folder: Path, stored: Sequence[CheckpointFile], into: Callable[[Path, OpenFile], object]
) -> None:
    try:
        verify_while_read(files, folder, stored, into)
    except NonFiniteState as error:
        raise CorruptCheckpoint(CorruptionKind.NOT_FINITE, str(error)) from error
