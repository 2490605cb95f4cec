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
        """Return the files of the loaded parts."""
        raise NotImplementedError

    def state(self, store: StateStore) -> tuple[Sequence[CheckpointInfo], CheckpointInfo | None, Mapping[str, bytes]]:
        """Return all that the promise lets a caller see of ``store``."""
        raise NotImplementedError

    def test_later_steps_are_passed_over(self, store: StateStore, reopen: Callable[[StateStore], StateStore]) -> None:
        """``load`` up to a step gives the newest of that step or before, None before the first, and moves nothing."""
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
        """Later steps are neither loaded nor listed once superseded, and each can be saved anew, again and again."""
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
        """An empty store, and one that holds no later step, are as before."""
        store.supersede(3)
        assert store.load() == Loaded(None, None, ())
        store.save(snapshot_of(3, {"model": b"three"}))
        before = self.state(store)
        store.supersede(3)
        assert self.state(store) == before
