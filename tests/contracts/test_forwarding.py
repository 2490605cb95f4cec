"""Wrappers keep the promises of what they wrap: the forwarding bases, and the proxies that drills put into a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.state_store.memory import MemoryStateStore
from holdfast.adapters.token_cache.memory import MemoryTokenCache
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.bootstrap.verification.faults import FaultyStateStore, FaultyTrainable, Hooks
from holdfast.domain.checkpoints.retention import Retention
from holdfast.ports.forwarding.data_source import ForwardingDataSource
from holdfast.ports.forwarding.optimizer import ForwardingTrainable, ForwardingUpdate
from holdfast.ports.forwarding.process_group import ForwardingProcessGroup
from holdfast.ports.forwarding.state_store import ForwardingStateStore
from holdfast.ports.forwarding.token_cache import ForwardingTokenCache
from holdfast.ports.forwarding.tokenizer import ForwardingTokenizer
from holdfast.ports.optimizer import Optimizer
from tests.contracts.test_data_source import TestMemoryDataSource as MemoryDataSourceSuite
from tests.contracts.test_optimizer import TestMemoryOptimizer as MemoryOptimizerSuite
from tests.contracts.test_process_group import TestMemoryProcessGroup as MemoryProcessGroupSuite
from tests.contracts.test_state_store import TestDiskStateStore as DiskStateStoreSuite
from tests.contracts.test_state_store import TestMemoryStateStore as MemoryStateStoreSuite
from tests.contracts.test_token_cache import TestMemoryTokenCache as MemoryTokenCacheSuite
from tests.contracts.test_tokenizer import TestMemoryTokenizer as MemoryTokenizerSuite

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.ports.optimizer import Trainable


class Wrapping(Optimizer):
    """Puts ``wrap`` around whatever ``inner`` prepares."""

    def __init__(self, inner: Optimizer, wrap: Callable[[Trainable], Trainable]) -> None:
        self.inner, self.wrap = inner, wrap

    def prepare(self, model: object) -> Trainable:
        return self.wrap(self.inner.prepare(model))


class WithUpdates(ForwardingTrainable):
    """Forwards to the updates of ``inner``, too."""

    def update(self, *, step, learning_rate):
        return ForwardingUpdate(super().update(step=step, learning_rate=learning_rate))


class TestForwardingTrainable(MemoryOptimizerSuite):
    wrap = WithUpdates

    def make_optimizer(self, *, seed=0):
        return Wrapping(super().make_optimizer(seed=seed), type(self).wrap)

    def prepare_short_of_memory(self):
        trainable, allocated = super().prepare_short_of_memory()
        return type(self).wrap(trainable), allocated


class TestFaultyTrainable(TestForwardingTrainable):
    def wrap(inner):  # noqa: N805  no method: called by the class
        return FaultyTrainable(inner, Hooks())


class TestForwardingStateStore(MemoryStateStoreSuite):
    @pytest.fixture
    def new_store(self):
        return lambda: ForwardingStateStore(MemoryStateStore(Retention(self.keep)))


class TestFaultyStateStore(DiskStateStoreSuite):
    def open_as(self, rank, root):
        return FaultyStateStore(super().open_as(rank, root), Hooks())


class TestForwardingDataSource(MemoryDataSourceSuite):
    @pytest.fixture
    def source(self, units):
        return ForwardingDataSource(MemoryDataSource(units))

    @pytest.fixture
    def damaged(self):
        return ForwardingDataSource(MemoryDataSource({"unit": ["good", 5, "too"]})), 1


class TestForwardingTokenCache(MemoryTokenCacheSuite):
    @pytest.fixture
    def new_cache(self):
        return lambda *arguments, **options: ForwardingTokenCache(MemoryTokenCache(*arguments, **options))


class TestForwardingTokenizer(MemoryTokenizerSuite):
    @pytest.fixture
    def tokenizer(self):
        return ForwardingTokenizer(MemoryTokenizer())


class TestForwardingProcessGroup(MemoryProcessGroupSuite):
    def on_each_rank(self, task, *, timeout_seconds):
        return super().on_each_rank(lambda group: task(ForwardingProcessGroup(group)), timeout_seconds=timeout_seconds)
