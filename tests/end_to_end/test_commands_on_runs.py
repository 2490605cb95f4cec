"""What one command accepts, all accept: each command that takes a run, on each kind of run, from each place."""

from __future__ import annotations

import io
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.end_to_end.test_preference_run import write_pairs
from tests.support.command_line import SAME_RHYTHM, corpus, run, run_here, tiny
from tests.support.planted_chats import SPECIAL, prompts, write_chats

pytestmark = pytest.mark.slow

KEY = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
SHORT = (SAME_RHYTHM, "run.budget.steps=4", "state_store.every=1", "state_store.keep=9", "evaluation.every=1")
KINDS = {
    "text": (),
    "streamed": ("data.mode=stream",),
    "epochs": ("run.budget.steps=null", "data.epochs=1", "optimizer.batch_size=32"),
    "minutes": ("run.budget.steps=null", "run.budget.minutes=0.001"),  # one step, as the process is older than that
    "encrypted": ("data.cache.encryption.key_from=env:RUN_KEY", "state_store.encryption.key_from=env:RUN_KEY"),
    "archived": ("state_store.archive.url=archive",),
    "chat": ("data.path=chats.jsonl", "data.task=chat", "data.chat.template=chatml", SPECIAL),
    "preference": (
        "data.path=pairs.jsonl",
        "data.task=preference",
        "data.chat.template=plain",
        "data.sequence_length=128",
    ),
    "lora": ("model.path=base", "model.lora.rank=2"),
    "ranks": ("distributed.processes=2",),
    "shards": ("distributed.processes=2", "optimizer.sharding=fsdp2"),
}
"""The settings that make each kind of run another than the first."""
DATA = {"chat": "chats.jsonl", "preference": "pairs.jsonl"}

COMMANDS = {
    "generate": "generate {run} --max-new-tokens 2",
    "generate --plain": "generate {run} --plain --prompt the --max-new-tokens 2",
    "chat": "chat {run} --terminal --max-new-tokens 2",
    "evaluate": "evaluate {run} --json",
    "evaluate --best": "evaluate {run} --best",
    "evaluate --data": "evaluate {run} --data {data}",
    "export": "export {run} {out}/model",
    "export --merged": "export {run} {out}/merged --merged",
    "export --data": "export {run} {out}/measured --data {data}",
    "average": "average {run} --last 2 --output {out}/averaged",
    "average --no-evaluation": "average {run} --last 2 --no-evaluation",
    "evaluate of average": "evaluate {out}/averaged",
    "inspect": "inspect {run}",
    "inspect --step": "inspect {run} --step 1 --json",
    "inspect --archive": "inspect {run} --archive",
    "explain": "explain {run}",
    "report": "report {run} --output {out}/report.html",
    "report --markdown": "report {run} --markdown --output {out}/report.md",
    "runs": "runs {runs}",
    "samples --step": "samples {run} --step 1",
    "samples --spike": "samples {run} --spike",
    "audit": "audit {run}",
    "data rejects": "data rejects {run}",
    "pin": "pin {run} 1",
    "pin --release": "pin {run} 1 --release",
    "erase": "erase {folder} 1 --yes --unencrypted",
}
"""Each command that takes a run, in an order in which none takes from another what that needs."""

_ONE = "holds 1 checkpoints, and 2 were to be averaged"
REFUSED = {
    **{(kind, "export --merged"): (2, "trained no adapters") for kind in KINDS if kind != "lora"},
    **{(kind, "inspect --archive"): (4, "has no archive: leave out --archive") for kind in KINDS if kind != "archived"},
    ("streamed", "data rejects"): (3, "streams its data, whose tokens are not kept"),
    ("encrypted", "data rejects"): (2, "name their key with --key-from"),
    ("encrypted", "average --no-evaluation"): (2, "an average is not: name a folder for it with --output"),
    ("preference", "evaluate --data"): (3, "reference model of a run, which has read the data of the run only"),
    ("minutes", "average"): (4, _ONE),
    ("minutes", "average --no-evaluation"): (4, _ONE),
    ("minutes", "evaluate of average"): (4, "is not a run folder"),
    ("minutes", "samples --spike"): (4, "the losses of fewer than two steps"),
}
"""The code and the reason of each command that a kind of run does not have."""
OF_A_COPY = {("archived", "erase"): (4, "holds copies of another run, which are not erased")}


def trained(home, name, *more):
    """Train a run of this name in the folder ``home``."""
    own = [
        word for word in tiny(home / "corpus.jsonl", *SHORT) if "model.path=base" not in more or "model.c" not in word
    ]
    places = ("data.path=corpus.jsonl", "run.cache_dir=cache")
    start = run if "distributed.processes=2" in more else run_here
    process = start("train", *own, *places, f"run.name={name}", *more, cwd=home)
    assert process.returncode == 0, process.stderr


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return a folder with data and a base model."""
    home = tmp_path_factory.mktemp("home") / "project"
    home.mkdir()
    corpus(home, documents=40)
    write_chats(home / "chats.jsonl", prompts()[:60])
    write_pairs(home / "pairs.jsonl", 60)
    trained(home, "base")
    process = run_here("export", "base", "base", "--unchecked", cwd=home)
    assert process.returncode == 0, process.stderr
    return home


@pytest.fixture(params=KINDS)
def kind(project, request, monkeypatch):
    """Return the name of a kind, whose run is there."""
    monkeypatch.setenv("RUN_KEY", KEY)
    if not (project / "runs" / request.param).exists():
        trained(project, request.param, *KINDS[request.param])
    return request.param


def ran(command, cwd, **places):
    """Run the ``command`` of the table in ``cwd``."""
    words = [word.format(**places) for word in COMMANDS[command].split()]
    before, sys.stdin = sys.stdin, io.StringIO("hello\n")
    try:
        return run_here(*words, cwd=cwd)
    finally:
        sys.stdin = before


def problems(kind, cwd, refused=REFUSED, **places):
    """Return what is wrong with the outcome of each command on a run of ``kind``, a line for each."""
    found = []
    for command in COMMANDS:
        process = ran(command, cwd, **places)
        code, reason = refused.get((kind, command), (0, ""))
        is_told = code == 0 or re.search(f"^error: .*{reason}", process.stderr, re.MULTILINE)
        if "Traceback" in process.stderr or "please report" in process.stderr:
            found.append(f"{command} ends with an error of the program: {process.stderr[-2000:]}")
        elif process.returncode != code or not is_told:
            found.append(f"{command} ends with {process.returncode}: {process.stderr[-600:]}")
    return "\n".join(found)


def outcome(kind, place, cwd, out, named, folder, refused=REFUSED):
    """Return the problems of a run of ``kind`` in the project ``place``, which is called ``named`` in ``cwd``."""
    out.mkdir()
    data = place / DATA.get(kind, "corpus.jsonl")
    return problems(kind, cwd, refused, run=named, folder=folder, runs=folder.parent, data=data, out=out)


@pytest.fixture
def moved(project, kind, tmp_path):
    """Return the project under another path; the original is away meanwhile."""
    place = shutil.copytree(project, tmp_path / "moved" / "project")
    away = project.rename(project.with_name("away"))
    yield place
    away.rename(project)


def test_inside_its_project(kind, moved, tmp_path):
    """Each command ends well, or with the reason why this kind of run does not have it; the run is named."""
    found = outcome(kind, moved, moved, tmp_path / "out", kind, Path("runs", kind))
    assert not found, found


def test_from_another_folder(kind, moved, tmp_path):
    """The same holds from a folder outside of the project, in which no file appears."""
    cwd, run = tmp_path / "elsewhere", moved / "runs" / kind
    cwd.mkdir()
    found = outcome(kind, moved, cwd, tmp_path / "out", run, run)
    assert not found, found
    assert list(cwd.iterdir()) == []


def test_a_copy_beside_its_original(kind, project, tmp_path):
    """The same holds for a copy of the run folder under another name, but the archive stays that of the original."""
    place = shutil.copytree(project, tmp_path / "project")
    run = Path("runs", "copy")
    shutil.copytree(place / "runs" / kind, place / run)
    found = outcome(kind, place, place, tmp_path / "out", run, run, REFUSED | OF_A_COPY)
    assert not found, found
