"""An object store in a folder of a local or mounted file system."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.adapters.shared.files.committed_folder import make_folders
from holdfast.adapters.shared.files.file_operations import FileOperations, destroy_file, explain
from holdfast.adapters.state_store.archive.object_store import ObjectInfo, ObjectStore, count_nothing
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_CHUNK = 4 << 20


@final
class LocalObjectStore(ObjectStore):
    """Files under ``root``, each durable once created; a kill during an upload leaves a truncated file."""

    def __init__(self, root: Path, files: FileOperations | None = None) -> None:
        self._root = root.absolute()
        self._files = files or FileOperations()

    @override
    def name(self, key: str = "") -> str:
        return str(self._root / key)

    @override
    def find(self, folder: str = "") -> Mapping[str, ObjectInfo]:
        with self._doing("listed", folder):
            try:
                return dict(self._walk(self._root / folder))
            except FileNotFoundError:
                return {}

    @override
    def info(self, key: str) -> ObjectInfo | None:
        with self._doing("read", key):
            try:
                return ObjectInfo((self._root / key).lstat().st_size, None)
            except FileNotFoundError:
                return None

    @override
    def read(self, key: str) -> bytes | None:
        with self._doing("read", key):
            try:
                with self._files.open_file(self._root / key) as file:
                    return file.readall()
            except FileNotFoundError:
                return None

    @override
    def create(self, key: str, data: bytes) -> bool:
        return self._create(key, [data]) or self.read(key) == data

    @override
    def upload(self, key: str, path: Path, count: Callable[[int], object] = count_nothing) -> None:
        self._create(key, _counted(self._chunks(path), count))

    @override
    def remove(self, key: str) -> None:
        with self._doing("deleted", key), contextlib.suppress(FileNotFoundError):
            self._files.remove_file(self._root / key)
            self._files.sync_folder((self._root / key).parent)

    @override
    def destroy(self, key: str) -> None:
        with self._doing("deleted", key), contextlib.suppress(FileNotFoundError):
            destroy_file(self._files, self._root / key)

    @override
    def chunks(self, key: str, size: int) -> Iterator[bytes]:
        with self._doing("read", key):
            yield from self._chunks(self._root / key)

    @override
    def clear(self, is_litter: Callable[[str], bool]) -> None:
        with self._doing("deleted", ""):
            for current, _, _ in os.walk(self._root, topdown=False):
                folder = Path(current)
                if folder != self._root and is_litter(folder.relative_to(self._root).as_posix()):
                    self._remove_empty(folder)

    def _remove_empty(self, folder: Path) -> None:
        if not any(folder.iterdir()):
            self._files.remove_folder(folder)
            self._files.sync_folder(folder.parent)

    def _walk(self, folder: Path) -> Iterator[tuple[str, ObjectInfo]]:
        with os.scandir(folder) as entries:
            found = list(entries)
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(Path(entry.path))
            elif entry.is_file(follow_symlinks=False):
                key = Path(entry.path).relative_to(self._root).as_posix()
                yield key, ObjectInfo(entry.stat(follow_symlinks=False).st_size, None)

    def _create(self, key: str, chunks: Iterable[bytes]) -> bool:
        path = self._root / key
        with self._doing("written", key):
            make_folders(self._files, path.parent)
            try:
                self._files.write_chunks(path, chunks)
                self._files.sync_file(path)
                self._files.sync_folder(path.parent)
            except FileExistsError:
                return False
            except BaseException:
                with contextlib.suppress(OSError):
                    self._files.remove_file(path)
                raise
        return True

    def _chunks(self, path: Path) -> Iterator[bytes]:
        with self._files.open_file(path) as file:
            while chunk := file.read(_CHUNK):
                yield chunk

    @contextlib.contextmanager
    def _doing(self, what: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            msg = f"{self.name(key)} could not be {what}, {explain(error)}"
            raise StateError(msg) from error


def _counted(chunks: Iterable[bytes], count: Callable[[int], object]) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk
        count(len(chunk))
