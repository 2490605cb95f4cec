"""A run folder that came from somebody else: it runs no code of theirs, and nothing in it makes a command wait."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from holdfast.adapters.shared.files.regular_file import sealed
from tests.support.command_line import corpus, run_here, tiny

LORA = ["model.lora.rank=4"]
COMMANDS = {
    "generate": ["generate", "run", "--max-new-tokens", "2"],
    "evaluate": ["evaluate", "run"],
    "export": ["export", "run", "model"],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder with a base model and a run that trained adapters on it."""
    folder = tmp_path_factory.mktemp("home")
    path = corpus(folder)
    few = ["run.budget.steps=2", "monitors=[]", "sample.max_new_tokens=1"]
    assert run_here("train", *tiny(path, "run.dir=plain", *few), cwd=folder).returncode == 0
    assert run_here("export", "plain", "base", cwd=folder).returncode == 0
    settings = [each for each in tiny(path, "run.dir=tuned", *few, *LORA) if not each.startswith("model.config")]
    assert run_here("train", *settings, f"model.path={folder / 'base'}", cwd=folder).returncode == 0
    return folder


@pytest.fixture
def foreign(home, tmp_path):
    """Return a folder with copies of the base, whose code leaves a file when it runs, and of the run as ``run``."""
    shutil.copytree(home / "base", tmp_path / "base")
    shutil.copytree(home / "tuned", tmp_path / "run")
    config = json.loads((tmp_path / "base/config.json").read_text())
    config["auto_map"] = {"AutoConfig": "trap.Trap", "AutoModelForCausalLM": "trap.Trap"}
    config["model_type"] = "trap"
    (tmp_path / "base/config.json").write_text(json.dumps(config))
    (tmp_path / "base/trap.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
    return tmp_path


def edit(folder, **changes):
    """Set dotted keys, written with two underscores, in the settings of the folder ``run``."""
    path = folder / "run/run.json"
    record = json.loads(path.read_text())
    for key, value in changes.items():
        *sections, name = key.split("__")
        place = record["settings"]
        for section in sections:
            place = place[section]
        place[name] = value
    path.write_text(json.dumps(sealed(record)))


def trusting(folder):
    """Edit in the settings by which the code beside the base model would run."""
    base = str(folder / "base")
    edit(folder, model__path=base, model__trust_remote_code=base, model__trust_pickle=base)
    return base


@pytest.mark.parametrize("command", COMMANDS)
def test_code_beside_a_base_model_does_not_run(foreign, command):
    """What the folder trusts is not: exit code 2, and the sentence says what it asks for and how to allow it."""
    base = trusting(foreign)
    process = run_here(*COMMANDS[command], cwd=foreign)
    assert process.returncode == 2
    assert f"ask for model.trust_remote_code={base}" in process.stderr
    assert f"--trust model.trust_remote_code={base}" in process.stderr
    assert not (foreign / "ran").exists()


@pytest.mark.parametrize("how", ["trust", "config"])
def test_code_runs_once_the_person_says_so_again(foreign, how):
    """The option, or a configuration of their own, allows what the folder asks for, and nothing less does."""
    base = trusting(foreign)
    (foreign / "mine.yaml").write_text(
        json.dumps({"model": {"path": base, "trust_remote_code": base, "trust_pickle": base, "lora": {"rank": 4}}})
    )
    one = ["--trust", f"model.trust_remote_code={base}"]
    assert run_here(*COMMANDS["generate"], *one, cwd=foreign).returncode == 2
    assert not (foreign / "ran").exists()
    all_of_it = [*one, "--trust", f"model.trust_pickle={base}"] if how == "trust" else ["--config", "mine.yaml"]
    run_here(*COMMANDS["generate"], *all_of_it, cwd=foreign)  # what the trap is then makes no model
    assert (foreign / "ran").exists()


PLUG_INS = {
    "model.kind": {"model": {"kind": "trap", "options": {}}},
    "optimizer.kind": {"optimizer": {"kind": "trap", "options": {}}},
    "tokenizer.kind": {"tokenizer": {"kind": "trap", "options": {}}},
    "state_store.kind": {"state_store": {"kind": "trap", "options": {}}},
    "event_bus.kind": {"event_bus": {"kind": "trap", "options": {}}},
    "model.attention": {"model__attention": "trap"},
    "model.loss": {"model__loss": "trap"},
    "data.cache.eviction": {"data__cache__eviction": "trap"},
    "data.transforms": {"data__transforms": [{"kind": "trap", "options": {}}]},
    "state_store.encryption.key_from": {"state_store__encryption": {"key_from": "trap:here"}},
}


@pytest.mark.parametrize("key", PLUG_INS)
def test_no_package_is_chosen_by_a_folder(foreign, key):
    """An entry point that the folder names is not loaded unless the person names it too."""
    edit(foreign, **PLUG_INS[key])
    for command in COMMANDS.values():
        process = run_here(*command, cwd=foreign)
        assert process.returncode == 2, process.stderr
        assert f"ask for {key}=trap" in process.stderr
    allowed = run_here("evaluate", "run", "--trust", f"{key}={'trap:here' if 'key' in key else 'trap'}", cwd=foreign)
    assert "ask for" not in allowed.stderr  # it is looked for now, and not installed


def test_handlers_and_monitors_of_a_folder_are_left_alone(foreign):
    """They belong to training, so whoever only uses the model neither runs nor is asked about them."""
    edit(foreign, handlers=[{"kind": "trap", "options": {}}], monitors=[{"kind": "trap", "options": {}}])
    edit(foreign, model__path=str(foreign.parent / "none"))
    process = run_here(*COMMANDS["generate"], cwd=foreign)
    assert "trap" not in process.stderr


@pytest.mark.parametrize("command", ["explain", "inspect"])
def test_who_only_looks_is_told_what_the_folder_asks_for(foreign, command):
    """These run nothing of it, and say what the others would be asked to run."""
    base = trusting(foreign)
    process = run_here(command, "run", cwd=foreign)
    assert process.returncode == 0
    assert f"ask for model.trust_remote_code={base}" in process.stdout
    assert not (foreign / "ran").exists()


def files_of(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pipe_in_place_of_any_file_is_refused_at_once(home, tmp_path):
    """Each file of a run in turn is a pipe: no command waits for a writer, and each ends in a sentence or well."""
    shutil.copytree(home / "plain", tmp_path / "run")
    for folder in ("post-mortem/20260101-000000/rank0", "heartbeats"):
        (tmp_path / "run" / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / "run/post-mortem/20260101-000000/rank0/cause.json").write_text("{}")
    (tmp_path / "run/heartbeats/rank0.json").write_text("{}")
    names = [*files_of(tmp_path / "run"), "metrics.jsonl", "goodput.jsonl", "restarts.jsonl"]
    assert {"run.json", "events.jsonl", "LOCK"} <= set(names)
    for name in dict.fromkeys(names):
        piped = tmp_path / "piped"
        shutil.copytree(tmp_path / "run", piped)
        (piped / name).unlink(missing_ok=True)
        os.mkfifo(piped / name)
        for command in ("explain", "inspect", "evaluate", "audit"):
            process = run_here(command, "piped", cwd=tmp_path)
            assert process.returncode in (0, 2, 4), (name, command, process.stderr)
            assert "Traceback" not in process.stderr, (name, command)
        shutil.rmtree(piped)


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "events.jsonl", "LOCK"])
@pytest.mark.parametrize("command", ["explain", "generate"])
def test_a_pipe_in_place_of_a_record_is_refused_at_once(home, tmp_path, name, command):
    """Nobody waits for somebody to write into it, and the sentence says what to do."""
    shutil.copytree(home / "plain", tmp_path / "run")
    (tmp_path / "run" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "run" / name)
    process = run_here(command, "run", *(["--max-new-tokens", "1"] if command == "generate" else []), cwd=tmp_path)
    if (name == "LOCK") if command == "explain" else (name != "run.json"):  # what is not needed is not read
        assert process.returncode == 0
    else:
        assert process.returncode == 4
        assert "a pipe, a device, a socket or a folder in place of a file" in process.stderr


def test_an_export_that_is_there_already_is_told(home):
    """Exporting the same model again changes nothing and is no error; another model's folder is left alone."""
    before = {name: (home / "base" / name).stat().st_mtime_ns for name in files_of(home / "base")}
    again = run_here("export", "plain", "base", cwd=home)
    assert (again.returncode, "is in base already" in again.stdout) == (0, True)
    assert {name: (home / "base" / name).stat().st_mtime_ns for name in files_of(home / "base")} == before
    other = run_here("export", "tuned", "base", cwd=home)
    assert other.returncode == 2
    assert "holds something else" in other.stderr
    assert [path.name for path in home.iterdir() if path.name.startswith(".")] == []


def test_tasks_of_a_run_folder_are_refused(foreign):
    """A folder with tasks of suites, which may contain code, is used only if the user trusts it."""
    edit(foreign, evaluation__harness__tasks="tasks")
    process = run_here("evaluate", "run", "--suite", "own", cwd=foreign)
    assert process.returncode == 2
    assert "add --trust evaluation.harness.tasks=tasks" in process.stderr
