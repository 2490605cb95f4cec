"""The folder of a token cache: ownership, staging and quarantine."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, final
from uuid import uuid4

from holdfast.adapters.shared.files.committed_folder import delete_abandoned, locked_draft, make_folders, move
from holdfast.adapters.shared.files.file_lock import locked, open_folder
from holdfast.adapters.shared.files.file_operations import write_whole
from holdfast.adapters.shared.files.regular_file import parse_json, read_alike, read_regular, sealed, unsealed
from holdfast.adapters.shared.token_store.folder_operations import CorruptTokensError, storing
from holdfast.adapters.shared.token_store.token_manifest import MANIFEST, is_encrypted_in
from holdfast.domain.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from holdfast.adapters.shared.token_store.folder_operations import TokenFileOperations

MARKER = "holdfast-token-cache.json"
VERSIONS = ".versions"
SCHEMA = 1


@final
class TokenFolder:
    """A folder with only files of Holdfast, shared by any number of processes.

        holdfast-token-cache.json   the marker: Holdfast wrote everything here and may delete it
        .tmp/                       writes and deletions in progress; each entry is locked by its process
        .quarantine/                damaged shards
        .erased/                    a record of each erased dataset
        .versions/                  a record of each version of a dataset

    Nothing is created before ``prepare``. Methods raise ``OSError``, and ``ConfigurationError`` for a folder that has
    content but no marker, which is never written to. Locks are ``flock``s on the folders themselves, so they end with
    their process. Either all shards of a folder are encrypted or none; a shard of the other kind is refused.
    """

    def __init__(self, root: Path, files: TokenFileOperations, *, is_encrypted: bool = False) -> None:
        self.root = root
        self.files = files
        self.quarantine = root / ".quarantine"
        self.drafts = root / ".tmp"
        self._is_encrypted = is_encrypted
        self._is_prepared = False

    def check(self) -> bool:
        """Return whether the folder has the marker; raises ``ConfigurationError`` if it has other content."""
        try:
            names = [path.name for path in self.root.iterdir()]
        except FileNotFoundError:
            return False
        if MARKER in names:
            _check_kind(self.root, was_encrypted=holds_encrypted(self.root), is_encrypted=self._is_encrypted)
            return True
        if any(not name.startswith(MARKER) for name in names):
            msg = f"{self.root} holds files that Holdfast did not write: choose an empty or a new folder for the tokens"
            raise ConfigurationError(msg)
        return False

    def prepare(self) -> None:
        """Create the missing folders, and delete the unfinished writes of dead processes."""
        if self._is_prepared:
            return
        make_folders(self.files, self.root)
        with self.locked():
            if not self.check() or _read_marker(self.root / MARKER) is None:
                self._mark()
            for folder in (self.drafts, self.quarantine):
                if not folder.is_dir():
                    self.files.make_folder(folder)
            delete_abandoned(self.files, self.drafts.iterdir())
            self.files.sync_folder(self.root)
        self._is_prepared = True

    def sweep(self) -> None:
        """Delete the unfinished writes of dead processes, if there are any and this process may delete here."""
        with contextlib.suppress(OSError):
            if any(self.drafts.iterdir()):
                with self.locked():
                    delete_abandoned(self.files, self.drafts.iterdir())

    def locked(self) -> AbstractContextManager[None]:
        """Prevent other processes and threads from counting and deleting within the block."""
        return locked(open_folder(self.root))

    @contextlib.contextmanager
    def draft(self) -> Iterator[Path]:
        """Yield a new folder to write into, deleted at the end unless it was published. Raises ``StateError``."""
        with contextlib.ExitStack() as stack:
            with storing("a draft", self.root):
                path = stack.enter_context(locked_draft(self.files, self.drafts / uuid4().hex, self.root))
            yield path

    def set_aside(self, path: Path) -> Path | None:
        """Move a damaged folder into quarantine and return its new path; None if it no longer exists."""
        target = self.quarantine / f"{path.parent.name[:60]}.{path.name}.{uuid4().hex[:8]}"
        make_folders(self.files, self.quarantine)
        try:
            move(self.files, path, target)
        except FileNotFoundError:
            return None
        return target

    def throw_away(self, path: Path) -> None:
        """Move a folder away, then delete it, so that no process ever sees an incomplete folder."""
        grave = self.drafts / uuid4().hex
        move(self.files, path, grave)
        self.files.remove_tree(grave)

    def _mark(self) -> None:
        for path in self.root.glob(f"{MARKER}.*"):
            self.files.remove_file(path)
        told = {"schema": SCHEMA, "written_by": "holdfast", "holds": "tokens; may be deleted as a whole"}
        text = json.dumps(sealed({**told, "encrypted": True} if self._is_encrypted else told))
        write_whole(self.files, self.root / MARKER, f"{text}\n".encode("ascii"))


def holds_encrypted(root: Path) -> bool:
    """Return whether the tokens in the cache at ``root`` are encrypted; raises errors as ``TokenFolder.check`` does.

    If the marker is damaged, the shards tell.
    """
    told = _read_marker(root / MARKER)
    return _shards_are_encrypted(root) if told is None else told


def _read_marker(path: Path) -> bool | None:
    """Return whether the marker says that the tokens are encrypted, None if it is damaged."""
    try:
        marker = unsealed(parse_json(read_alike(path)))
        schema, was_encrypted = marker["schema"], marker.get("encrypted", False)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if schema != SCHEMA:
        msg = f"{path} is of another version of Holdfast (schema {schema}): use that version, or choose another folder"
        raise ConfigurationError(msg)
    return bool(was_encrypted)


def _shards_are_encrypted(root: Path) -> bool:
    """Return whether the first shard that can be read is encrypted; raises ``ConfigurationError`` if there is none."""
    for path in sorted(root.glob(f"[!.]*/*/{MANIFEST}")):
        with contextlib.suppress(CorruptTokensError, DataError, OSError):
            return is_encrypted_in(read_regular(path))
    msg = f"{root / MARKER} is damaged, and no shard tells whose folder it is: delete the folder if it is a token cache"
    raise ConfigurationError(msg)


def _check_kind(root: Path, *, was_encrypted: bool, is_encrypted: bool) -> None:
    if was_encrypted and not is_encrypted:
        msg = f"the tokens in {root} are encrypted: name their key with data.cache.encryption.key_from"
        raise ConfigurationError(msg)
    if is_encrypted and not was_encrypted:
        msg = (
            f"the tokens in {root} are not encrypted, and those of a run with data.cache.encryption must not "
            "be mixed with them: name another folder with data.cache.dir"
        )
        raise ConfigurationError(msg)
