"""Every state store keeps the port's promise."""

from __future__ import annotations

import os
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from holdfast.adapters.key_provider.memory import MemoryKeyProvider
from holdfast.adapters.shared.encryption.streaming_aead import encrypted_size
from holdfast.adapters.state_store.archive.checkpoint_archive import CheckpointArchive
from holdfast.adapters.state_store.archive.lease import ArchiveLease
from holdfast.adapters.state_store.archive.local_object_store import LocalObjectStore
from holdfast.adapters.state_store.checkpoint_encryption import CheckpointEncryption
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.adapters.state_store.memory import MemoryStateStore
from holdfast.adapters.state_store.tiered import TieredStateStore
from holdfast.domain.checkpoints.retention import Retention
from holdfast.ports.testing.state_store import StateStoreContract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from holdfast.ports.state_store import StateStore


class TestMemoryStateStore(StateStoreContract):
    @pytest.fixture
    def new_store(self) -> Callable[[], StateStore]:
        return lambda: MemoryStateStore(Retention(self.keep))


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
            store = self.open(root)
            roots[store] = root
            return store

        return new

    @pytest.fixture
    def reopen(self, roots: dict[StateStore, Path]) -> Callable[[StateStore], StateStore]:
        return lambda store: self.open(roots[store])

    @pytest.fixture
    def open_rank(self, folder: Path) -> Callable[[], StateStore]:
        numbers = count()
        return lambda: self.open_as(next(numbers), folder / "shared")

    def open(self, root: Path) -> StateStore:
        """Return the store under ``root``, as each process would open it."""
        return self.open_as(0, root)

    def open_as(self, rank: int, root: Path) -> StateStore:
        """Return the store under ``root`` as ``rank`` would open it."""
        return DiskStateStore(root, Retention(self.keep))


class TestEncryptedDiskStateStore(TestDiskStateStore):
    @override
    def open_as(self, rank: int, root: Path) -> StateStore:
        encryption = CheckpointEncryption(MemoryKeyProvider(bytes(range(32))), root.parent)
        return DiskStateStore(root, Retention(self.keep), encryption=encryption)

    @override
    def stored_bytes(self, files: Mapping[str, bytes]) -> int:
        return sum(encrypted_size(len(data)) for data in files.values())


class TestTieredStateStore(TestDiskStateStore):
    @override
    def open_as(self, rank: int, root: Path) -> StateStore:
        if rank > 0:
            return DiskStateStore(root, Retention(self.keep))
        objects = LocalObjectStore(root.with_suffix(".archive"))
        lease = ArchiveLease(objects, say=lambda _: None)
        store = TieredStateStore(
            DiskStateStore(root, Retention(self.keep)),
            CheckpointArchive(objects, lease=lease),
            lease,
            Retention(self.keep),
            tell=lambda _: None,
            patience=30.0,
        )
        self.blocks.close()  # whoever opened it before has ended
        self.blocks.enter_context(store.archiving())
        return store

    @pytest.fixture(autouse=True)
    def archived(self, folder: Path) -> Iterator[None]:
        """Let each store use its archive until the test ends."""
        with ExitStack() as self.blocks:
            yield
