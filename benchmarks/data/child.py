"""Measurements in processes of their own, so that none leaves another anything warm."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from holdfast.bootstrap.process.library_environment import set_library_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "LITDATA_DISABLE_VERSION_CHECK": "1"}
_ROOT = Path(__file__).parents[2]

_stays = False


def stay_here() -> None:
    """Let ``measure_apart`` work in this process from now on, which is quick and no measurement."""
    global _stays  # noqa: PLW0603  of the process
    _stays = True
    os.environ.update(_OFFLINE)


def measure_apart(
    task: str, environment: Mapping[str, str] | None = None, root: Path = _ROOT, /, **arguments: object
) -> dict[str, Any]:
    """Call ``task``, ``module.function`` of this package as it is in ``root``, in a new process; return its result."""
    if _stays:
        with patch.dict(os.environ, environment or {}):
            return _call(task, arguments)
    command = [sys.executable, "-m", "benchmarks.data.child", task, json.dumps(arguments)]
    done = subprocess.run(
        command,
        env=dict(os.environ) | _OFFLINE | dict(environment or {}),
        cwd=root,  # which comes before PYTHONPATH
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        message = f"{task} failed with {arguments}:\n{done.stderr[-4000:]}"
        raise SystemExit(message)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _call(task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    module, _, function = task.partition(".")
    found: dict[str, Any] = getattr(importlib.import_module(f"benchmarks.data.{module}"), function)(**arguments)
    return found


def reset_peak() -> None:
    """Let the peak of this process's memory begin anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory() -> int:
    """Return the most bytes that this process held since ``reset_peak``."""
    return _status("VmHWM")


def private_memory() -> int:
    """Return how many bytes this process holds that no file backs."""
    return _status("RssAnon")


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None, f"this system does not tell {name}"
    return int(found[1]) * 1024


if __name__ == "__main__":
    set_library_defaults()  # as the command line does
    print("\n" + json.dumps(_call(sys.argv[1], json.loads(sys.argv[2]))))
