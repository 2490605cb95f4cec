"""T3 and T17: what a state store on disk makes of checkpoints that are damaged or hostile."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import StateError
from tests.support.file_faults import MEMORY, files_under, payload, snapshot_of

NAMES = [*payload(2), "MANIFEST.json", "COMMIT"]


@pytest.fixture
def root():
    with TemporaryDirectory(dir=MEMORY) as folder:
        store = DiskStateStore(Path(folder), Retention(2))
        for step in (1, 2):
            store.save(snapshot_of(step))
        yield Path(folder)


def newest(root: Path) -> Path:
    return root / "checkpoints/checkpoint-2"


def assert_set_aside(root: Path, what: str) -> None:
    """Check that step 2 was found out and lies in quarantine as it was, and step 1 is used; then put it back."""
    damaged = files_under(newest(root))
    loaded = DiskStateStore(root, Retention(2)).load()
    assert loaded.info is not None, what
    assert loaded.info.progress.step == 1, what
    assert payload(1).items() <= files_under(loaded.folder).items(), what
    (rejected,) = loaded.rejected
    assert (rejected.name, Path(rejected.location).parent) == ("checkpoint-2", root / "quarantine"), what
    assert files_under(Path(rejected.location)) == damaged, what
    Path(rejected.location).rename(newest(root))


def commit(folder: Path, manifest: bytes) -> None:
    """Make ``manifest`` that of ``folder``, as whoever writes a hostile checkpoint would."""
    (folder / "MANIFEST.json").write_bytes(manifest)
    (folder / "COMMIT").write_text(f"blake3:{blake3(manifest).hexdigest()}\n")


@pytest.mark.parametrize("flips", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_every_flipped_bit_is_found(root, flips):
    """A checkpoint of which one bit is flipped, in whichever file, is set aside."""
    chance = random.Random(flips)
    for _ in range(flips):
        path = newest(root) / chance.choice(NAMES)
        before = path.read_bytes()
        damaged = bytearray(before)
        place, bit = chance.randrange(len(before)), chance.randrange(8)
        damaged[place] ^= 1 << bit
        path.write_bytes(damaged)
        assert_set_aside(root, f"{path.name} byte {place} bit {bit}")
        path.write_bytes(before)
    assert DiskStateStore(root, Retention(2)).load().info.progress.step == 2


@pytest.mark.parametrize("name", NAMES)
def test_every_change_of_length_is_found(root, name):
    """A file that was cut at any of many places, or has grown, is set aside with its checkpoint."""
    path = newest(root) / name
    before = path.read_bytes()
    for length in {*range(0, len(before), 7), len(before) - 1}:
        path.write_bytes(before[:length])
        assert_set_aside(root, f"{name} cut to {length} bytes")
    path.write_bytes(before + b"\n")
    assert_set_aside(root, f"{name} grown")


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_found(root, name):
    """A checkpoint that lacks a file is set aside."""
    (newest(root) / name).unlink()
    assert_set_aside(root, name)


@pytest.mark.parametrize("name", ["more", "rng/more", ".hidden"])
def test_an_extra_file_is_found(root, name):
    """A checkpoint with a file that nobody saved is set aside."""
    (newest(root) / name).write_bytes(b"")
    assert_set_aside(root, name)


def test_the_bytes_of_another_checkpoint_are_found(root):
    """A sound file from another step, or another step under this name, is set aside: no mixture is loaded."""
    before = (newest(root) / "model.safetensors").read_bytes()
    shutil.copyfile(root / "checkpoints/checkpoint-1/model.safetensors", newest(root) / "model.safetensors")
    assert_set_aside(root, "a file of step 1")
    (newest(root) / "model.safetensors").write_bytes(before)
    shutil.rmtree(newest(root))
    shutil.copytree(root / "checkpoints/checkpoint-1", newest(root))
    assert_set_aside(root, "step 1 under the name of step 2")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"schema":' + b"9" * 5000 + b"}",
        b'{"schema":true}',
        b'{"schema":0}',
        b'{"schema":NaN}',
    ],
    ids=range(9),
)
def test_a_manifest_that_is_none_is_set_aside(root, data):
    """A committed manifest that cannot be one is a damaged checkpoint, not an error of another type."""
    commit(newest(root), data)
    assert_set_aside(root, repr(data[:20]))


def test_a_manifest_beyond_reason_is_not_read(root):
    """A manifest of more than 16 MiB is set aside."""
    os.truncate(newest(root) / "MANIFEST.json", (16 << 20) + 1)
    rejected = DiskStateStore(root, Retention(2)).load().rejected
    assert "bad-manifest" in rejected[0].location


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["schema", "save_id", "generation", "step", "progress", "reason", "files"])


def test_no_manifest_raises_another_error(root):
    """Whatever a committed manifest says, loading returns a checkpoint or raises ``StateError``."""
    original = (newest(root) / "MANIFEST.json").read_bytes()

    @settings(deadline=None, max_examples=200)
    @given(st.dictionaries(FIELDS, JSON, max_size=3), st.sampled_from(["path", "size", "hash", "cursor"]), JSON)
    def check(changes, inner, value):
        record = json.loads(original) | changes
        holder = record["progress"] if inner == "cursor" else record["files"]
        for place in holder if isinstance(holder, list) else [holder]:
            if isinstance(place, dict) and value is not None:
                place[inner] = value
        commit(newest(root), json.dumps(record).encode())
        try:
            loaded = DiskStateStore(root, Retention(2)).load()
        except StateError:
            assert isinstance(record["schema"], int)
            return
        assert loaded.info.progress.step in {1, 2}
        for rejected in loaded.rejected:
            Path(rejected.location).rename(newest(root))

    check()


OUTSIDE = "../../../../outside"
PATHS = {
    "parent": f"{OUTSIDE}/model.safetensors",
    "inner-parent": f"rng/../{OUTSIDE}/model.safetensors",
    "not-normal": "./model.safetensors",
    "double-slash": "rng//rank-00000",
    "nul": "model.safetensors\0",
    "empty": "",
    "dot": ".",
    "itself": "COMMIT",
}


def hostile_paths(folder: Path) -> None:
    """Write a run for each path that leads, or might lead, out of a checkpoint whose manifest lists it."""
    for name, path in {**PATHS, "absolute": str(folder / "outside/model.safetensors")}.items():
        checkpoint = new_hostile(folder, name)
        record = json.loads((checkpoint / "MANIFEST.json").read_bytes())
        record["files"][0]["path"] = path
        (checkpoint / "model.safetensors").unlink()
        commit(checkpoint, json.dumps(record).encode())


def hostile_links(folder: Path) -> None:
    """Write a run for each file or folder that is a link to what would verify."""
    for name in [*NAMES, "rng", ""]:
        checkpoint = new_hostile(folder, f"link-{name.replace('/', '-')}")
        path = checkpoint / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        path.symlink_to(folder / "outside" / name)


def hostile_pipes(folder: Path) -> None:
    """Write a run for each file that is a pipe, which nobody ever writes to."""
    for name in NAMES:
        path = new_hostile(folder, f"pipe-{name.replace('/', '-')}") / name
        path.unlink()
        os.mkfifo(path)


def new_hostile(folder: Path, name: str) -> Path:
    """Return step 2, as yet harmless, of a new run with steps 1 and 2; a copy of it lies outside."""
    root = folder / "runs" / name
    store = DiskStateStore(root, Retention(2))
    for step in (1, 2):
        store.save(snapshot_of(step))
    shutil.copytree(newest(root), folder / "outside", dirs_exist_ok=True)
    return newest(root)


def test_nothing_outside_the_run_folder_is_opened(tmp_path):
    """No path, link or pipe in a hostile checkpoint makes ``load`` open a file outside the root, or wait."""
    for write in (hostile_paths, hostile_links, hostile_pipes):
        write(tmp_path)
    new_hostile(tmp_path, "linked-folder")
    checkpoints = tmp_path / "runs/linked-folder/checkpoints"
    checkpoints.rename(tmp_path / "outside/checkpoints")
    checkpoints.symlink_to(tmp_path / "outside/checkpoints")
    new_hostile(tmp_path, "sound")
    result = subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "support/audited_load.py"), str(tmp_path)],
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    report = json.loads(result.stdout)
    outcomes = report["outcomes"]
    assert (outcomes.pop("sound"), outcomes.pop("linked-folder")) == (2, "StateError")
    assert set(outcomes.values()) == {1}
    assert report["outside"] == []
    assert report["num_opened"] > len(outcomes)
