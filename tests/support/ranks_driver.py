"""Kills one of two ranks that write a checkpoint at each point, in children of a process without threads.

python ranks_driver.py RANK FOLDER, where RANK is the one that is killed
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from holdfast.adapters.state_store import checkpoint_writer as waiting
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import StateError
from holdfast.ports.testing.snapshots import snapshot_of
from holdfast.ports.testing.state_store import FILES, shares_of
from tests.support.crash_driver import in_child
from tests.support.file_faults import KillAt, WatchedFiles, files_under, litter, run_through

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 0.3
"""Seconds that a rank waits for one that is gone; a machine that is busy may take its time to start one."""


class KillAtChange(KillAt):
    """Counts what changes something alone: how often a rank looks for the others is a matter of luck."""

    def __call__(self, name: str, path: Path, operation: Callable[[], Any]) -> Any:
        return operation() if name == "open_file" else super().__call__(name, path, operation)


OLDER = {"model": b"one"}


def begin(function: Callable[[], Any]) -> int:
    """Call ``function`` in a child; return its id."""
    child = os.fork()
    if child == 0:
        try:
            function()
            os._exit(0)
        except StateError:
            os._exit(3)
        except BaseException:  # noqa: BLE001  (a child must never return into its parent's code)
            traceback.print_exc()
            os._exit(1)
    return child


def store_of(root: Path, rank: int, killed: int, point: int) -> DiskStateStore:
    files = WatchedFiles(KillAtChange(point) if rank == killed else run_through)
    return DiskStateStore(root, Retention(3), files=files)


def wait_only_for_the_gone(gone: Path) -> None:
    """Have the time that this rank waits for another pass only once the file ``gone`` tells that it is dead."""

    def passed() -> float:
        return time.time() - gone.stat().st_mtime if gone.exists() else 0.0

    waiting.time = SimpleNamespace(monotonic=passed, sleep=time.sleep)


def save_together(root: Path, killed: int, point: int) -> list[int]:
    """Save step 4 on two ranks of which one is killed; return how each ended, negative for a signal."""
    shares, gone = shares_of(4, patience=PATIENCE), root.with_suffix(".gone")
    wait_only_for_the_gone(gone)
    children = [
        begin(lambda: store_of(root, 0, killed, point).save(shares[0])),
        begin(lambda: store_of(root, 1, killed, point).contribute(shares[1])),
    ]
    codes = {killed: os.waitstatus_to_exitcode(os.waitpid(children[killed], 0)[1])}
    if codes[killed] < 0:
        gone.touch()
    codes[1 - killed] = os.waitstatus_to_exitcode(os.waitpid(children[1 - killed], 0)[1])
    return [codes[0], codes[1]]


def recover(root: Path) -> dict[str, Any]:
    """Return what a new process finds, and whether it can go on."""
    store = DiskStateStore(root, Retention(3))
    loaded = store.load()
    assert loaded.info is not None
    assert loaded.folder is not None
    found = {name: data for name, data in files_under(loaded.folder).items() if name not in ("MANIFEST.json", "COMMIT")}
    older = files_under(root / "checkpoints/checkpoint-1")
    store.save(snapshot_of(9, {}))
    return {
        "step": loaded.info.progress.step,
        "is_whole": found == (FILES if loaded.info.progress.step == 4 else OLDER),
        "is_older_untouched": OLDER.items() <= older.items(),
        "rejected": len(loaded.rejected),
        "litter": litter(root),
    }


def main(killed: int, folder: Path) -> None:
    """Print a JSON list with how the ranks ended and what ``recover`` returned after a kill at each point."""
    template = folder / "template"
    DiskStateStore(template, Retention(3)).save(snapshot_of(1, OLDER))
    outcomes = []
    for point in range(1000):
        root = folder / f"{point}"
        shutil.copytree(template, root)
        codes = save_together(root, killed, point)
        _, outcome = in_child(lambda: recover(root))  # noqa: B023
        if codes == [0, 0]:
            break
        outcomes.append({"point": point, "codes": codes, **(outcome or {})})
        shutil.rmtree(root)
    sys.stdout.write(json.dumps(outcomes))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
