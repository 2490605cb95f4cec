"""The contract of ``StateStore`` on restoring."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.ports.state_store import Loaded, StateStore
from holdfast.ports.testing.snapshots import snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.ports.state_store import CheckpointInfo, OpenFile


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
