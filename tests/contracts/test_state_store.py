"""Every state store keeps the port's promise."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from adapters.state_store.disk import DiskStateStore
from adapters.state_store.memory import MemoryStateStore
from ports.testing.state_store import StateStoreContract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ports.state_store import StateStore


class TestMemoryStateStore(StateStoreContract):
    @pytest.fixture
    def new_store(self) -> Callable[[], StateStore]:
        return lambda: MemoryStateStore(keep=self.keep)


class TestDiskStateStore(StateStoreContract):
    own_files = frozenset({"MANIFEST.json", "COMMIT"})

    @pytest.fixture
    def roots(self) -> dict[StateStore, Path]:
        return {}

    @pytest.fixture
    def folder(self) -> Iterator[Path]:
        in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with TemporaryDirectory(dir=in_memory) as folder:
            yield Path(folder)

    @pytest.fixture
    def new_store(self, folder: Path, roots: dict[StateStore, Path]) -> Callable[[], StateStore]:
        numbers = count()

        def new() -> StateStore:
            root = folder / f"run-{next(numbers)}"
            store = DiskStateStore(root, keep=self.keep)
            roots[store] = root
            return store

        return new

    @pytest.fixture
    def reopen(self, roots: dict[StateStore, Path]) -> Callable[[StateStore], StateStore]:
        return lambda store: DiskStateStore(roots[store], keep=self.keep)
