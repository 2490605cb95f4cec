"""The contract of ``StateStore``."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import TYPE_CHECKING, ClassVar, final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.checkpoints.retention import RollBackFloor
from holdfast.domain.errors import StateError
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.state_store import CheckpointInfo, JoinedPart, Loaded, Snapshot, StatePart, StateShare, StateStore
from holdfast.ports.testing.snapshots import BytesPart, FailingPart, WaitingPart, snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.ports.state_store import OpenFile


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


class StateStoreRestoring:
    """The contract of ``StateStore.restore``."""

    def state(self, store: StateStore) -> tuple[Sequence[CheckpointInfo], CheckpointInfo | None, Mapping[str, bytes]]:
        """Return the visible state of ``store``, as ``StateStoreContract.state`` does."""
        raise NotImplementedError

    @pytest.mark.parametrize("steps", [[3], [3, 7]], ids=["alone", "beside-an-older-one"])
    def test_restore_hands_over_what_load_returns(
        self, store: StateStore, reopen: Callable[[StateStore], StateStore], steps: list[int]
    ) -> None:
        """The newest checkpoint's files can be read in any order, and ``restore`` returns that checkpoint."""
        data = bytes(range(256)) * 20_000
        for step in steps:
            saved = store.save(snapshot_of(step, {"model": data[step:], "a/small": b"small"}))
        found = []

        def take_over(folder: Path, open_file: OpenFile) -> None:
            assert (folder / "a/small").read_bytes() == b"small"
            with open_file(folder / "model") as file:
                buffer = bytearray(len(data))
                assert file.fill(4, memoryview(bytearray(100))) == 100
                assert file.fill(0, memoryview(buffer)) == len(data) - steps[-1]
                assert file.fill(len(data), memoryview(buffer)) == 0
                assert file.read(8, 16) == data[steps[-1] + 8 :][:16]
                found.append(bytes(buffer[: -steps[-1]]))

        assert reopen(store).restore(take_over).info == saved
        assert found == [data[steps[-1] :]]

    def test_what_is_changed_while_the_file_is_open_is_no_damage(self, store: StateStore) -> None:
        """If ``into`` changes the bytes before it closes the file, it may be called again; the checkpoint stays."""
        data = bytes(range(256)) * 20_000
        for step in (1, 2):
            store.save(snapshot_of(step, {"model": data}))
        before = self.state(store)
        found = bytearray(len(data))

        def take_over(folder: Path, open_file: OpenFile) -> None:
            with open_file(folder / "model") as file:
                buffer = bytearray(len(data))
                assert file.fill(0, memoryview(buffer)) == len(data)
                found[:] = buffer
                buffer[:] = bytes(len(data))

        loaded = store.restore(take_over)
        assert bytes(found) == data
        assert not loaded.rejected
        assert loaded.info is not None
        assert loaded.info.progress.step == 2
        assert self.state(store) == before

    def test_an_empty_store_has_nothing_to_restore(self, store: StateStore) -> None:
        """``restore`` of an empty store does not call ``into``."""
        handed: list[object] = []
        assert store.restore(lambda *given: handed.append(given)) == Loaded(None, None, ())
        assert handed == []

    def test_what_whoever_takes_over_raises_comes_through(self, store: StateStore) -> None:
        """An exception of ``into`` for a checkpoint that verifies propagates, and the checkpoint stays."""
        for step in (1, 2):
            store.save(snapshot_of(step, {"model": b"one"}))
        before, error = self.state(store), ValueError("it does not fit")

        def take_over(*_: object) -> None:
            raise error

        with pytest.raises(ValueError, match="it does not fit") as caught:
            store.restore(take_over)
        assert caught.value is error
        assert self.state(store) == before

    def test_later_steps_are_not_restored(self, store: StateStore) -> None:
        """``restore`` with ``at_most`` ignores later steps."""
        saved = [store.save(snapshot_of(step, {"model": b"x"})) for step in (2, 4)]
        assert store.restore(lambda *_: None, at_most=3).info in (saved[0], None)
        assert store.restore(lambda *_: None, at_most=4).info == saved[1]


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


_NAMES = st.sampled_from(["model", "optimizer.json", "rng/rank-00000", "rng/rank-00001", "a/b/c"])
_FILES = st.dictionaries(_NAMES, st.binary(max_size=200), max_size=4)


class StateStoreContract(StateStoreRestoring, StateStoreRetention, StateStoreReturns, StateStoreShares):
    """The contract of every ``StateStore``; derive, override ``new_store``, and ``reopen`` if it is durable.

    ``keep`` is how many checkpoints the stores under test keep; ``own_files`` are the names of files that a store puts
    beside those of the parts.
    """

    keep: ClassVar[int] = 3
    own_files: ClassVar[frozenset[str]] = frozenset()

    @pytest.fixture
    def new_store(self) -> Callable[[], StateStore]:
        """Return a function that opens a new, empty store with ``keep`` retained checkpoints at each call."""
        raise NotImplementedError

    @pytest.fixture
    def reopen(self) -> Callable[[StateStore], StateStore]:
        """Return a function that opens the content of a store again, like another process."""
        return lambda store: store

    @pytest.fixture
    def store(self, new_store: Callable[[], StateStore]) -> StateStore:
        """Return an empty store."""
        return new_store()

    def stored_bytes(self, files: Mapping[str, bytes]) -> int:
        """Return the number of bytes that ``files`` take in the store."""
        return sum(map(len, files.values()))

    def contents(self, loaded: Loaded) -> Mapping[str, bytes]:
        """Return the bytes of the loaded parts by file name."""
        assert loaded.folder is not None
        paths = [path for path in loaded.folder.rglob("*") if path.is_file()]
        files = {path.relative_to(loaded.folder).as_posix(): path.read_bytes() for path in paths}
        return {name: files[name] for name in files.keys() - self.own_files}

    def state(self, store: StateStore) -> tuple[Sequence[CheckpointInfo], CheckpointInfo | None, Mapping[str, bytes]]:
        """Return the visible state of ``store``: its list, its newest checkpoint, and that checkpoint's files."""
        loaded = store.load()
        return list(store.list()), loaded.info, {} if loaded.folder is None else self.contents(loaded)

    def test_an_empty_store_has_nothing_to_load(self, store: StateStore) -> None:
        """An empty store loads None and lists nothing."""
        assert store.load() == Loaded(None, None, ())
        assert list(store.list()) == []

    def test_what_was_saved_is_loaded(self, store: StateStore, reopen: Callable[[StateStore], StateStore]) -> None:
        """A saved snapshot can be loaded after the store is opened again, with its bytes, progress and reason."""
        files = {"model": b"weights", "rng/rank-00000": bytes(range(256)), "empty": b""}
        saved = store.save(snapshot_of(7, files, reason="final"))
        loaded = reopen(store).load()
        assert self.contents(loaded) == files
        assert loaded.info == saved
        assert (saved.progress, saved.reason) == (snapshot_of(7, {}).progress, "final")
        assert saved.location
        assert saved.num_bytes == self.stored_bytes(files)

    def test_a_later_change_of_the_argument_does_not_leak_in(
        self, store: StateStore, reopen: Callable[[StateStore], StateStore]
    ) -> None:
        """A change of the parts or of their list after ``save`` does not change the result of ``load``."""
        data = bytearray(b"as it was")
        parts = [BytesPart("model", data)]
        store.save(Snapshot(Progress(step=1), "periodic", parts))
        data[:] = b"changed since"
        parts.append(BytesPart("late", b"late"))
        store.flush()
        assert self.contents(reopen(store).load()) == {"model": b"as it was"}

    @pytest.mark.parametrize("error", [ValueError("a part's own"), KeyboardInterrupt()], ids=["error", "interrupt"])
    def test_a_failing_part_leaves_the_store_as_it_was(
        self, store: StateStore, reopen: Callable[[StateStore], StateStore], error: BaseException
    ) -> None:
        """An exception of a part propagates, the store is unchanged, and the same step can be saved afterwards."""
        store.save(snapshot_of(1, {"model": b"one"}))
        before = self.state(store)
        snapshot = snapshot_of(2, {"model": b"two"})
        with pytest.raises(type(error)) as caught:
            store.save(Snapshot(snapshot.progress, "periodic", [*snapshot.parts, FailingPart(error)]))
        assert caught.value is error
        assert self.state(reopen(store)) == before
        store.save(snapshot)
        assert self.contents(reopen(store).load()) == {"model": b"two"}

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
    def test_a_medium_that_fails_is_a_state_error(self, store: StateStore, code: int) -> None:
        """An ``OSError`` while a part is written becomes ``StateError`` and leaves the store unchanged."""
        store.save(snapshot_of(1, {"model": b"one"}))
        before = self.state(store)
        with pytest.raises(StateError):
            store.save(Snapshot(Progress(step=2), "periodic", [FailingPart(OSError(code, "no more"))]))
        assert self.state(store) == before

    def test_a_stored_step_is_refused(self, store: StateStore, reopen: Callable[[StateStore], StateStore]) -> None:
        """Saving a step that is already stored raises ``StateError`` and changes nothing."""
        for step in (1, 2):
            store.save(snapshot_of(step, {"model": b"first"}))
        before = self.state(store)
        for step in (1, 2):
            with pytest.raises(StateError):
                store.save(snapshot_of(step, {"model": b"second", "more": b"more"}))
        assert self.state(reopen(store)) == before

    def test_load_returns_one_snapshot_exactly(
        self, new_store: Callable[[], StateStore], reopen: Callable[[StateStore], StateStore]
    ) -> None:
        """After saves in any order, ``load`` returns exactly the files of the highest step."""

        @settings(deadline=None, max_examples=20)
        @given(st.lists(st.tuples(st.integers(0, 10**12), _FILES), max_size=5, unique_by=lambda save: save[0]))
        def check(saves: Sequence[tuple[int, Mapping[str, bytes]]]) -> None:
            store = new_store()
            for count, (step, files) in enumerate(saves, start=1):
                saved = store.save(snapshot_of(step, files))
                highest, newest = max(saves[:count], key=lambda save: save[0])
                listed, info, contents = self.state(reopen(store))
                assert info is not None
                assert (info.progress.step, contents) == (highest, newest)
                assert saved in listed

        check()

    def test_loading_again_gives_the_same(self, store: StateStore) -> None:
        """Repeated calls of ``load`` return equal results, and the first result stays readable."""
        store.save(snapshot_of(1, {"model": b"one", "rng/rank-00000": b"r"}))
        first = store.load()
        assert self.contents(store.load()) == self.contents(first) == {"model": b"one", "rng/rank-00000": b"r"}

    def test_list_is_oldest_first(self, store: StateStore, reopen: Callable[[StateStore], StateStore]) -> None:
        """``list`` returns the results of ``save``, ordered by step, not by name or time of saving."""
        saved = [store.save(snapshot_of(step, {"model": b"x" * step})) for step in (9, 100, 20)]
        assert list(reopen(store).list()) == [saved[0], saved[2], saved[1]]

    def test_what_was_measured_is_kept(self, store: StateStore, reopen: Callable[[StateStore], StateStore]) -> None:
        """``save``, ``list`` and ``load`` return the exact evaluation loss of a snapshot, or None."""
        for step, loss in ((1, 0.1 + 0.2), (2, None)):
            assert store.save(replace(snapshot_of(step, {}), evaluation_loss=loss)).evaluation_loss == loss
        assert [info.evaluation_loss for info in reopen(store).list()] == [0.1 + 0.2, None][-self.keep :]
        newest = store.load().info
        assert newest is not None
        assert newest.evaluation_loss is None

    def test_flush_is_idempotent(self, store: StateStore) -> None:
        """``flush`` may be called on an empty store, twice, and from another thread."""
        store.flush()
        store.save(snapshot_of(1, {"model": b"one"}))
        before = self.state(store)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(store.flush).result(timeout=30)
        store.flush()
        assert self.state(store) == before

    def test_flush_waits_for_what_is_in_flight(self, store: StateStore) -> None:
        """``flush`` returns only once a save that has begun in another thread is durable."""
        begun, may_finish = Event(), Event()
        snapshot = Snapshot(Progress(step=1), "periodic", [WaitingPart(begun, may_finish)])
        saving, flushing = Thread(target=store.save, args=[snapshot]), Thread(target=store.flush)
        try:
            saving.start()
            assert begun.wait(timeout=30)
            flushing.start()
            flushing.join(timeout=0.05)
            assert flushing.is_alive()
        finally:
            may_finish.set()
            saving.join(timeout=30)
        flushing.join(timeout=30)
        assert not flushing.is_alive()
        assert [info.progress.step for info in store.list()] == [1]
