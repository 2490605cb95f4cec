"""The contract of ``StateStore`` on retention."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from holdfast.domain.checkpoints.retention import RollBackFloor
from holdfast.ports.testing.snapshots import snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.ports.state_store import Loaded, StateStore


class StateStoreRetention:
    """The contract of ``StateStore`` on older checkpoints; ``keep`` is the number of retained checkpoints."""

    keep: ClassVar[int] = 3

    def contents(self, loaded: Loaded) -> Mapping[str, bytes]:
        """Return the bytes of the loaded parts by file name."""
        raise NotImplementedError

    def test_retention_keeps_the_newest(self, store: StateStore, reopen: Callable[[StateStore], StateStore]) -> None:
        """The newest ``keep`` checkpoints are retained at all times."""
        for step in range(1, 2 * self.keep + 2):
            store.save(snapshot_of(step, {"model": b"%d" % step}))
            steps = [info.progress.step for info in reopen(store).list()]
            assert steps == list(range(max(1, step - self.keep + 1), step + 1))
            assert self.contents(store.load()) == {"model": b"%d" % step}

    def test_retention_spares_what_was_just_saved(self, store: StateStore) -> None:
        """If a saved step is lower than the stored steps, its own save does not delete it."""
        for step in range(2, self.keep + 2):
            store.save(snapshot_of(step, {}))
        saved = store.save(snapshot_of(1, {"model": b"late"}))
        assert saved in store.list()

    def test_retention_spares_the_way_back(self, store: StateStore, reopen: Callable[[StateStore], StateStore]) -> None:
        """Checkpoints that ``spare`` protects are retained besides the newest, until the next call of ``spare``."""
        last = 6 + self.keep
        for step in range(1, last + 1):
            store.spare(RollBackFloor(step=5, every=2))
            store.save(snapshot_of(step, {}))
            store.flush()  # what is being copied elsewhere would stay too
        newest = range(last - self.keep + 1, last + 1)
        assert [info.progress.step for info in reopen(store).list()] == sorted({4, *range(6, last + 1, 2), *newest})
        store.spare(RollBackFloor(step=last, every=1))
        store.save(snapshot_of(last + 1, {}))
        assert [info.progress.step for info in reopen(store).list()] == sorted({last, last + 1, *newest[1:]})
