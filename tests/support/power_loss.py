"""What a disk may hold after a power loss: a worst case of POSIX, from the operations that were done.

- Bytes of a file that was not synced may be missing, cut, zeros of the right length, or all there.
- Each name in a folder is, on its own, what it was at the folder's last sync or what any later operation made of it.
  So a rename may have happened in one folder and not in the other, and of two renames only the second.
- A folder that nobody can reach by names that are there is gone.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.files.file_operations import FileOperations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from typing_extensions import Buffer

Tree = frozenset[tuple[str, "bytes | Tree"]]
"""A folder: the names in it, each with the bytes of a file or with another folder."""


@dataclass
class File:
    """A file, and whether its bytes are durable."""

    data: bytes
    is_synced: bool

    def states(self, _hidden: frozenset[str]) -> list[bytes]:
        half = self.data[: len(self.data) // 2]
        return [self.data] if self.is_synced else list({b"", half, bytes(len(self.data)), self.data})


@dataclass
class Folder:
    """A folder: what its names stand for now, and all that each may stand for after a power loss."""

    now: dict[str, File | Folder] = field(default_factory=dict)
    held: dict[str, list[File | Folder | None]] = field(default_factory=dict)

    def put(self, name: str, inode: File | Folder | None) -> None:
        self.held.setdefault(name, [self.now.get(name)])
        if inode is None:
            del self.now[name]
        else:
            self.now[name] = inode
        if not any(inode is known for known in self.held[name]):
            self.held[name].append(inode)

    def states(self, hidden: frozenset[str] = frozenset()) -> Iterator[Tree]:
        """Yield each tree that this folder may be; folders named as in ``hidden`` are shown empty."""
        names = sorted(self.now.keys() | self.held.keys())
        choices = [list(self._choices(name, hidden)) for name in names]
        for chosen in limited(choices):
            pairs = zip(names, chosen, strict=True)
            yield frozenset((name, content) for name, content in pairs if content is not None)

    def _choices(self, name: str, hidden: frozenset[str]) -> set[bytes | Tree | None]:
        found: set[bytes | Tree | None] = set()
        for inode in self.held.get(name, [self.now.get(name)]):
            if inode is None:
                found.add(None)
            elif name in hidden:
                found.add(frozenset())
            else:
                found.update(inode.states(hidden))
        return found


MOST = 4096
"""States of one folder that are enumerated; of more, so many are drawn."""


def limited(choices: list[list[Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield all combinations of one of each, or ``MOST`` of them by chance if there are more."""
    if math.prod(map(len, choices)) <= MOST:
        yield from itertools.product(*choices)
        return
    chance = random.Random(0)
    for _ in range(MOST):
        yield tuple(chance.choice(sorted(options, key=repr)) for options in choices)


class RecordedFiles(FileOperations):
    """File operations that are followed: ``look`` is called after each, with the names under ``root`` as of then.

    All under ``root`` is durable at the beginning. ``states`` are what it may be after a power loss at this moment.
    """

    def __init__(self, root: Path, look: Callable[[RecordedFiles], object] = lambda _: None) -> None:
        self._root = root
        self._look = look
        self._top = self._read(root)

    def states(self, hidden: frozenset[str] = frozenset()) -> Iterator[Tree]:
        return self._top.states(hidden)

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        self._name(path, Folder())

    def write_file(self, path: Path, data: bytes) -> None:
        super().write_file(path, data)
        self._name(path, File(path.read_bytes(), is_synced=False))

    def write_chunks(self, path: Path, chunks: Iterable[Buffer]) -> None:
        super().write_chunks(path, chunks)
        self._name(path, File(path.read_bytes(), is_synced=False))

    def sync_file(self, path: Path) -> None:
        self._at(path).is_synced = True
        self._look(self)

    def sync_folder(self, path: Path) -> None:
        if path == self._root or self._root in path.parents:
            self._at(path).held.clear()
            self._look(self)

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        inode = self._at(source)
        self._at(source.parent).put(source.name, None)
        self._name(target, inode)

    def remove_file(self, path: Path) -> None:
        super().remove_file(path)
        self._name(path, None)

    def remove_folder(self, path: Path) -> None:
        super().remove_folder(path)
        self._name(path, None)

    def _name(self, path: Path, inode: File | Folder | None) -> None:
        self._at(path.parent).put(path.name, inode)
        self._look(self)

    def _at(self, path: Path) -> Any:
        inode: Any = self._top
        for name in path.relative_to(self._root).parts:
            inode = inode.now[name]
        return inode

    def _read(self, folder: Path) -> Folder:
        return Folder(
            {
                path.name: self._read(path) if path.is_dir() else File(path.read_bytes(), is_synced=True)
                for path in folder.iterdir()
            }
        )


def write_tree(tree: Tree, folder: Path) -> None:
    """Make ``folder`` hold ``tree``."""
    folder.mkdir()
    for name, content in tree:
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            write_tree(content, folder / name)
