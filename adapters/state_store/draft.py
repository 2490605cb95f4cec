"""A checkpoint under way: written, hashed and made durable before it gets its name."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from adapters.state_store.defect import Defect
from adapters.state_store.manifest import COMMIT, MANIFEST, Manifest, StoredFile, commit_of
from adapters.state_store.tree import Tree, hash_file, read_tree
from domain.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.shared.file_operations import FileOperations
    from ports.state_store import Snapshot


def write_draft(files: FileOperations, snapshot: Snapshot, folder: Path, *, generation: int) -> Manifest:
    """Write ``snapshot`` into the new ``folder`` and return its manifest; all is durable but the folder's own name.

    COMMIT is the last file to be written, after all that it vouches for is durable. Raises what a part raises,
    ``OSError``, and ``StateError`` if a part wrote what could not be read back.
    """
    files.make_folder(folder)
    for part in snapshot.parts:
        part.write(folder)
    try:
        tree = read_tree(folder)
        manifest = _describe(files, snapshot, folder, tree, generation)
        data = manifest.to_bytes()
        Manifest.from_bytes(data)
    except Defect as defect:
        msg = f"step {snapshot.progress.step} cannot be saved, its parts are at fault: {defect}"
        raise StateError(msg) from defect
    _write_durably(files, folder / MANIFEST, data)
    _write_durably(files, folder / COMMIT, commit_of(data))
    for inner in tree.folders:
        files.sync_folder(inner)
    return manifest


def _describe(files: FileOperations, snapshot: Snapshot, folder: Path, tree: Tree, generation: int) -> Manifest:
    stored = []
    for path, size in sorted(tree.files.items()):
        stored.append(StoredFile(path, size, hash_file(files, folder / path)))
        files.sync_file(folder / path)
    return Manifest(uuid4().hex, generation, snapshot.progress, snapshot.reason, stored, snapshot.evaluation_loss)


def _write_durably(files: FileOperations, path: Path, data: bytes) -> None:
    files.write_file(path, data)
    files.sync_file(path)
