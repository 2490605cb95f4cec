"""Every token cache keeps the port's promise."""

from __future__ import annotations

import os
import shutil
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.adapters.key_provider.memory import MemoryKeyProvider
from holdfast.adapters.shared.token_store.token_encryption import ShardEncryption
from holdfast.adapters.token_cache.disk import DiskTokenCache
from holdfast.adapters.token_cache.memory import MemoryTokenCache
from holdfast.ports.testing.token_cache import TokenCacheContract


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
        return {"encryption": ShardEncryption(MemoryKeyProvider(b"\x01" * 32))}
