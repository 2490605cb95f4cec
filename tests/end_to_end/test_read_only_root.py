"""A run in a container: a read-only root, a user without a name or home, and one volume."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.support.command_line import corpus, environment, losses, tiny
from tests.support.container_file import variables

USER = "10001"
# all file systems read-only but that of the volume; the right to look into folders is for a Python in a home folder
ISOLATED = """
mount --bind "$1" "$1"
while read -r _ place _; do
  case "$place" in "$1"|/proc*|/sys*|/dev|/dev/pts) ;; *) mount -o remount,bind,ro "$place" ;; esac
done </proc/self/mounts
cd /
volume=$1 user=$2
shift 2
exec setpriv --reuid "$user" --regid "$user" --clear-groups \
  --inh-caps=+dac_read_search --ambient-caps=+dac_read_search "$@"
"""


def may_isolate():
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not may_isolate(), reason="needs root, unshare and setpriv"),
]


@pytest.fixture
def volume(tmp_path):
    """Return a folder of the user with a corpus."""
    folder = tmp_path / "volume"
    folder.mkdir()
    corpus(folder)
    for path in (folder, folder / "corpus.jsonl"):
        os.chown(path, int(USER), int(USER))
    return folder


def isolated(volume, *arguments, **more):
    """Run the command line with nothing to write to but ``volume``."""
    own = {name: value for name, value in environment().items() if name not in {"TMPDIR", "XDG_CACHE_HOME"}}
    own |= {"HOME": "/nonexistent", "USER": "holdfast", "PYTHONDONTWRITEBYTECODE": "1", **more}
    command = ["unshare", "--mount", "--propagation", "private", "bash", "-euc", ISOLATED, "isolated", str(volume)]
    command += [USER, sys.executable, "-m", "holdfast", *arguments]
    return subprocess.run(command, env=own, capture_output=True, text=True, timeout=280, check=False)


def test_one_volume_is_enough(volume):
    """With the variables of the image, whose folder is the volume, a run trains, and the same command continues it."""
    settings = tiny(volume / "corpus.jsonl", f"run.dir={volume / 'run'}", "run.budget.steps=4")
    settings = [setting for setting in settings if not setting.startswith("run.cache_dir=")]
    of_image = {name: value.replace("/data", str(volume)) for name, value in variables().items()}
    process = isolated(volume, "train", *settings, **of_image)
    assert process.returncode == 0, process.stderr
    process = isolated(volume, "train", *settings, "run.budget.steps=6", **of_image)
    assert process.returncode == 0, process.stderr
    assert sorted(losses(volume / "run")) == [1, 2, 3, 4, 5, 6]
    assert not [path.name for path in volume.iterdir() if path.name not in {"corpus.jsonl", "run", ".cache"}]


@pytest.mark.parametrize(
    ("missing", "code", "remedy"),
    [("TMPDIR", 2, "TMPDIR"), ("run.cache_dir", 4, "run.cache_dir"), ("run.dir", 4, "run.dir")],
)
def test_a_folder_that_cannot_be_written_is_one_sentence(volume, missing, code, remedy):
    """Each of the three folders that is not in the volume is named with what sets it, without a traceback."""
    settings = tiny(volume / "corpus.jsonl", f"run.dir={volume / 'run'}", "run.budget.steps=4")
    temporary = {} if missing == "TMPDIR" else {"TMPDIR": str(volume)}
    process = isolated(volume, "train", *(each for each in settings if not each.startswith(missing)), **temporary)
    assert process.returncode == code, process.stderr
    assert "Traceback" not in process.stderr
    (line,) = [line for line in process.stderr.splitlines() if line.startswith("error: ")]
    assert remedy in line
