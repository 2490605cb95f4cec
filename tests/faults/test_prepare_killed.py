"""What `prepare` leaves when it is killed or interrupted, and what the same command makes of that."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest

from tests.support.file_faults import files_under

REPOSITORY = Path(__file__).parents[2]
FILES = 14
WORDS = ["the", "model", "reads", "text", "and", "learns", "to", "say", "what", "comes", "next", "in", "small", "steps"]


def started(folder, swift=1 << 30):
    """Start `prepare` of the corpus in ``folder``, with shards of two files and a line for each file operation.

    Those behind ``swift`` of them are so slow that a signal comes in time.
    """
    environment = os.environ | {
        "PYTHONPATH": str(REPOSITORY),
        "HF_HUB_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SWIFT_OPERATIONS": str(swift),
    }
    settings = [
        "data.kind=files",
        f"data.path={folder.parent / 'corpus'}",
        "data.holdout=0.1",
        "data.workers=2",
        "tokenizer.vocabulary_size=300",
        "tokenizer.backend=huggingface",
        f"run.cache_dir={folder}",
    ]
    return subprocess.Popen(
        [sys.executable, __file__, *settings],
        env=environment,
        cwd=folder.parent,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finished(folder):
    """Prepare in ``folder`` to the end; return all files, those of versions without the time of their creation."""
    process = started(folder)
    output, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    assert f"of {FILES * 30} documents" in output
    files = files_under(folder)
    for path in files:
        if "/.versions/" in path:
            files[path] = json.loads(files[path]) | {"created": None}
    return files


def read_until(process, operations):
    """Read the lines of so many file operations."""
    for _ in range(operations):
        assert process.stdout.readline(), process.communicate()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with a corpus of several files."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "corpus").mkdir()
    chance = random.Random(0)
    for number in range(FILES):
        texts = (" ".join(chance.choices(WORDS, k=chance.randrange(5, 40))) for _ in range(30))
        lines = "".join(f'{{"text": "{text}"}}\n' for text in texts)
        (folder / f"corpus/{number:02}.jsonl").write_text(lines)
    return folder


@pytest.fixture(scope="module")
def undisturbed(place):
    files = finished(place / "undisturbed")
    assert len([path for path in files if path.endswith("manifest.json")]) == FILES // 2
    return files


@pytest.mark.slow
def test_prepare_killed_at_five_moments_leaves_the_same_bytes(place, undisturbed):
    """Killed with SIGKILL five times, each some way on, the same command finishes to an undisturbed one's bytes."""
    chance = random.Random(5)
    kills = [chance.randrange(1, 28) for _ in range(5)]
    for operations in kills:
        process = started(place / "killed", operations)
        read_until(process, operations)
        process.kill()
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL, kills
    assert finished(place / "killed") == undisturbed, kills


@pytest.mark.slow
def test_an_interrupted_prepare_ends_at_once_and_goes_on(place, undisturbed):
    """At SIGINT `prepare` ends within few operations with 130 and no traceback; the next call keeps what was there."""
    process = started(place / "interrupted", 60)
    read_until(process, 60)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert len(output.splitlines()) < 50, "so many take five seconds, and all that were left twice as many"
    assert "Traceback" not in errors
    kept = {path: path.stat().st_mtime_ns for path in (place / "interrupted/tokens").glob("*/*/tokens.bin")}
    assert 0 < len(kept) < FILES // 2
    assert finished(place / "interrupted") == undisturbed
    assert kept == {path: path.stat().st_mtime_ns for path in kept}


def prepare(settings):
    """Run the command with small shards, telling of each file operation."""
    from holdfast.adapters.shared.token_store.folder_operations import TokenFileOperations
    from holdfast.application.data.pretokenize import PrepareTokens
    from holdfast.bootstrap.cli.main import main

    numbers, swift = count(1), int(os.environ["SWIFT_OPERATIONS"])

    def told(name):
        operation = getattr(TokenFileOperations, name)

        def tell(self, path, *arguments):
            sys.stdout.write(f"{name} {path.name}\n")
            sys.stdout.flush()
            time.sleep(0.002 if next(numbers) < swift else 0.2)  # as a disk would take
            return operation(self, path, *arguments)

        return tell

    for name in dir(TokenFileOperations):
        if not name.startswith("_") and name != "remove_tree":
            setattr(TokenFileOperations, name, told(name))
    corpus = next(Path(setting.removeprefix("data.path=")) for setting in settings if "data.path=" in setting)
    sizes = sorted(path.stat().st_size for path in corpus.iterdir())
    PrepareTokens.__init__.__kwdefaults__["shard_bytes"] = 2 * sizes[-1]
    return main(["prepare", *settings])


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born ignoring it
    sys.exit(prepare(sys.argv[1:]))
