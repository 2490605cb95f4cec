"""Loads from each run folder in FOLDER/runs and prints what came of it, and what was opened in FOLDER/outside.

python audited_load.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import StateError

OPENED: list[str] = []


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Note the path of whatever is opened or listed."""
    if event in {"open", "os.listdir", "os.scandir"} and isinstance(arguments[0], (str, bytes, os.PathLike)):
        OPENED.append(os.path.realpath(os.fsdecode(arguments[0])))


def outcome(root: Path) -> int | str | None:
    """Return the step that was loaded, or the kind of error."""
    try:
        info = DiskStateStore(root, Retention(2)).load().info
    except StateError:
        return "StateError"
    return info.progress.step if info else None


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    sys.addaudithook(watch)
    outcomes = {root.name: outcome(root) for root in sorted((folder / "runs").iterdir())}
    outside = [path for path in OPENED if path.startswith(os.path.realpath(folder / "outside"))]
    sys.stdout.write(json.dumps({"outcomes": outcomes, "outside": outside, "num_opened": len(OPENED)}))
