"""A restore of which one reading returns a wrong bit never ends well with another result."""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DRIVER = HERE.parent / "support/flip_driver.py"
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1  # of prctl(2)

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="what flips bits of readings is compiled by cc")


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    """Return what is preloaded."""
    path = tmp_path_factory.mktemp("shim") / "flip_reads.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", path, HERE / "flip_reads.c", "-ldl"], check=True)
    return path


def end_with_parent():
    """Have the system kill this process when the tests that started it are gone."""
    LIBC.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))


def sweep(shim, folder, way, *, large, stride, ranks=1):
    """Return what came of each reading, and first of readings that were right, a list of each rank's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    own = {"PYTHONPATH": str(HERE.parents[1]), "LD_PRELOAD": str(shim), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    if ranks > 1:
        own |= {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, str(DRIVER), way, str(folder), str(large), str(stride)]
    started = [
        subprocess.Popen(
            command,
            env=os.environ | own | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}),
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509  it calls one function of the system
        )
        for rank in range(ranks)
    ]
    errors = [process.communicate(timeout=1500)[1] for process in started]
    assert [process.returncode for process in started] == [0] * ranks, errors
    return [[json.loads(line) for line in (folder / f"found-{rank}").read_text().splitlines()] for rank in range(ranks)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a folder with a run of two checkpoints, as ``run``."""
    folder = tmp_path_factory.mktemp("trained")
    generator = random.Random(0)
    words = ["the", "model", "reads", "text", "and", "learns", "to", "say", "what", "comes"]
    lines = [" ".join(generator.choices(words, k=60)) for _ in range(60)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings = [
        *("data.kind=files", f"data.path={folder / 'corpus.jsonl'}", "data.sequence_length=32", "data.holdout=0.2"),
        *("tokenizer.vocabulary_size=300", "tokenizer.backend=huggingface", f"run.cache_dir={folder / 'cache'}"),
        *(f"model.config.{name}={value}" for name, value in shape.items()),
        *("model.config.num_key_value_heads=2", "optimizer.batch_size=4", "optimizer.device=cpu"),
        *("optimizer.precision=fp32", "run.budget.steps=3", "state_store.every=1", "state_store.keep=2"),
        *("evaluation.every=3", "sample.max_new_tokens=1", "monitors=[]", f"run.dir={folder / 'run'}"),
    ]
    command = [sys.executable, "-m", "application", "train", *settings]
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1]), "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
    return folder


COMMANDS = {
    "generate": "generate run --max-new-tokens 8 --temperature 0",
    "evaluate": "evaluate run",
    "export": "export run made",
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("large", [1, 1 << 20], ids=["in-pieces", "in-memory"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_wrong_reading_of_a_trained_model_is_used(shim, trained, tmp_path, command, large):
    """What a command makes of a run is the same, or that of the older checkpoint, or it ends in an error."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    (found,) = sweep(shim, tmp_path, COMMANDS[command], large=large, stride=1)
    judge(found, older=2)


def judge(found, *, older):
    """Check each outcome of the readings of a rank; return how many were wrong and how many ended in an error."""
    right, *others = found
    assert right["count"] > 0
    assert others, "no reading was counted"
    older_states = {other["state"] for other in others if other.get("step") == older}
    assert len(older_states) <= 1
    assert right["state"] not in older_states
    for other in others:
        assert "error" in other or other["state"] == right["state"] or other["step"] == older, other
        assert "Traceback" not in other.get("error", "")
    return len(others), sum("error" in other for other in others)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["one", "archived"])
def test_a_wrong_reading_of_a_process_that_is_alone_is_not_used(shim, tmp_path, way):
    """Whichever reading is wrong, it is read again: the state that goes on is the one that was saved."""
    (found,) = sweep(shim, tmp_path, way, large=1, stride=23)
    assert judge(found, older=2) == (len(found) - 1, 0)
    assert all(other["state"] == found[0]["state"] for other in found)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("large", [1, 1 << 20], ids=["in-pieces", "in-memory"])
@pytest.mark.parametrize("way", ["one", "two", "encrypted", "archived"])
def test_no_wrong_reading_of_a_process_that_is_alone_is_used(shim, tmp_path, way, large):
    """Every reading of a restore, one after another."""
    (found,) = sweep(shim, tmp_path, way, large=large, stride=1)
    assert judge(found, older=2) == (len(found) - 1, 0)
    assert all(other["state"] == found[0]["state"] for other in found)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("large", [1, 1 << 20], ids=["in-pieces", "in-memory"])
@pytest.mark.parametrize("way", ["ddp", "fsdp2"])
def test_no_wrong_reading_of_two_ranks_is_used(shim, tmp_path, way, large):
    """Whichever reading of whichever rank is wrong, both go on from the same state as it was saved, or both end."""
    found = sweep(shim, tmp_path, way, large=large, stride=1, ranks=2)
    for each in found:
        judge(each, older=2)
    for first, second in zip(*found, strict=True):
        assert ("error" in first) == ("error" in second)
        assert first.get("step") == second.get("step")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("way", ["bin", "npy", "parquet", "arrow", "cache", "encrypted"])
def test_no_wrong_reading_of_tokens_is_used(shim, tmp_path, way):
    """Whichever reading of token files is wrong, documents and loss masks are the same, or there is an error."""
    own = {"PYTHONPATH": str(HERE.parents[1]), "LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE.parent / "support/token_flip_driver.py"), way, str(tmp_path)]
    subprocess.run(command, env=os.environ | own, check=True)
    right, *others = [json.loads(line) for line in (tmp_path / "found").read_text().splitlines()]
    assert len(others) == right["count"] > 4
    assert [other for other in others if other.get("digest", right["digest"]) != right["digest"]] == []
    if way in ("cache", "encrypted"):  # what is wrong once is read again
        assert [other for other in others if "error" in other or other["set aside"]] == []


AUDITED = """
import ctypes, json, os, shutil, sys
from pathlib import Path
from holdfast.adapters.shared.audit_log import AuditLog
from holdfast.adapters.shared.audit_log import verify_chain

shim, root = ctypes.CDLL(None), Path(sys.argv[1])
log = AuditLog(root / "sound/audit.jsonl")
for step in range(20):
    log.append("CheckpointSaved", {"step": step})
log.close()
shutil.copytree(root / "sound", root / "torn")
with (root / "torn/audit.jsonl").open("ab") as file:
    file.write(b"half a li")

def act(way, number):
    shutil.rmtree(root / "used", ignore_errors=True)
    shutil.copytree(root / ("torn" if way == "mend" else "sound"), root / "used")
    path = root / "used/audit.jsonl"
    shim.flip_arm(os.fsencode(root / "used"), ctypes.c_long(number))
    if way == "verify":
        found = verify_chain(path)
    else:
        log = AuditLog(path)
        log.append("CheckpointSaved", {"step": 20})
        log.close()
    count = shim.flip_count()
    shim.flip_arm(os.fsencode(root / "nothing"), ctypes.c_long(-1))
    report = found if way == "verify" else verify_chain(path)
    return count, [way, number, report.num_entries, report.broken and report.broken.reason]

for way in ("verify", "append", "mend"):
    count, right = act(way, -1)
    print(json.dumps([right, [act(way, number)[1] for number in range(count)]]))
"""


def test_no_wrong_reading_of_an_audit_ends_or_cuts_its_chain(shim, tmp_path):
    """Whichever reading of audit.jsonl is wrong, it verifies, the next entry is added, and none is cut off."""
    own = {"PYTHONPATH": str(HERE.parents[1]), "LD_PRELOAD": str(shim)}
    command = [sys.executable, "-c", AUDITED, str(tmp_path)]
    process = subprocess.run(command, env=os.environ | own, check=False, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    for line in process.stdout.splitlines():
        right, others = json.loads(line)
        assert right[2] == {"verify": 20, "append": 21, "mend": 22}[right[0]]
        assert len(others) >= 2
        assert [other for other in others if [other[0], *other[2:]] != [right[0], *right[2:]]] == []
