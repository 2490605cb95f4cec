"""T22: a store on disk under saves, crashes, damage, moves, pins, restores and a full disk, in any order."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from holdfast.adapters.shared.files.file_operations import FileOperations
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.adapters.state_store.store_folder import StoreFolder
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import StateError
from tests.support.file_faults import MEMORY, WatchedFiles, files_under, payload, snapshot_of

KEEP = 2
PLACES = st.integers(0, 10_000)


class CrashError(BaseException):
    """Stands for the end of the process."""


class StoreMachine(RuleBasedStateMachine):
    """``acknowledged`` are the steps whose saves returned; of those, ``damaged`` were changed behind the store."""

    num_loads = 0

    def __init__(self):
        super().__init__()
        self.scratch = Path(mkdtemp(dir=MEMORY))
        self.root = self.scratch / "run"
        self.step = 0
        self.acknowledged: set[int] = set()
        self.damaged: set[int] = set()
        self.pinned: set[int] = set()

    def teardown(self):
        try:
            self.check_load()  # at the end of each example, as chance may have none load before
        finally:
            shutil.rmtree(self.scratch)

    def store(self, around=None):
        files = FileOperations() if around is None else WatchedFiles(around)
        return DiskStateStore(self.root, Retention(KEEP), files=files)

    @property
    def sound(self):
        """Return the steps that are there and whole."""
        found = {int(path.name.rpartition("-")[2]) for path in self.root.glob("checkpoints/checkpoint-*")}
        return found - self.damaged

    @rule()
    def save(self):
        self.step += 1
        self.store().save(snapshot_of(self.step))
        self.acknowledged.add(self.step)
        assert len(self.sound - self.pinned) <= KEEP

    @rule(point=st.integers(0, 45), is_behind=st.booleans())
    def crash_in_a_save(self, point, is_behind):
        self.step += 1
        self.interrupted(lambda around: self.store(around).save(snapshot_of(self.step)), point, is_behind=is_behind)
        if self.step in self.sound:
            self.acknowledged.add(self.step)

    @rule(point=st.integers(0, 12), is_behind=st.booleans())
    def crash_in_a_load(self, point, is_behind):
        self.interrupted(lambda around: self.store(around).load(), point, is_behind=is_behind)

    def interrupted(self, act, point, *, is_behind):
        """Act until the operation of that number, behind which nothing more reaches the disk."""
        count = 0

        def around(name, path, operation):
            nonlocal count
            count += 1
            if count > point + 1 or (count == point + 1 and not is_behind):
                raise CrashError
            return operation()

        before = self.sound
        try:
            act(around)
        except CrashError:
            assert not before or max(before) <= max(self.sound)

    @rule(point=st.integers(0, 40))
    def full_disk(self, point):
        self.step += 1
        count = 0

        def around(name, path, operation):
            nonlocal count
            count += 1
            if count > point and name in {"make_folder", "write_file", "write_chunks"}:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            return operation()

        before = files_under(self.root / "checkpoints")
        try:
            self.store(around).save(snapshot_of(self.step))
            self.acknowledged.add(self.step)
        except StateError:
            assert files_under(self.root / "checkpoints") == before

    @precondition(lambda self: self.sound)
    @rule(which=st.integers(0, 5), file=st.integers(0, 3), kind=st.sampled_from(["flip", "cut", "gone"]), at=PLACES)
    def corrupt(self, which, file, kind, at):
        steps = sorted(self.sound)
        folder = self.root / f"checkpoints/checkpoint-{steps[which % len(steps)]}"
        path = sorted(path for path in folder.rglob("*") if path.is_file())[file]
        data = bytearray(path.read_bytes())
        place = at % len(data)
        if kind == "flip":
            data[place] ^= 1 << at % 8
        path.write_bytes(data[:place] if kind == "cut" else data)
        if kind == "gone":
            path.unlink()
        self.damaged.add(steps[which % len(steps)])
        self.acknowledged &= self.sound  # older ones, which retention deleted while this one was whole, are not lost

    @rule()
    def move_away_and_back(self):
        if self.root.exists():
            self.root.rename(self.scratch / "elsewhere")
            shutil.copytree(self.scratch / "elsewhere", self.root)
            shutil.rmtree(self.scratch / "elsewhere")

    @precondition(lambda self: self.sound)
    @rule()
    def pin(self):
        step = max(self.sound)
        StoreFolder(self.root, FileOperations()).pin(step)
        self.pinned.add(step)

    @rule()
    def restore(self):
        self.check_load()

    def check_load(self):
        expected = max(self.sound, default=None)
        loaded = self.store().load()
        StoreMachine.num_loads += 1
        assert (loaded.info.progress.step if loaded.info else None) == expected
        if expected is not None:
            assert payload(expected).items() <= files_under(loaded.folder).items()
        assert all(int(rejected.name.rpartition("-")[2]) in self.damaged for rejected in loaded.rejected)

    @invariant()
    def pinned_ones_stay(self):
        assert self.pinned - self.damaged <= self.sound

    @invariant()
    def nothing_acknowledged_is_lost(self):
        """Of what was acknowledged, the newest that nobody damaged is there."""
        whole = self.acknowledged - self.damaged
        assert not whole or max(whole) in self.sound

    @invariant()
    def no_half_is_listed(self):
        for step in self.sound:
            assert payload(step).items() <= files_under(self.root / f"checkpoints/checkpoint-{step}").items()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("examples", [15, pytest.param(300, marks=pytest.mark.slow)])
def test_a_store_keeps_its_promises_whatever_happens(examples):
    """Whatever order things happen in, nothing acknowledged is lost, nothing damaged is loaded, nothing pinned goes."""
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(
            max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    assert StoreMachine.num_loads >= examples
