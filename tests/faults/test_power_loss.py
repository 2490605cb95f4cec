"""T2: every state in which a power loss may leave a store on disk, and whether the check finds a worse protocol out."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.adapters.state_store import disk as checkpoint_reader
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.adapters.state_store.store_folder import StoreFolder
from holdfast.domain.checkpoints.retention import Retention
from tests.support.file_faults import MEMORY, files_under, payload, snapshot_of
from tests.support.power_loss import RecordedFiles, write_tree

HIDDEN = frozenset({".tmp", ".trash"})
"""What no reader looks into; a sample of states shows that it can be shown empty."""


@pytest.fixture
def tmp_path():
    with TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


class FoundOutError(Exception):
    """What was looked for is found: no more states need be judged."""


@dataclass
class Findings:
    """What the crash states of one scenario came to; ``seen`` are the states, with the step acknowledged by then."""

    scratch: Path
    damaged: frozenset[int] = frozenset()
    hidden: frozenset[str] = HIDDEN
    goes_on: bool = False
    until: str | None = None
    acknowledged: int = 0
    points: int = 0
    seen: set = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    numbers: count = field(default_factory=count)

    def __call__(self, files: RecordedFiles) -> None:
        """Judge each state that the disk may be in now, but those that were judged before."""
        self.points += 1
        for tree in files.states(self.hidden):
            if (tree, self.acknowledged) not in self.seen:
                self.seen.add((tree, self.acknowledged))
                place = self.scratch / f"{next(self.numbers)}"
                write_tree(tree, place)
                self.judge(place / "run")
                shutil.rmtree(place)
                if self.until in self.faults:
                    raise FoundOutError

    def judge(self, root: Path) -> None:
        """Note what a new process would find wrong."""
        loaded = DiskStateStore(root, Retention(4)).load()
        step = loaded.info.progress.step if loaded.info else 0
        if step < self.acknowledged:
            self.faults.append("lost")
        if loaded.folder and not payload(step).items() <= files_under(loaded.folder).items():
            self.faults.append("corrupt")
        if any(int(rejected.name.partition("-")[2]) not in self.damaged for rejected in loaded.rejected):
            self.faults.append("set aside")
        store = DiskStateStore(root, Retention(4))
        for info in store.list():
            if not payload(info.progress.step).items() <= files_under(Path(info.location)).items():
                self.faults.append("half")
        if self.goes_on:
            store.save(snapshot_of(10))
            if store.load().info.progress.step != 10:
                self.faults.append("stuck")


def after_saves(findings, *steps, keep=1, files=RecordedFiles, folder=StoreFolder):
    """Return ``findings`` on saves of ``steps``, the first of which finds no run folder."""
    place = findings.scratch / "place"
    place.mkdir()
    recorded = files(place, findings)
    store = DiskStateStore(place / "run", Retention(keep), files=recorded)
    store._folder = folder(place / "run", recorded)
    for step in steps:
        store.save(snapshot_of(step))
        findings.acknowledged = step
        findings(recorded)
    return findings


def test_no_power_loss_harms_a_save_or_a_deletion(tmp_path):
    """Whatever a power loss leaves of a save that deletes its predecessor, what was acknowledged loads, and no half."""
    findings = after_saves(Findings(tmp_path), 1, 2)
    assert findings.faults == []
    assert findings.points > 40
    assert len(findings.seen) > 15


@pytest.mark.slow
def test_no_power_loss_keeps_the_next_run_from_going_on(tmp_path):
    """In each state, drafts and deletions under way included, a new process loads what it should, saves and loads."""
    findings = after_saves(Findings(tmp_path, hidden=frozenset(), goes_on=True), 1, 2, 3)
    assert findings.faults == []
    assert len(findings.seen) > 2000


def test_no_power_loss_harms_a_quarantine(tmp_path):
    """Whatever a power loss leaves of a load that sets two checkpoints aside, the older one loads."""
    root = tmp_path / "place/run"
    store = DiskStateStore(root, Retention(4))
    for step in (1, 2, 3, 4):
        store.save(snapshot_of(step))
    (root / "checkpoints/checkpoint-3/COMMIT").unlink()
    (root / "checkpoints/checkpoint-4/model.safetensors").write_bytes(b"overwritten")
    (root / "quarantine").rmdir()
    findings = Findings(tmp_path, damaged=frozenset({3, 4}), acknowledged=2, goes_on=True)
    findings.judge = lambda root, judge=findings.judge: judge_good(root, judge)
    DiskStateStore(root, Retention(4), files=RecordedFiles(root.parent, findings)).load()
    assert findings.faults == []
    assert findings.points > 5
    assert len(findings.seen) > 5


def judge_good(root, judge):
    """Judge what is not damaged: a list does not verify, so it names the damaged ones too."""
    DiskStateStore(root, Retention(4)).load()
    judge(root)


class WithoutFileSync(RecordedFiles):
    """Never syncs a file."""

    def sync_file(self, path):
        self._look(self)


class WithoutFolderSyncBefore(RecordedFiles):
    """Does not sync the names in a draft before it gets its own."""

    def sync_folder(self, path):
        if ".tmp" not in path.parent.parts:
            super().sync_folder(path)


class WithoutFolderSyncBehind(RecordedFiles):
    """Does not sync the folders that a rename has changed."""

    def sync_folder(self, path):
        if path.name not in {"checkpoints", ".tmp", ".trash"}:
            super().sync_folder(path)


class CommitFirst(RecordedFiles):
    """Writes the files only once COMMIT is there."""

    def __init__(self, root, look):
        super().__init__(root, look)
        self._late = []

    def write_chunks(self, path, chunks):
        self._late.append((path, b"".join(map(bytes, chunks))))

    def sync_file(self, path):
        if path.exists():
            super().sync_file(path)
        if path.name == "COMMIT":
            for late, data in self._late:
                super().write_file(late, data)
                super().sync_file(late)
            self._late = []


class DeleteFirst(StoreFolder):
    """Deletes what is there before the new one gets its name."""

    def publish(self, staging, target):
        for folder in self.checkpoints():
            self._files.remove_tree(folder)
        super().publish(staging, target)


class DirectWrite(StoreFolder):
    """Writes a checkpoint under its own name at once."""

    def prepare(self):
        super().prepare()
        self._files.sync_folder(self.root)

    def staging_folder(self, share=None):
        return self.checkpoint(2 if self.checkpoints() else 1)

    def publish(self, staging, target):
        self._files.sync_folder(target.parent)

    def discard(self, staging):
        pass


class SweepAtOnce(StoreFolder):
    """Deletes before it is durable that the names of what is deleted are gone."""

    def sweep(self):
        for path in sorted([*self._trash.iterdir(), *self._staging.iterdir()]):
            self._files.remove_tree(path)


@pytest.mark.parametrize(
    ("files", "folder", "finding"),
    [
        (WithoutFileSync, StoreFolder, "lost"),
        (WithoutFolderSyncBefore, StoreFolder, "lost"),
        (WithoutFolderSyncBehind, StoreFolder, "lost"),
        (RecordedFiles, DeleteFirst, "lost"),
        (RecordedFiles, DirectWrite, "set aside"),
        (CommitFirst, DirectWrite, "set aside"),
        (RecordedFiles, SweepAtOnce, "half"),
    ],
    ids=lambda kind: kind if isinstance(kind, str) else kind.__name__,
)
def test_a_protocol_without_one_of_its_steps_is_found_out(tmp_path, files, folder, finding):
    """The same check turns red for a store that leaves out a sync, deletes first, or writes in place."""
    with pytest.raises(FoundOutError):
        after_saves(Findings(tmp_path, until=finding), 1, 2, files=files, folder=folder)


def test_a_reader_that_does_not_verify_is_found_out(tmp_path, monkeypatch):
    """Bytes that no sync had made durable are accepted by a reader that compares no hashes, and the check sees it."""
    monkeypatch.setattr(checkpoint_reader, "require_sound", lambda *_, **__: None)
    with pytest.raises(FoundOutError):
        after_saves(Findings(tmp_path, until="corrupt"), 1, files=WithoutFileSync)
