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
