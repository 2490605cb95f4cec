"""A run in a container: a read-only root, a user without a name or home, and one volume."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request

import pytest

from holdfast.bootstrap.run_folder.layout import RunLayout
from tests.support.command_line import ROOT, corpus, environment, losses, tiny
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
    """Start the command line with nothing to write to but ``volume``; its process is that of the program."""
    own = {name: value for name, value in environment().items() if name not in {"TMPDIR", "XDG_CACHE_HOME"}}
    own |= {"HOME": "/nonexistent", "USER": "holdfast", "PYTHONDONTWRITEBYTECODE": "1", **more}
    command = ["unshare", "--mount", "--propagation", "private", "bash", "-euc", ISOLATED, "isolated", str(volume)]
    command += [USER, sys.executable, "-m", "holdfast", *arguments]
    return subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process):
    """Return the exit code of ``process`` and what it wrote to standard error."""
    _, errors = process.communicate(timeout=280)
    return process.returncode, errors


def settings_of(volume, *more):
    """Return settings of a tiny run in ``volume`` whose cache lies where the environment says, and that environment."""
    settings = tiny(volume / "corpus.jsonl", f"run.dir={volume / 'run'}", *more)
    settings = [setting for setting in settings if not setting.startswith("run.cache_dir=")]
    return settings, {name: value.replace("/data", str(volume)) for name, value in variables().items()}


def test_one_volume_is_enough(volume):
    """With the variables of the image, whose folder is the volume, a run trains, and the same command continues it."""
    settings, of_image = settings_of(volume, "run.budget.steps=4")
    for more in ([], ["run.budget.steps=6"]):
        code, errors = ended(isolated(volume, "train", *settings, *more, **of_image))
        assert code == 0, errors
    assert sorted(losses(volume / "run")) == [1, 2, 3, 4, 5, 6]
    assert not [path.name for path in volume.iterdir() if path.name not in {"corpus.jsonl", "run", ".cache"}]


def address_in(process, said):
    """Return the address of the endpoint that ``process`` tells, and add what it wrote until then to ``said``."""
    for line in process.stdout:
        said.append(json.loads(line))
        if found := re.search(r"http://0\.0\.0\.0:(\d+)/metrics", str(said[-1].get("message"))):
            return f"http://127.0.0.1:{found[1]}/metrics"
    pytest.fail(process.stderr.read())


def scraped(address, run, *, beyond):
    """Return the figures that Prometheus gets at ``address`` once ``run`` has a checkpoint beyond step ``beyond``."""
    end = time.monotonic() + 200
    while time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=60) as answer:
            text = answer.read().decode()
            figures = {name: float(value) for name, value in re.findall(r"^(\w+){[^}]*} (\S+)$", text, re.MULTILINE)}
            if figures.get("holdfast_step", 0) > beyond and run.newest_durable_step() > beyond:
                assert re.search(r'^holdfast_run_state{.*state="running"} 1\.0$', text, re.MULTILINE)
                return figures
        time.sleep(0.1)
    pytest.fail(f"no figures at {address}, or no checkpoint, beyond step {beyond}")


def test_a_container_is_scraped_killed_continued_and_stopped(volume):
    """Prometheus reads the figures of a run from outside while it trains; its log is JSON, and no step is lost."""
    page = (ROOT / "docs/installation.md").read_text(encoding="utf-8")
    (monitors,) = set(re.findall(r"'(monitors=\[.*?\])'", page))
    monitors = monitors.replace("0.0.0.0}", "0.0.0.0, port: 0}")
    settings, of_image = settings_of(volume, "run.budget.steps=1000000", "evaluation.every=0", monitors)
    said, seen, restored, run = [], {}, 0, RunLayout(volume / "run")
    for signal, code in (("kill", -9), ("terminate", 143)):
        with isolated(volume, "train", *settings, "--log-format", "json", **of_image) as process:
            try:
                address = address_in(process, said)
                figures = scraped(address, run, beyond=restored)
            finally:
                getattr(process, signal)()
            seen[figures["holdfast_step"]] = figures["holdfast_loss"]
            assert figures["holdfast_steps_total"] == figures["holdfast_step"] - restored
            output, errors = process.communicate(timeout=280)
        assert (process.returncode, errors) == (code, "")
        said += [json.loads(line) for line in output.splitlines() if line.endswith("}")]  # a kill may cut the last one
        restored = run.newest_durable_step()
    found = losses(volume / "run")
    assert sorted(found) == list(range(1, len(found) + 1))
    assert seen.items() <= found.items()
    assert {"metrics", "CheckpointSaved", "result"} <= {line["event"] for line in said}


@pytest.mark.parametrize(
    ("missing", "code", "remedy"),
    [("TMPDIR", 2, "TMPDIR"), ("run.cache_dir", 4, "run.cache_dir"), ("run.dir", 4, "run.dir")],
)
def test_a_folder_that_cannot_be_written_is_one_sentence(volume, missing, code, remedy):
    """Each of the three folders that is not in the volume is named with what sets it, without a traceback."""
    settings = tiny(volume / "corpus.jsonl", f"run.dir={volume / 'run'}", "run.budget.steps=4")
    temporary = {} if missing == "TMPDIR" else {"TMPDIR": str(volume)}
    found, errors = ended(
        isolated(volume, "train", *(each for each in settings if not each.startswith(missing)), **temporary)
    )
    assert found == code, errors
    assert "Traceback" not in errors
    (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert remedy in line
