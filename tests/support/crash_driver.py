"""Kills a store at each point of an action, in children of a process without threads, and prints how each recovered.

python crash_driver.py SCENARIO FOLDER
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.domain.checkpoints.retention import Retention
from tests.support.file_faults import KillAt, WatchedFiles, files_under, litter, payload, snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable


def in_child(function: Callable[[], Any]) -> tuple[int, Any]:
    """Return how a child that calls ``function`` ended, as ``os.waitpid`` has it, and the result, None if killed."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writable, json.dumps(function()).encode())
            os._exit(0)
        except BaseException:  # noqa: BLE001  (a child must never return into its parent's code)
            traceback.print_exc()
            os._exit(1)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        data = pipe.read()
    return os.waitpid(child, 0)[1], json.loads(data) if data else None


def nothing(root: Path) -> None:
    """Prepare a place in which the run folder is still missing."""


def one_and_litter(root: Path) -> None:
    """Prepare a store with step 2 alone, and the rests of a killed save and a killed deletion."""
    store = DiskStateStore(root, Retention(1))
    for step in (1, 2):
        store.save(snapshot_of(step))
    for name in (".tmp/dead", ".trash/checkpoint-1.dead"):
        (root / name / "rng").mkdir(parents=True)
        (root / name / "rng" / "rank-00000").write_bytes(b"half")


def two_bad(root: Path) -> None:
    """Prepare a store with steps 1 to 4 of which the last two are damaged."""
    store = DiskStateStore(root, Retention(4))
    for step in (1, 2, 3, 4):
        store.save(snapshot_of(step))
    (root / "checkpoints/checkpoint-3/COMMIT").unlink()
    (root / "checkpoints/checkpoint-4/model.safetensors").write_bytes(b"overwritten")
    (root / "quarantine").rmdir()


def four(root: Path) -> None:
    """Prepare a store with steps 1 to 4, and a superseded step 4 of an earlier past."""
    store = DiskStateStore(root, Retention(4))
    for step in (1, 2, 3, 4):
        store.save(snapshot_of(step))
    store.supersede(3)
    store.save(snapshot_of(4))


def save(root: Path, killer: KillAt) -> None:
    """Save step 3."""
    DiskStateStore(root, Retention(1), files=WatchedFiles(killer)).save(snapshot_of(3, killer))


def load(root: Path, killer: KillAt) -> None:
    """Load, which sets the damaged ones aside."""
    DiskStateStore(root, Retention(4), files=WatchedFiles(killer)).load()


def three(root: Path) -> None:
    """Prepare a store with steps 1 to 3."""
    store = DiskStateStore(root, Retention(4))
    for step in (1, 2, 3):
        store.save(snapshot_of(step))


def evict(root: Path, killer: KillAt) -> None:
    """Let the oldest leave the disk."""
    DiskStateStore(root, Retention(4), files=WatchedFiles(killer)).evict(1)


def supersede(root: Path, killer: KillAt) -> None:
    """Move all but steps 1 and 2 out of the way."""
    DiskStateStore(root, Retention(4), files=WatchedFiles(killer)).supersede(2)


def recover(root: Path) -> dict[str, Any]:
    """Return what a new process finds, twice, and whether it can go on."""
    first = DiskStateStore(root, Retention(4)).load()
    after_first = files_under(root)
    second = DiskStateStore(root, Retention(4)).load()
    after_second = files_under(root)
    store = DiskStateStore(root, Retention(4))
    store.save(snapshot_of(10))
    kept = {info.progress.step: Path(info.location) for info in store.list()}
    return {
        "step": first.info.progress.step if first.info else None,
        "second_is_no_op": after_first == after_second and second.info == first.info and not second.rejected,
        "quarantined": sorted(path.name for path in (root / "quarantine").glob("*")),
        "superseded": sorted(path.name for path in (root / "superseded").glob("*")),
        "damaged": [step for step, folder in kept.items() if not payload(step).items() <= files_under(folder).items()],
        "goes_on": store.load().info == store.list()[-1] and max(kept) == 10,
        "litter": litter(root),
        "halves": sorted({path.name for path in (root / "checkpoints").iterdir()} - {f"checkpoint-{n}" for n in kept}),
    }


SCENARIOS = {
    "first": (nothing, save),
    "save": (one_and_litter, save),
    "quarantine": (two_bad, load),
    "evict": (three, evict),
    "supersede": (four, supersede),
}


def main(scenario: str, folder: Path) -> None:
    """Print a JSON list with what ``recover`` returned after a kill at each point."""
    prepare, act = SCENARIOS[scenario]
    template = folder / "template"
    template.mkdir()
    prepare(template / "deep/run")
    outcomes = []
    for point in range(1000):
        place = folder / f"{point}"
        shutil.copytree(template, place, symlinks=True)
        root = place / "deep/run"
        status, _ = in_child(lambda: act(root, KillAt(point)))  # noqa: B023
        if status == 0:
            break
        assert os.WIFSIGNALED(status), f"the child failed by itself at point {point}"
        _, outcome = in_child(lambda: recover(root))  # noqa: B023
        outcomes.append({"point": point, **(outcome or {})})
        shutil.rmtree(place)
    sys.stdout.write(json.dumps(outcomes))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
