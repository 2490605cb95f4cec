"""What one command accepts, all accept: each command that takes a run, on each kind of run, from each place."""

from __future__ import annotations

import argparse
import io
import re
import shutil
import signal
import subprocess
import sys
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from holdfast.bootstrap.cli.main import _parser
from tests.end_to_end.test_preference_run import write_pairs
from tests.end_to_end.test_suites import write_tasks
from tests.support.command_line import SAME_RHYTHM, corpus, run, run_here, start, tiny
from tests.support.page_client import Client
from tests.support.planted_chats import SPECIAL, prompts, write_chats

SLOW = (pytest.mark.slow, pytest.mark.timeout(1800))
KEY = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
SHORT = (SAME_RHYTHM, "run.budget.steps=4", "state_store.every=1", "state_store.keep=9", "evaluation.every=1")
SUITES = ("evaluation.harness.tasks=tasks", "evaluation.harness.limit=1")
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
    "trial": (),
    "study": (),
}
"""The settings that make each kind of run another than the first; a trial and its study are what ``tune`` makes."""
FOLDERS = {"trial": "search/trial-0000", "study": "search"}
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
    "evaluate --suite": "evaluate {run} --suite own_words --trust evaluation.harness.tasks={tasks}",
    "inspect": "inspect {run}",
    "inspect --step": "inspect {run} --step 1 --json",
    "inspect --archive": "inspect {run} --archive",
    "explain": "explain {run}",
    "report": "report {run} --output {out}/report.html",
    "report --markdown": "report {run} --markdown --output {out}/report.md",
    "watch": "watch {run} --port 0",
    "runs": "runs {runs}",
    "samples --step": "samples {run} --step 1",
    "samples --spike": "samples {run} --spike",
    "audit": "audit {run}",
    "data rejects": "data rejects {run}",
    "data profile": "data profile {run}",
    "data compare": "data compare {run} {run}",
    "data show": "data show {run}",
    "data diff": "data diff {run} {run}",
    "train": "train {settings}",
    "train --from-step": "train --from-step {step} {settings}",
    "tune": "tune --space {space} --trials 1 {settings}",
    "pin": "pin {run} 1",
    "pin --release": "pin {run} 1 --release",
    "erase": "erase {folder} 1 --yes --unencrypted",
}
"""Each command that takes a run, in an order in which none takes from another what that needs."""

ON_TOKENS, VERSIONS = ("data rejects", "data profile", "data compare"), ("data show", "data diff")
_ONE = "holds 1 checkpoints, and 2 were to be averaged"
REFUSED = {
    **{(kind, "export --merged"): (2, "trained no adapters") for kind in KINDS if kind != "lora"},
    **{(kind, "inspect --archive"): (4, "has no archive: leave out --archive") for kind in KINDS if kind != "archived"},
    **{("streamed", command): (3, "streams its data, whose tokens are not kept") for command in ON_TOKENS + VERSIONS},
    **{("encrypted", command): (2, "name their key with --key-from") for command in ON_TOKENS},
    ("encrypted", "average --no-evaluation"): (2, "an average is not: name a folder for it with --output"),
    ("preference", "evaluate --data"): (3, "reference model of a run, which has read the data of the run only"),
    ("minutes", "average"): (4, _ONE),
    ("minutes", "average --no-evaluation"): (4, _ONE),
    ("minutes", "evaluate of average"): (4, "is not a run folder"),
    ("minutes", "samples --spike"): (4, "the losses of fewer than two steps"),
    **{(kind, "tune"): (2, "is the folder of a run: give the study another name") for kind in KINDS},
    **{("study", command): (4, "is a study of tune: name the run folder of a trial") for command in COMMANDS},
    **{("study", command): (0, "") for command in ("report", "runs", "watch", "tune")},
    ("study", "evaluate of average"): (4, "is not a run folder"),
    ("study", "train"): (2, "is the folder of a study: give the run another name"),
    ("study", "report --markdown"): (2, "is the folder of a study, whose report has no Markdown"),
}
"""The code and the reason of each command that a kind of run does not have."""


PLACES = ("data.path", "run.cache_dir", "model.path", "state_store.archive.url", "evaluation.harness.tasks")
SPACE = "optimizer.weight_decay: {choices: [0.1]}\n"
OF_A_TRIAL = ("run.name=search-trial-0000", "optimizer.weight_decay=0.1")
HAS_HARNESS = find_spec("lm_eval") is not None
ANSWERS = ("curves?names=loss", "notes", "checkpoints", "settings", "samples")


def settings_of(kind, root=Path()):
    """Return the settings of the runs of ``kind``, whose places are in the folder ``root``."""
    more = KINDS.get(kind, ())
    own = [word for word in tiny(Path("corpus.jsonl"), *SHORT, *SUITES) if kind != "lora" or "model.c" not in word]
    words = [word.partition("=") for word in (*own, "run.cache_dir=cache", *more)]
    return [f"{key}={root / value}" if key in PLACES else f"{key}={value}" for key, _, value in words]


def trained(home, kind):
    """Train a run of this kind in the folder ``home``."""
    is_searched = kind in FOLDERS
    command = ["tune", "--space", "space.yaml", "--trials", "1"] if is_searched else ["train"]
    start = run if is_searched or "distributed.processes=2" in KINDS.get(kind, ()) else run_here
    process = start(*command, *settings_of(kind), f"run.name={'search' if is_searched else kind}", cwd=home)
    assert process.returncode == 0, process.stderr


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Return a folder with data and a base model."""
    home = tmp_path_factory.mktemp("home") / "project"
    home.mkdir()
    corpus(home, documents=40)
    write_chats(home / "chats.jsonl", prompts()[:60])
    write_pairs(home / "pairs.jsonl", 60)
    write_tasks(home.parent / "tasks")  # whose examples stay where they are
    shutil.copytree(home.parent / "tasks", home / "tasks")
    (home / "space.yaml").write_text(SPACE)
    trained(home, "base")
    process = run_here("export", "base", "base", "--unchecked", cwd=home)
    assert process.returncode == 0, process.stderr
    return home


@pytest.fixture(params=[pytest.param(kind, marks=SLOW) for kind in KINDS])
def kind(project, request, monkeypatch):
    """Return the name of a kind, whose run is there."""
    monkeypatch.setenv("RUN_KEY", KEY)
    if HAS_HARNESS:  # whose own tasks, which are not asked for here, take it seconds to list
        tasks = import_module("lm_eval.tasks")
        monkeypatch.setattr(tasks, "TaskManager", partial(tasks.TaskManager, include_defaults=False))
    if not (project / "runs" / FOLDERS.get(request.param, request.param)).exists():
        trained(project, request.param)
    return request.param


def ran(command, cwd, settings, **places):
    """Run the ``command`` of the table in ``cwd``."""
    words = [word.format(**places) for word in COMMANDS[command].removesuffix("{settings}").split()]
    words += settings if command in ("train", "train --from-step", "tune") else []
    if command == "watch":
        return watched(words, cwd)
    if command.startswith("train") and "distributed.processes=2" in settings:
        return run(*words, cwd=cwd)
    before, sys.stdin = sys.stdin, io.StringIO("hello\n")
    try:
        return run_here(*words, cwd=cwd)
    finally:
        sys.stdin = before


def watched(words, cwd):
    """Serve the page of a run by ``watch``, ask for it and for all that it shows, and end it as Ctrl-C does."""
    process = start(*words, cwd=cwd)
    problem, address = "", re.match(r"page: http://127.0.0.1:(\d+)/", process.stdout.readline())
    if address is not None:
        asked = ["/", "/api/state", *(f"/api/runs/0/{each}" for each in ANSWERS)]
        answers = {path: Client(int(address[1])).ask(path)[0] for path in asked}
        problem = "".join(f"{path} is answered with {status}\n" for path, status in answers.items() if status != 200)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=250)
    return subprocess.CompletedProcess(words, "wrong" if problem else process.returncode, output, problem + errors)


def problems(kind, cwd, **places):
    """Return what is wrong with the outcome of each command on a run of ``kind``, a line for each."""
    found = []
    for command in COMMANDS:
        if "--suite" in command and not HAS_HARNESS:
            continue
        process = ran(command, cwd, **places)
        code, reason = REFUSED.get((kind, command), (0, ""))
        is_told = code == 0 or re.search(f"^error: .*{reason}", process.stderr, re.MULTILINE)
        if "Traceback" in process.stderr or "please report" in process.stderr:
            found.append(f"{command} ends with an error of the program: {process.stderr[-2000:]}")
        elif process.returncode != code or not is_told:
            found.append(f"{command} ends with {process.returncode}: {process.stderr[-600:]}")
    return "\n".join(found)


def outcome(kind, place, cwd, out, named, folder):
    """Return the problems of a run of ``kind`` in the project ``place``, which is called ``named`` in ``cwd``."""
    out.mkdir()
    data, space = place / DATA.get(kind, "corpus.jsonl"), place / "space.yaml"
    own = OF_A_TRIAL if kind == "trial" else (f"run.name={folder.name}",)
    where = [f"run.dir={folder}"] if folder.parent != Path("runs") or kind == "trial" else []
    root = Path() if cwd == place else place
    files = {"data": data, "space": space, "tasks": root / "tasks", "out": out, "step": 1 if kind == "minutes" else 2}
    settings = [*settings_of(kind, root), *own, *where]
    return problems(kind, cwd, settings=settings, run=named, folder=folder, runs=folder.parent, **files)


@pytest.fixture
def moved(project, kind, tmp_path):
    """Return the project under another path; the original is away meanwhile."""
    place = shutil.copytree(project, tmp_path / "moved" / "project")
    away = project.rename(project.with_name("away"))
    yield place
    away.rename(project)


def test_inside_its_project(kind, moved, tmp_path):
    """Each command ends well, or with the reason why this kind of run does not have it; the run is named."""
    folder = Path("runs", FOLDERS.get(kind, kind))
    found = outcome(kind, moved, moved, tmp_path / "out", folder if kind == "trial" else folder.name, folder)
    assert not found, found


def test_from_another_folder(kind, moved, tmp_path):
    """The same holds from a folder outside of the project, in which no file appears."""
    cwd, run = tmp_path / "elsewhere", moved / "runs" / FOLDERS.get(kind, kind)
    cwd.mkdir()
    found = outcome(kind, moved, cwd, tmp_path / "out", run, run)
    assert not found, found
    assert list(cwd.iterdir()) == []


def test_a_copy_beside_its_original(kind, project, tmp_path):
    """The same holds for a copy of the run folder under another name, under which it is trained."""
    place = shutil.copytree(project, tmp_path / "project")
    run = Path("runs", FOLDERS.get(kind, kind)).with_name("copy")
    shutil.copytree(place / "runs" / FOLDERS.get(kind, kind), place / run)
    found = outcome(kind, place, place, tmp_path / "out", run, run)
    assert not found, found


def commands_of(parser, name=""):
    """Yield each command below ``parser``, with its name."""
    below = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for choices in below:
        for word, command in choices.items():
            yield from commands_of(command, f"{name} {word}".strip())
    if not below:
        yield name, parser


def test_the_table_has_each_command_that_takes_a_run():
    """A command with an argument on a run, as its help says, is in the table."""
    texts = {name: [f"{each.help}" for each in command._actions] for name, command in commands_of(_parser()[0])}
    taking = {name for name, each in texts.items() if re.search(r"\b(a run|run folders?)\b", " ".join(each))}
    named = {re.split(r" (?:--|\{)", words)[0] for words in COMMANDS.values()}
    assert {"train", "generate", "erase", "data diff", "runs"} <= taking
    assert sorted(taking - named) == []
