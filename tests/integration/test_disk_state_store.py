"""The state store on disk: what lies where, and what it does with what it finds there."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from blake3 import blake3

from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.adapters.state_store.manifest import commit_of
from holdfast.adapters.state_store.memory import MemoryStateStore
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.state_store import Snapshot, StatePart
from holdfast.ports.testing.snapshots import BytesPart, snapshot_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def filled(root: Path, *steps: int, keep: int = 5) -> DiskStateStore:
    store = DiskStateStore(root, Retention(keep))
    for step in steps:
        store.save(snapshot_of(step, {"model": b"%d" % step}))
    return store


def damage(root: Path, step: int) -> None:
    (root / f"checkpoints/checkpoint-{step}/model").write_bytes(b"x" * len(str(step)))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_is_a_folder_that_describes_itself(tmp_path):
    """MANIFEST.json lists each file with size and BLAKE3 hash in canonical JSON, and COMMIT is its hash."""
    files = {"model": b"weights" * 500_000, "rng/rank-00000": b"r"}
    info = DiskStateStore(tmp_path, Retention(2)).save(snapshot_of(7, files, reason="final"))
    folder = tmp_path / "checkpoints/checkpoint-7"
    manifest = (folder / "MANIFEST.json").read_bytes()
    record = json.loads(manifest)

    assert Path(info.location) == folder
    assert {path: (folder / path).read_bytes() for path in files} == files
    assert record.pop("save_id")
    assert record == {
        "schema": 2,
        "evaluation_loss": None,
        "contract": "bitwise",
        "conditions": {},
        "saved_at": info.saved_at,
        "encryption": None,
        "generation": 1,
        "step": 7,
        "progress": snapshot_of(7, {}).progress.to_json(),
        "reason": "final",
        "files": [
            {"path": path, "size": len(data), "hash": f"blake3:{blake3(data).hexdigest()}"}
            for path, data in files.items()
        ],
    }
    assert manifest == json.dumps(json.loads(manifest), sort_keys=True, separators=(",", ":")).encode()
    assert (folder / "COMMIT").read_text() == f"blake3:{blake3(manifest).hexdigest()}\n"


def test_each_save_has_an_identity_and_a_generation(tmp_path):
    """Save identities differ, and generations count on in another process."""
    filled(tmp_path, 1, 2)
    filled(tmp_path, 3)
    paths = [tmp_path / f"checkpoints/checkpoint-{step}/MANIFEST.json" for step in (1, 2, 3)]
    records = [json.loads(path.read_bytes()) for path in paths]
    assert [record["generation"] for record in records] == [1, 2, 3]
    assert len({record["save_id"] for record in records}) == 3


def test_files_have_the_users_own_mode(tmp_path):
    """What the store writes has the mode that the user's umask gives."""
    before = os.umask(0o027)
    try:
        info = filled(tmp_path, 1).list()[0]
    finally:
        os.umask(before)
    folder = Path(info.location)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o640}


def test_nothing_is_made_before_the_first_save(tmp_path):
    """Looking into a run folder that is not there makes nothing."""
    store = DiskStateStore(tmp_path / "run", Retention(1))
    store.load()
    store.list()
    store.flush()
    assert names_in(tmp_path) == []


def test_a_bad_newest_is_set_aside_and_the_next_older_used(tmp_path):
    """``load`` walks back past what does not verify and says what it set aside, why, and where."""
    store = filled(tmp_path, 1, 2, 3, 4)
    damage(tmp_path, 4)
    (tmp_path / "checkpoints/checkpoint-3/MANIFEST.json").unlink()
    loaded = store.load()
    assert loaded.info.progress.step == 2
    assert [rejected.name for rejected in loaded.rejected] == ["checkpoint-4", "checkpoint-3"]
    assert names_in(tmp_path / "quarantine") == ["checkpoint-3.incomplete", "checkpoint-4.wrong-hash"]
    assert "'model'" in loaded.rejected[0].reason
    assert loaded.rejected[0].location == str(tmp_path / "quarantine/checkpoint-4.wrong-hash")
    assert [info.progress.step for info in store.list()] == [1, 2]
    assert store.load().rejected == ()


def test_all_may_be_bad(tmp_path):
    """Where no checkpoint verifies there is none to load, and all are set aside."""
    store = filled(tmp_path, 1, 2)
    damage(tmp_path, 1)
    damage(tmp_path, 2)
    loaded = store.load()
    assert (loaded.info, loaded.folder) == (None, None)
    assert [rejected.name for rejected in loaded.rejected] == ["checkpoint-2", "checkpoint-1"]


def test_a_step_that_was_set_aside_can_be_saved_and_set_aside_again(tmp_path):
    """A name that is taken in quarantine gets a number: nothing in there is ever overwritten."""
    for _ in range(3):
        filled(tmp_path, 1)
        damage(tmp_path, 1)
        DiskStateStore(tmp_path, Retention(1)).load()
    names = ["checkpoint-1.wrong-hash", "checkpoint-1.wrong-hash.2", "checkpoint-1.wrong-hash.3"]
    assert names_in(tmp_path / "quarantine") == names


def test_a_listing_reads_no_payload(tmp_path):
    """``list`` names what is committed, damaged or not, and leaves out what is not."""
    store = filled(tmp_path, 1, 2, 3)
    damage(tmp_path, 2)
    (tmp_path / "checkpoints/checkpoint-3/COMMIT").unlink()
    assert [info.progress.step for info in store.list()] == [1, 2]
    assert names_in(tmp_path / "quarantine") == []


@pytest.mark.parametrize("schema", [1, 3])
def test_a_checkpoint_of_another_version_is_refused_and_stays(tmp_path, schema):
    """A manifest of another schema is neither used nor set aside: one sentence says to use the other version."""
    store = filled(tmp_path, 1, 2)
    folder = tmp_path / "checkpoints/checkpoint-2"
    record = json.loads((folder / "MANIFEST.json").read_bytes()) | {"schema": schema, "files": "in another form"}
    manifest = json.dumps(record).encode()
    (folder / "MANIFEST.json").write_bytes(manifest)
    (folder / "COMMIT").write_text(f"blake3:{blake3(manifest).hexdigest()}\n")
    for look in (store.load, store.list):
        with pytest.raises(StateError, match="another version"):
            look()
    store.save(snapshot_of(3, {}))
    assert names_in(tmp_path / "checkpoints") == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]


def test_what_is_not_named_as_a_checkpoint_is_left_alone(tmp_path):
    """Other files and folders beside the checkpoints are neither read, nor moved, nor deleted."""
    store = filled(tmp_path, 1, 2, keep=2)
    others = ["checkpoint-", "checkpoint-03", "checkpoint-4.old", "checkpoint-\u0665", "notes.txt"]
    for name in others:
        (tmp_path / "checkpoints" / name).mkdir()
    store.save(snapshot_of(3, {}))
    assert store.load().info.progress.step == 3
    assert names_in(tmp_path / "checkpoints") == sorted([*others, "checkpoint-2", "checkpoint-3"])


def test_an_incomplete_folder_does_not_count_as_kept(tmp_path):
    """Retention counts complete checkpoints only, so a broken one never takes a good one's place."""
    store = filled(tmp_path, 1, 2, keep=2)
    (tmp_path / "checkpoints/checkpoint-2/COMMIT").unlink()
    store.save(snapshot_of(3, {}))
    assert [info.progress.step for info in store.list()] == [1, 3]


@dataclass(frozen=True)
class LookingPart(StatePart):
    """Is empty, and notes what lies in ``.tmp`` and ``.trash`` of the run folder when its bytes are asked for."""

    run: Path
    seen: list[str]
    name: str = "looking"

    def chunks(self) -> Iterator[bytes]:
        self.seen.extend(path.name for path in [*self.run.glob(".tmp/*"), *self.run.glob(".trash/*")])
        yield b""


def test_the_rests_of_a_crash_make_room_for_the_next_save(tmp_path):
    """What a killed process left stays while others only look, and is gone before the next save needs the space."""
    store = filled(tmp_path, 1)
    for folder in (".tmp", ".trash"):
        (tmp_path / folder / "dead/rng").mkdir(parents=True)
        (tmp_path / folder / "dead/rng/half").write_bytes(b"half")
        (tmp_path / folder / "link").symlink_to(tmp_path / "checkpoints")
    store.load()
    assert names_in(tmp_path / ".tmp") == names_in(tmp_path / ".trash") == ["dead", "link"]
    looking = LookingPart(tmp_path, [])
    store.save(Snapshot(Progress(step=2), "periodic", [looking]))
    assert set(looking.seen).isdisjoint({"dead", "link"})
    assert names_in(tmp_path / "checkpoints") == ["checkpoint-1", "checkpoint-2"]


def test_a_name_that_is_taken_is_refused_before_anything_is_written(tmp_path):
    """Whatever bears the name of the checkpoint, be it an empty folder or a dangling link, is left as it is."""
    store = filled(tmp_path, 1)
    (tmp_path / "checkpoints/checkpoint-2").mkdir()
    (tmp_path / "checkpoints/checkpoint-3").symlink_to("nowhere")
    for step in (2, 3):
        looking = LookingPart(tmp_path, [])
        with pytest.raises(StateError, match="already stored"):
            store.save(Snapshot(Progress(step=step), "periodic", [looking]))
        assert looking.seen == []
    assert names_in(tmp_path / "checkpoints") == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]


@pytest.mark.parametrize(
    "names",
    [
        *(["MANIFEST.json"], ["COMMIT"], ["../model"], ["/tmp/model"], ["a/../b"], ["./a"], [""], ["a\0b"]),
        *(["model", "model"], ["model", "model/weights"]),
    ],
    ids=repr,
)
def test_parts_that_could_not_be_read_back_are_refused(tmp_path, names):
    """Parts named like the store's own files, out of the checkpoint or twice fail the save rather than the load."""
    store = filled(tmp_path / "run", 1)
    with pytest.raises(StateError, match="step 2"):
        store.save(Snapshot(Progress(step=2), "periodic", [BytesPart(name, b"{}") for name in names]))
    assert names_in(tmp_path / "run/checkpoints") == ["checkpoint-1"]
    assert names_in(tmp_path / "run/.tmp") == []


def test_the_run_folder_may_be_a_link_and_relative(tmp_path, monkeypatch):
    """A run folder given by a link and a relative path is found from anywhere later."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to("disk")
    monkeypatch.chdir(tmp_path)
    store = filled(Path("run"), 1)
    monkeypatch.chdir("/")
    store.save(snapshot_of(2, {}))
    assert store.load().info.progress.step == 2
    assert names_in(tmp_path / "disk/checkpoints") == ["checkpoint-1", "checkpoint-2"]


def test_milestones_and_the_best_stay(tmp_path):
    """Beside the newest checkpoint a store keeps those of every N steps and those of the lowest evaluation loss."""
    losses = {1: 3.0, 2: 1.0, 3: None, 4: 2.0, 5: 2.5, 6: 1.5, 7: None}
    for kind in (partial(DiskStateStore, tmp_path), MemoryStateStore):
        store = kind(Retention(1, every=3, best=2))
        for step, loss in losses.items():
            store.save(replace(snapshot_of(step, {}), evaluation_loss=loss))
        assert {info.progress.step: info.evaluation_loss for info in store.list()} == {2: 1.0, 3: None, 6: 1.5, 7: None}


def test_a_checkpoint_of_before_losses_were_kept_is_read(tmp_path):
    """A manifest without an evaluation loss is of an earlier program, and verifies."""
    store = filled(tmp_path, 1)
    manifest = tmp_path / "checkpoints/checkpoint-1/MANIFEST.json"
    record = json.loads(manifest.read_text())
    del record["evaluation_loss"]
    manifest.write_text(json.dumps(record))
    (manifest.parent / "COMMIT").write_bytes(commit_of(manifest.read_bytes()))
    assert store.load().info.evaluation_loss is None


@pytest.mark.parametrize("keep", [0, -1])
def test_a_store_keeps_at_least_one(tmp_path, keep):
    """A store that would keep nothing is refused."""
    for kind in (partial(DiskStateStore, tmp_path), MemoryStateStore):
        with pytest.raises(ConfigurationError, match="at least 1"):
            kind(Retention(keep))


def test_an_older_checkpoint_that_went_bad_is_found_before_it_is_needed(tmp_path):
    """Scrubbing looks at each older checkpoint in turn, sets the damaged one aside, and begins anew behind the last."""
    store = filled(tmp_path, 1, 2, 3, keep=9)
    (tmp_path / "checkpoints/checkpoint-2/model").write_bytes(b"x")
    found = [[rejected.name for rejected in store.scrub()] for _ in range(6)]
    assert [name for names in found for name in names] == ["checkpoint-2"]
    assert [info.progress.step for info in store.list()] == [1, 3]
    (tmp_path / "checkpoints/checkpoint-1/model").write_bytes(b"x")
    assert [rejected.name for _ in range(2) for rejected in store.scrub()] == ["checkpoint-1"]
    assert [info.progress.step for info in store.list()] == [3]


def test_scrubbing_leaves_the_newest_to_a_resume(tmp_path):
    """The newest checkpoint is not looked at: whoever loads it does so, and has an older one to fall back to."""
    store = filled(tmp_path, 1, keep=9)
    (tmp_path / "checkpoints/checkpoint-1/model").write_bytes(b"x")
    assert [store.scrub() for _ in range(3)] == [(), (), ()]
    assert names_in(tmp_path / "checkpoints") == ["checkpoint-1"]
