"""The contract of ``StateStore`` on checkpoints that several ranks write together."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Event
from typing import TYPE_CHECKING, final

import pytest

from holdfast.domain.errors import StateError
from holdfast.ports.state_store import JoinedPart, Loaded, Snapshot, StatePart, StateShare, StateStore
from holdfast.ports.testing.snapshots import BytesPart, FailingPart, snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


@final
@dataclass(frozen=True, slots=True)
class EndToEnd(JoinedPart):
    """A joined part: the concatenation of the files ``consumes``, read three bytes at a time."""

    name: str
    consumes: Sequence[str]

    def chunks(self, read: Callable[[str, int, int], bytes]) -> Iterator[bytes]:
        """Yield the bytes of the files."""
        for name in self.consumes:
            offset = 0
            while piece := read(name, offset, 3):
                yield piece
                offset += len(piece)


def shares_of(
    step: int, *, save_id: str = "a" * 32, patience: float = 60.0, is_over: Callable[[], bool] = lambda: False
) -> list[Snapshot]:
    """Return the shares of two ranks: each has a file that stays and a file that is joined with the other rank's."""
    slices = ["slices/0", "slices/1"]
    whole = snapshot_of(step, {})
    found = []
    for rank in range(2):
        parts: list[StatePart | JoinedPart] = [
            BytesPart(f"optimizer/{rank}", b"state of %d" % rank),
            BytesPart(slices[rank], b"weights of %d;" % rank),
        ]
        if rank == 0:
            parts += [EndToEnd("model", slices), BytesPart("config", b"{}")]
        found.append(replace(whole, parts=parts, share=StateShare(save_id, rank, 2, patience, is_over)))
    return found


FILES = {
    "config": b"{}",
    "model": b"weights of 0;weights of 1;",
    "optimizer/0": b"state of 0",
    "optimizer/1": b"state of 1",
}


class StateStoreShares:
    """The contract of a ``StateStore`` that ``takes_shares``; the tests skip other stores.

    ``open_rank`` opens the same store, which is empty at first, for another rank at each call.
    """

    @pytest.fixture
    def open_rank(self) -> Callable[[], StateStore]:
        """Return a function that opens the store."""
        pytest.skip("this store takes no shares")

    def contents(self, loaded: Loaded) -> Mapping[str, bytes]:
        """Return the bytes of the loaded parts by file name."""
        raise NotImplementedError

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_shares_make_one_checkpoint(self, open_rank: Callable[[], StateStore], order: tuple[int, int]) -> None:
        """In any order of ranks, a checkpoint has all ranks' files and the joined files, but no consumed files."""
        stores = [open_rank() for _ in range(2)]
        assert all(store.takes_shares for store in stores)
        shares = shares_of(4)
        with ThreadPoolExecutor(2) as pool:
            calls = [stores[0].save, stores[1].contribute]
            running = [pool.submit(calls[rank], shares[rank]) for rank in order]
            done = [future.result(timeout=90) for future in running]
        loaded = stores[1].load()
        assert self.contents(loaded) == FILES
        assert loaded.info == done[order.index(0)]
        assert loaded.info is not None
        assert loaded.info.progress == shares[0].progress

    @pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no room"), ValueError("a part's own")])
    @pytest.mark.parametrize("failing", [0, 1])
    def test_all_ranks_or_none(self, open_rank: Callable[[], StateStore], failing: int, error: Exception) -> None:
        """If a rank fails, nothing is stored, no rank waits for a timeout, and the store is unchanged."""
        stores = [open_rank() for _ in range(2)]
        stores[0].save(snapshot_of(1, {"model": b"one"}))
        over = Event()
        shares = shares_of(4, is_over=over.is_set)
        shares[failing] = replace(shares[failing], parts=[*shares[failing].parts, FailingPart(error, "optimizer/late")])
        with ThreadPoolExecutor(2) as pool:
            saving, other = pool.submit(stores[0].save, shares[0]), pool.submit(stores[1].contribute, shares[1])
            assert saving.exception(timeout=30) is not None
            assert failing == 0 or (isinstance(saving.exception(), StateError) and "rank 1" in str(saving.exception()))
            over.set()
            other.exception(timeout=30)
        assert [info.progress.step for info in stores[1].list()] == [1]
        assert self.contents(stores[1].load()) == {"model": b"one"}
        with ThreadPoolExecutor(2) as pool:
            again = shares_of(4, save_id="b" * 32)
            saving, other = pool.submit(stores[0].save, again[0]), pool.submit(stores[1].contribute, again[1])
            other.result(timeout=90)
            assert saving.result(timeout=90).progress.step == 4

    @pytest.mark.parametrize("missing", [0, 1])
    def test_a_rank_that_is_gone_is_not_waited_for_for_ever(
        self, open_rank: Callable[[], StateStore], missing: int
    ) -> None:
        """If the other rank does not arrive, a rank raises ``StateError`` after ``patience``, and nothing is stored."""
        store = open_rank()
        store.save(snapshot_of(1, {"model": b"one"}))
        shares = shares_of(4, patience=0.2)
        with pytest.raises(StateError, match=f"rank {missing}"):
            store.contribute(shares[1]) if missing == 0 else store.save(shares[0])
        assert self.contents(open_rank().load()) == {"model": b"one"}

    @pytest.mark.parametrize("missing", [0, 1])
    def test_what_is_over_is_given_up(self, open_rank: Callable[[], StateStore], missing: int) -> None:
        """An abandoned save ends immediately, also if its ``patience`` is long."""
        store = open_rank()
        shares = shares_of(4, patience=3600.0, is_over=lambda: True)
        with pytest.raises(StateError):
            store.contribute(shares[1]) if missing == 0 else store.save(shares[0])
        assert list(store.list()) == []

    def leave_all(self, open_rank: Callable[[], StateStore], shares: Sequence[Snapshot]) -> None:
        """Let each rank leave its share, the last one first."""
        if not open_rank().keeps_shares:
            pytest.skip("this store keeps no shares of ranks that failed")
        for share in reversed(shares):
            open_rank().leave_share(share)

    def complete(self, store: StateStore, num_ranks: int = 2) -> int | None:
        """Complete the shares that were left; return the step of the checkpoint, None if there is none."""
        joined = [part for part in shares_of(1)[0].parts if isinstance(part, JoinedPart)]
        info = store.complete_shares(num_ranks, lambda: joined)
        return None if info is None else info.progress.step

    def test_left_shares_make_one_checkpoint(self, open_rank: Callable[[], StateStore]) -> None:
        """Shares that each rank left by itself make the checkpoint of a joint save, once they are completed."""
        shares = shares_of(4)
        self.leave_all(open_rank, shares)
        store = open_rank()
        assert list(store.list()) == []
        assert self.complete(store) == 4
        loaded = open_rank().load()
        assert self.contents(loaded) == FILES
        assert loaded.info is not None
        assert (loaded.info.progress, loaded.info.reason) == (shares[0].progress, shares[0].reason)
        assert self.complete(open_rank()) is None

    @pytest.mark.parametrize("missing", [0, 1])
    def test_an_incomplete_set_is_not_used(self, open_rank: Callable[[], StateStore], missing: int) -> None:
        """If a rank left no share, there is no checkpoint of the set, and the share of the other one is deleted."""
        store = open_rank()
        store.save(snapshot_of(1, {"model": b"one"}))
        shares = shares_of(4)
        self.leave_all(open_rank, shares[1 - missing : 2 - missing])
        assert self.complete(open_rank()) is None
        self.leave_all(open_rank, shares[missing : missing + 1])
        assert self.complete(open_rank()) is None
        assert self.contents(open_rank().load()) == {"model": b"one"}

    def test_ranks_at_different_steps_leave_no_checkpoint(self, open_rank: Callable[[], StateStore]) -> None:
        """Shares of different steps are never mixed, even with one id."""
        self.leave_all(open_rank, [shares_of(4)[0], shares_of(5)[1]])
        assert self.complete(open_rank()) is None
        assert list(open_rank().list()) == []

    @pytest.mark.parametrize("num_ranks", [1, 3])
    def test_another_number_of_ranks_does_not_use_them(
        self, open_rank: Callable[[], StateStore], num_ranks: int
    ) -> None:
        """Fewer or more ranks than have left the shares cannot complete them, and say so without an error."""
        self.leave_all(open_rank, shares_of(4))
        assert self.complete(open_rank(), num_ranks) is None
        assert list(open_rank().list()) == []

    def test_a_checkpoint_as_new_makes_shares_superfluous(self, open_rank: Callable[[], StateStore]) -> None:
        """Shares of a step that is stored already change nothing, and the next step can be saved."""
        store = open_rank()
        store.save(snapshot_of(4, {"model": b"four"}))
        self.leave_all(open_rank, shares_of(4))
        assert self.complete(store) is None
        store.save(snapshot_of(5, {"model": b"five"}))
        assert [info.progress.step for info in store.list()] == [4, 5]
        assert self.contents(store.load(at_most=4)) == {"model": b"four"}

    def test_a_store_that_keeps_none_says_so(self, open_rank: Callable[[], StateStore]) -> None:
        """A share that is left in a store without ``keeps_shares`` raises ``StateError``, and nothing is stored."""
        if open_rank().keeps_shares:
            pytest.skip("this store keeps the shares of ranks that failed")
        with pytest.raises(StateError, match="alone"):
            open_rank().leave_share(shares_of(4)[0])
        assert self.complete(open_rank()) is None
