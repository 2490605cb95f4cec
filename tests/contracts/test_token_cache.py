"""Every token cache keeps the port's promise."""

from __future__ import annotations

import os
import shutil
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from adapters.key_provider.memory import MemoryKeyProvider
from adapters.shared.token_folder.sealing import ShardSealing
from adapters.token_cache.disk import DiskTokenCache
from adapters.token_cache.memory import MemoryTokenCache
from ports.testing.token_cache import TokenCacheContract


class TestMemoryTokenCache(TokenCacheContract):
    @pytest.fixture
    def new_cache(self):
        return MemoryTokenCache


class TestDiskTokenCache(TokenCacheContract):
    @pytest.fixture
    def roots(self):
        return {}

    @pytest.fixture
    def options(self):
        return {}

    @pytest.fixture
    def new_cache(self, roots, options):
        with TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
            numbers = count()

            def new(**more):
                root = Path(folder) / str(next(numbers))
                cache = DiskTokenCache(root, "dataset", **options, **more)
                roots[cache] = root
                return cache

            yield new

    @pytest.fixture
    def reopen(self, roots, options):
        return lambda cache: DiskTokenCache(roots[cache], "dataset", **options)

    @pytest.fixture
    def destroy(self, roots):
        return lambda cache: shutil.rmtree(roots.pop(cache))


class TestEncryptedDiskTokenCache(TestDiskTokenCache):
    @pytest.fixture
    def options(self):
        return {"sealing": ShardSealing(MemoryKeyProvider(b"\x01" * 32))}
