"""The contract of ``StateStore`` on roll-backs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from holdfast.ports.state_store import CheckpointInfo, Loaded, StateStore
from holdfast.ports.testing.snapshots import snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class StateStoreReturns:
    """The contract of ``StateStore`` on the steps before and after a roll-back."""

    keep: ClassVar[int] = 3

    def contents(self, loaded: Loaded) -> Mapping[str, bytes]:
        """Return the bytes of the loaded parts by file name."""
        raise NotImplementedError

    def state(self, store: StateStore) -> tuple[Sequence[CheckpointInfo], CheckpointInfo | None, Mapping[str, bytes]]:
        """Return the visible state of ``store``, as ``StateStoreContract.state`` does."""
        raise NotImplementedError

    def test_later_steps_are_passed_over(self, store: StateStore, reopen: Callable[[StateStore], StateStore]) -> None:
        """``load`` with ``at_most`` returns the newest step up to it, or None, and moves no checkpoint."""
        saved = [store.save(snapshot_of(step, {"model": b"%d" % step})) for step in (2, 4, 6)][-self.keep :]
        for at_most in range(1, 8):
            fitting = [info for info in saved if info.progress.step <= at_most]
            loaded = reopen(store).load(at_most=at_most)
            assert loaded.info == (fitting[-1] if fitting else None)
            if fitting:
                assert self.contents(loaded) == {"model": b"%d" % fitting[-1].progress.step}
        assert list(store.list()) == saved

    def test_what_is_superseded_can_be_saved_again(
        self, store: StateStore, reopen: Callable[[StateStore], StateStore]
    ) -> None:
        """Superseded steps are neither loaded nor listed, and can be saved and superseded repeatedly."""
        first = []
        for step in range(1, self.keep + 2):
            first.append(store.save(snapshot_of(step, {"model": b"first"})))
            store.flush()  # what is being copied elsewhere outlives the next save's retention
        oldest = first[-self.keep]
        current = store
        for content in (b"second", b"third"):
            current.supersede(oldest.progress.step)
            current.flush()
            current = reopen(store)
            assert list(current.list()) == [oldest]
            assert current.load().info == oldest
            saved = current.save(snapshot_of(oldest.progress.step + 1, {"model": content}))
            assert list(current.list()) == [oldest, saved]
            assert self.contents(current.load()) == {"model": content}

    def test_superseding_nothing_changes_nothing(self, store: StateStore) -> None:
        """``supersede`` does not change a store without later steps, or an empty store."""
        store.supersede(3)
        assert store.load() == Loaded(None, None, ())
        store.save(snapshot_of(3, {"model": b"three"}))
        before = self.state(store)
        store.supersede(3)
        assert self.state(store) == before
