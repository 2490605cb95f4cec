"""Continues by this tree a run that an earlier commit began, and compares it with that commit's own whole run.

``python tests/support/earlier_commit.py COMMIT [SETTING...]`` does it with the default run, changed by the settings.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
RUN = Path("runs/default")


def has_commit(commit: str) -> bool:
    """Return whether the repository of this tree, if there is one, holds ``commit``."""
    if shutil.which("git") is None:
        return False
    command = ["git", "-C", str(ROOT), "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def check_out(commit: str, folder: Path) -> None:
    """Make ``folder`` a worktree of ``commit``; ``remove`` it in the end."""
    subprocess.run(
        ["git", "-C", str(ROOT), "worktree", "add", "--quiet", "--detach", str(folder), commit],
        check=True,
        capture_output=True,
    )


def remove(folder: Path) -> None:
    """Remove the worktree at ``folder``."""
    subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(folder)], check=True)


def start(tree: Path, settings: Sequence[str], home: Path) -> subprocess.Popen[str]:
    """Start the command ``train`` of the source tree ``tree`` in ``home``; what it prints is in ``home/output``."""
    home.mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(tree), "HF_HUB_OFFLINE": "1"}
    with (home / "output").open("a", encoding="utf-8") as output:
        command = [sys.executable, "-m", "application", "train", *settings]
        return subprocess.Popen(command, cwd=home, env=environment, text=True, stdout=output, stderr=output)


def train(tree: Path, settings: Sequence[str], home: Path) -> None:
    """Run ``train`` of the source tree ``tree`` to its end; raises ``AssertionError`` if that is not a success."""
    code = start(tree, settings, home).wait()
    assert code == 0, (home / "output").read_text(encoding="utf-8")


def kill_at(step: int, tree: Path, settings: Sequence[str], home: Path) -> None:
    """Start ``train`` of the source tree ``tree`` and end it by SIGKILL once its metrics hold ``step``."""
    process, metrics = start(tree, settings, home), home / RUN / "metrics.jsonl"
    while not (metrics.exists() and f'"step": {step},' in metrics.read_text(encoding="utf-8")):
        assert process.poll() is None, (home / "output").read_text(encoding="utf-8")
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def weights(home: Path) -> bytes:
    """Return the bytes of the weights of the newest checkpoint of the run in ``home``."""
    folder = max((home / RUN / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    return (folder / "model.safetensors").read_bytes()


def compare(commit: str, settings: Sequence[str], scratch: Path, *, step: int = 150) -> tuple[Path, Path]:
    """Return the homes of a run of ``commit`` and of one that it began, was killed in at ``step`` and this continued.

    Both use one cache of tokens, which ``commit`` makes.
    """
    whole, continued, tree = scratch / "whole", scratch / "continued", scratch / "tree"
    common = ["optimizer.precision=fp32", "optimizer.device=cpu", f"run.cache_dir={scratch / 'cache'}", *settings]
    check_out(commit, tree)
    try:
        train(tree, common, whole)
        kill_at(step, tree, common, continued)
    finally:
        remove(tree)
    train(ROOT, common, continued)
    return whole, continued


def main() -> None:
    """Print whether the weights are the same bytes; the exit code is 1 if they are not."""
    with tempfile.TemporaryDirectory() as scratch:
        whole, continued = (weights(home) for home in compare(sys.argv[1], sys.argv[2:], Path(scratch)))
    is_same = whole == continued
    print(f"model.safetensors, {len(whole)} bytes: {'identical' if is_same else 'different'}")  # noqa: T201
    sys.exit(not is_same)


if __name__ == "__main__":
    main()
