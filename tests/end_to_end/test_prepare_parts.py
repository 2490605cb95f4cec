"""`prepare` in parts, by several processes or on a Ray cluster, makes the bytes of one process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.support.command_line import WORDS, environment, run, run_here
from tests.support.file_faults import files_under

FILES, DOCUMENTS = 4, 1500
DEDUP = "data.dedup={kind: exact}"


def write_corpus(folder, files=FILES, documents=DOCUMENTS):
    """Write files of some MB each, so that each is a shard; some documents stand in several files."""
    chance, words = random.Random(0), WORDS.split()
    folder.mkdir()
    common = [" ".join(chance.choices(words, k=500)) for _ in range(20)]
    for number in range(files):
        texts = [" ".join(chance.choices(words, k=chance.randrange(300, 900))) for _ in range(documents)]
        texts += chance.sample(common, 5)
        lines = (json.dumps({"text": text}) for text in texts)
        (folder / f"{number:02}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("parts")
    write_corpus(home / "corpus")
    return home


def settings_of(home, name, *more):
    return [
        f"data.path={home / 'corpus'}",
        "data.kind=files",
        "tokenizer.vocabulary_size=300",
        "tokenizer.backend=huggingface",
        f"run.cache_dir={home / name}",
        "data.workers=1",
        *more,
    ]


def files_of(folder):
    """Return the files of a cache, those of versions without the time of their creation."""
    files = files_under(folder / "tokens")
    for path in files:
        if path.startswith(".versions/") or "/.versions/" in path:
            files[path] = json.loads(files[path]) | {"created": None}
    return files


@pytest.fixture(scope="module")
def whole(home):
    """Return the files that one process makes, without and with a search for duplicates."""
    found = {}
    for name, more in (("plain", ()), ("dedup", (DEDUP,))):
        done = run_here("prepare", *settings_of(home, name, *more), cwd=home)
        assert done.returncode == 0, done.stderr
        found[name] = files_of(home / name)
    assert len([path for path in found["plain"] if path.endswith("manifest.json")]) == FILES
    return found


@pytest.mark.slow
def test_parts_make_the_bytes_of_one_process(home, whole):
    """Three parts, one after the other, make all shards; the last one completes the data, and no earlier one."""
    for number in (2, 0, 1):
        done = run_here("prepare", "--part", f"{number}/3", *settings_of(home, "parts"), cwd=home)
        assert done.returncode == 0, done.stderr
        assert ("version: " in done.stdout) == (number == 1)
        assert ("shards are left to other parts" in done.stdout) == (number != 1)
    assert files_of(home / "parts") == whole["plain"]
    done = run_here("prepare", "--finish", "--json", *settings_of(home, "parts"), cwd=home)
    assert json.loads(done.stdout)["missing_shards"] == 0


@pytest.mark.slow
def test_nothing_is_finished_as_long_as_shards_are_missing(home):
    """--finish ends with code 75 and says how many shards are missing; a part that does not exist is refused."""
    settings = settings_of(home, "early")
    assert run_here("prepare", "--part", "0/3", *settings, cwd=home).returncode == 0
    done = run_here("prepare", "--finish", *settings, cwd=home)
    assert done.returncode == 75
    assert f"{FILES - 2} of {FILES} shards are missing" in done.stderr
    done = run_here("prepare", "--part", "3/3", *settings, cwd=home)
    assert done.returncode == 2
    assert "such as 0/4 to 3/4" in done.stderr


@pytest.mark.slow
def test_parts_search_for_duplicates_together(home, whole):
    """A part that comes first looks through its own files and waits with code 75; when all have, all can go on."""
    settings = settings_of(home, "parts-dedup", DEDUP)
    codes = [run_here("prepare", "--part", f"{number}/2", *settings, cwd=home).returncode for number in (0, 1, 0)]
    assert codes == [75, 0, 0]
    assert files_of(home / "parts-dedup") == whole["dedup"]


def start(home, name, *words):
    command = [sys.executable, "-m", "application", "prepare", *words, *settings_of(home, name)]
    return subprocess.Popen(
        command, cwd=home, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_four_processes_at_once_make_the_same_bytes(home, whole):
    """Parts that run at the same time, tokenizer and all, make the bytes of one process; one of them completes them."""
    parts = [start(home, "at-once", "--part", f"{number}/4") for number in range(4)]
    outputs = [part.communicate(timeout=300) for part in parts]
    assert [part.returncode for part in parts] == [0] * 4, outputs
    assert any("version: " in output for output, _ in outputs)
    assert files_of(home / "at-once") == whole["plain"]


def of_ray(name):
    """Return the processes of Ray's workers that run the task ``name``."""
    found = subprocess.run(["pgrep", "-f", f"ray::{name}"], text=True, capture_output=True, check=False)
    return [int(line) for line in found.stdout.split()]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_ray_makes_the_bytes_of_one_process(home, whole, workers, monkeypatch):
    """One, two and four workers of a local Ray make the same bytes, also with a search for duplicates."""
    pytest.importorskip("ray", reason="needs ray")
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", json.dumps({"CPU": workers}))
    for name, more in (("plain", ()), ("dedup", (DEDUP,))):
        done = run("prepare", "--on", "ray", *settings_of(home, f"ray-{name}-{workers}", *more), cwd=home, timeout=400)
        assert done.returncode == 0, done.stderr
        assert "tokens/s" in done.stdout
        assert files_of(home / f"ray-{name}-{workers}") == whole[name]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_workers_and_drivers_change_no_byte(tmp_path):
    """After twenty kills of workers and three of the command itself, the bytes are those of one process."""
    pytest.importorskip("ray", reason="needs ray")
    write_corpus(tmp_path / "corpus", files=40, documents=300)
    done = run("prepare", *settings_of(tmp_path, "here"), cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    chance, kills, drivers = random.Random(3), 0, 0
    driver = start(tmp_path, "killed", "--on", "ray")
    deadline = time.monotonic() + 600
    while kills < 20 or drivers < 3:
        assert time.monotonic() < deadline, f"{kills} workers and {drivers} drivers were killed"
        if driver.poll() is not None:
            break
        if kills < 20 and (workers := of_ray("make_part")):
            os.kill(chance.choice(workers), signal.SIGKILL)
            kills += 1
        if kills >= 5 * (drivers + 1) and drivers < 3:
            driver.kill()
            driver.communicate()
            drivers += 1
            driver = start(tmp_path, "killed", "--on", "ray")
        time.sleep(0.7)
    output, errors = driver.communicate(timeout=300)
    assert driver.returncode == 0, output + errors
    assert (kills, drivers) == (20, 3)
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "here")
