"""Erases encrypted tokens: destroys their wrapped keys, then deletes the rest."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, final
from uuid import uuid4

from holdfast.adapters.shared.files.committed_folder import erase, is_erased, lock_of_folder, make_folders, move
from holdfast.adapters.shared.files.file_operations import destroy_file
from holdfast.adapters.shared.files.regular_file import IrregularFileError, parse_json, read_regular
from holdfast.adapters.shared.token_store.duplicate_files import DUPLICATES, DUPLICATES_KEY
from holdfast.adapters.shared.token_store.token_folder import VERSIONS, TokenFolder
from holdfast.adapters.shared.token_store.token_manifest import MANIFEST, TOKENS
from holdfast.adapters.shared.token_store.token_shards import lock_to_evict
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.adapters.shared.token_store.folder_operations import TokenFileOperations

_LONGEST_NAME = 60  # of a dataset, in the names of its quarantined and half-erased folders


@dataclass(frozen=True, slots=True)
class ErasableTokens:
    """A folder with ``num_shards`` shards: a dataset, a shard in quarantine, a draft, or a half-erased dataset.

    A folder of duplicates has no shards.
    """

    folder: Path
    num_shards: int


@final
class TokenEraser:
    """Erases encrypted tokens in the cache at ``root``, all or those of ``dataset``; raises ``OSError``.

        .erased/<dataset>.<random>/ERASED.json   the record of one dataset: when it was erased, and ``by`` whom

    A dataset is first moved there, so that no process can begin to read it during the erasure; the next call also
    erases datasets that a crash left half erased.
    """

    def __init__(self, root: Path, files: TokenFileOperations, by: Mapping[str, str], dataset: str | None) -> None:
        self._folder = TokenFolder(root, files, is_encrypted=True)
        self._files = files
        self._by = by
        self._dataset = dataset
        self._graves = root / ".erased"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Prevent other processes from writing within the block; raises ``StateError`` if a process uses the tokens.

        Call ``found`` and ``erase`` within the block.
        """
        with self._folder.locked():
            for draft in _folders_in(self._folder.drafts):
                self._release(lock_of_folder(draft))
            for found in self.found():
                self._check_no_readers(found.folder)
            yield

    def found(self) -> Sequence[ErasableTokens]:
        """Return the folders that can be erased, including quarantined shards and remains of crashes.

        Raises ``StateError`` for a dataset that is a link or contains a link.
        """
        name = self._dataset
        datasets = [path for path in _folders_in(self._folder.root) if path.name == name or name is None]
        for dataset in datasets:
            _check_no_links(dataset)
        graves = [path for path in _folders_in(self._graves) if not is_erased(path)]
        others = [*_folders_in(self._folder.quarantine), *graves]
        prefix = "" if name is None else f"{name[:_LONGEST_NAME]}."
        folders = [*datasets, *(path for path in others if path.name.startswith(prefix))]
        if folders or name is None:  # a draft does not record its dataset
            # nor do duplicates, which the next search finds again
            folders = [*_folders_in(self._folder.drafts), *_folders_in(self._folder.root / DUPLICATES), *folders]
        return [ErasableTokens(path, len(_shards_in(path))) for path in folders]

    def versions(self) -> Sequence[Path]:
        """Return the records of versions of the erased datasets; a damaged record belongs to no dataset."""
        paths = sorted((self._folder.root / VERSIONS).glob("*.json"))
        return [path for path in paths if self._dataset in (None, _dataset_of(path))]

    def erase_version(self, path: Path) -> None:
        """Overwrite and delete the record of a version."""
        destroy_file(self._files, path)

    def erase(self, found: ErasableTokens) -> None:
        """Make ``found`` unreadable for good."""
        if found.folder.parent == self._folder.drafts:
            for path in _keys_in(found.folder):
                destroy_file(self._files, path)
            self._files.remove_tree(found.folder)
            self._files.sync_folder(self._folder.drafts)
            return
        grave = self._bury(found.folder)
        self._check_no_readers(grave)
        told = {
            "name": grave.name.rpartition(".")[0],
            "shards": found.num_shards,
            "erased_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "was_encrypted": True,
            "by": dict(self._by),
        }
        erase(self._files, grave, _keys_in(grave), told)

    def _bury(self, folder: Path) -> Path:
        if folder.parent == self._graves:
            return folder
        make_folders(self._files, self._graves)
        grave = self._graves / f"{folder.name}.{uuid4().hex[:8]}"
        move(self._files, folder, grave)
        return grave

    def _check_no_readers(self, folder: Path) -> None:
        for shard in _shards_in(folder):
            if (shard / TOKENS).exists():
                self._release(lock_to_evict(shard))

    def _release(self, lock: int | None) -> None:
        if lock is None:
            msg = f"a process uses the tokens in {self._folder.root}: wait for it or end it, and run the command again"
            raise StateError(msg)
        os.close(lock)


def _folders_in(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except FileNotFoundError:
        return []


def _check_no_links(dataset: Path) -> None:
    for path in (dataset, *dataset.rglob("*")):
        if path.is_symlink():
            msg = f"{path} is a link, which is not followed, so nothing was erased: remove it and run the command again"
            raise StateError(msg)


def _shards_in(folder: Path) -> list[Path]:
    return sorted({path.parent for name in (MANIFEST, TOKENS) for path in folder.rglob(name)})


def _dataset_of(version: Path) -> str | None:
    try:
        return str(parse_json(read_regular(version))["dataset"])
    except (IrregularFileError, ValueError, KeyError, TypeError):
        return None


def _keys_in(folder: Path) -> list[Path]:
    found = sorted([*folder.rglob(MANIFEST), *folder.rglob(DUPLICATES_KEY)])
    return [path for path in found if path.is_file() and not path.is_symlink()]
