"""Running the command line as a user does."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from holdfast.bootstrap.cli.main import _parser, main

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = Path(__file__).resolve().parent / "plugins"
SAME_RHYTHM = "resources.auto_tune=false"
"""For a test that counts checkpoints: a disk that is slow for a second would have the run make them rarer."""
_TRIED: set[frozenset[str]] = set()
_OF_A_MODEL = (
    "data.kind=",
    "data.task=",
    "data.transforms=",
    "tokenizer.kind=",
    "model.",
    "sample.prompt=",
    "run.dir=",
)
_OF_A_STORE = ("optimizer.kind=", "state_store.kind=", "state_store.encryption.")
WORDS = "the model reads text and learns to say what comes next in small steps and keeps its place"


def environment() -> dict[str, str]:
    """Return an environment in which the tree is importable, with a handler from outside, and no hub is asked."""
    folders = [str(ROOT), str(PLUGINS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(folders), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """Start ``python -m application``."""
    command = [sys.executable, "-m", "application", *arguments]
    return subprocess.Popen(
        command, cwd=cwd, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def run(*arguments: str, cwd: Path, timeout: float = 280) -> subprocess.CompletedProcess[str]:
    """Run ``python -m application`` to its end."""
    command = [sys.executable, "-m", "application", *arguments]
    process = subprocess.run(
        command, cwd=cwd, env=environment(), text=True, capture_output=True, timeout=timeout, check=False
    )
    try_new(arguments, process.stdout, cwd=cwd)
    return process


def run_here(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, which has imported already what a new one would spend its seconds on."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main(arguments)
    try_new(arguments, output.getvalue(), cwd=cwd)
    return subprocess.CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())


def next_commands(output: str) -> list[list[str]]:
    """Return the arguments of each command that ``output`` says to try next, each of which is one that there is."""
    words = shlex.split(output.partition("try next:")[2])
    begins = [number for number in range(len(words)) if words[number : number + 3] == ["python", "-m", "application"]]
    assert begins, f"nothing is said to try next: {output}"
    commands = [words[begin + 3 : end] for begin, end in zip(begins, [*begins[1:], len(words)], strict=True)]
    for command in commands:
        options, others = _parser()[0].parse_known_args(command)
        assert not [other for other in others if other.startswith("-") or not hasattr(options, "settings")], command
    return commands


def try_new(arguments: Sequence[str], output: str, *, cwd: Path) -> None:
    """Run, cut short, what ``output`` says to try next, unless that was done for a command of this kind before.

    Commands are of one kind that name the same settings of what makes a model and of its folder, with the same values
    of each ``kind``. Raises ``AssertionError`` if one is no command that there is, or does not end well.
    """
    if "try next:" not in output:
        return
    commands = next_commands(output)
    settings = (word for word in arguments if word.startswith(_OF_A_MODEL + _OF_A_STORE))
    kind = frozenset(word if ".kind=" in word else word.partition("=")[0] for word in settings)
    if kind in _TRIED or commands[0][0] == "train":  # that which ``prepare`` proposes is run where it is tested
        return
    _TRIED.add(kind)
    for command in commands:
        process = _run_next([*command, *(["--max-new-tokens", "1"] if command[0] == "generate" else [])], cwd)
        assert process.returncode == 0, f"{command} was said to try next: {process.stderr}"


def try_next(output: str, *, cwd: Path) -> list[subprocess.CompletedProcess[str]]:
    """Run each command that ``output`` says to try next; one that does not end well raises ``AssertionError``."""
    processes = [_run_next(command, cwd) for command in next_commands(output)]
    for process in processes:
        assert process.returncode == 0, f"{process.args} was said to try next: {process.stderr}"
    return processes


def _run_next(command: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run ``command`` in this process, with an input that has ended for what is asked in a terminal."""
    with mock.patch.object(sys, "stdin", io.StringIO()):
        return run_here(*command, cwd=cwd)


def corpus(folder: Path, *, documents: int = 120, seed: int = 0) -> Path:
    """Write a jsonl corpus with some structure to learn; return its path."""
    generator, words = random.Random(seed), WORDS.split()
    path = folder / "corpus.jsonl"
    with path.open("w") as file:
        for number in range(documents):
            text = " ".join(generator.choice(words) for _ in range(generator.randrange(20, 200)))
            file.write(json.dumps({"id": number, "text": text}) + "\n")
    return path


def tiny(path: Path, *more: str) -> list[str]:
    """Return settings of a run of a few seconds on the corpus at ``path``; ``more`` come behind."""
    return [
        "run.name=default",
        "data.kind=files",
        f"data.path={path}",
        "data.sequence_length=64",
        "data.holdout=0.1",
        "data.shuffle_tokens=4096",
        "tokenizer.vocabulary_size=300",
        "tokenizer.backend=huggingface",
        f"run.cache_dir={path.parent / 'cache'}",
        "model.config.hidden_size=32",
        "model.config.intermediate_size=64",
        "model.config.num_hidden_layers=2",
        "model.config.num_attention_heads=4",
        "model.config.num_key_value_heads=2",
        "optimizer.batch_size=4",
        "optimizer.device=cpu",
        "optimizer.precision=fp32",
        "optimizer.learning_rate=1e-3",
        "run.budget.steps=30",
        "state_store.every=5",
        "evaluation.every=10",
        "sample.max_new_tokens=8",
        *more,
    ]


def losses(run_folder: Path) -> dict[int, float]:
    """Return the loss of each step; a step that stands twice is an error."""
    found: dict[int, float] = {}
    for line in (run_folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "loss" in record:
            assert record["step"] not in found, f"step {record['step']} stands twice"
            found[record["step"]] = record["loss"]
    return found


class Hold:
    """Has runs with these ``settings`` wait behind a step, so that what is done to them comes before their end.

    Whoever is asked to stop waits no longer.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "held"
        self.settings = f"handlers=[{{kind: holding, options: {{file: {self._file}}}}}]"

    def behind(self, step: int) -> None:
        """Have them wait behind ``step``, and no longer where they wait now if that is before it."""
        draft = self._file.with_suffix(".draft")
        draft.write_text(str(step))
        draft.rename(self._file)

    def release(self) -> None:
        """Let them go."""
        self._file.unlink()


def wait_for_step(run_folder: Path, step: int, process: subprocess.Popen[str], seconds: float = 100) -> None:
    """Return once ``metrics.jsonl`` holds ``step``."""

    def written() -> bool:
        path = run_folder / "metrics.jsonl"
        return path.exists() and f'"step": {step},' in path.read_text()

    wait_until(written, process, f"step {step} was not reached", seconds)


def wait_for_checkpoint(run_folder: Path, step: int, process: subprocess.Popen[str], seconds: float = 100) -> None:
    """Return once a checkpoint of ``step``, or of a later one, is durable: it is written beside training."""

    def written() -> bool:  # that of the very step may have been deleted since
        commits = run_folder.glob("checkpoints/checkpoint-*/COMMIT")
        return any(int(commit.parent.name.rpartition("-")[2]) >= step for commit in commits)

    wait_until(written, process, f"the checkpoint of step {step} was not written", seconds)


def wait_until(
    happened: Callable[[], bool], process: subprocess.Popen[str], complaint: str, seconds: float = 100
) -> None:
    """Return once it has ``happened``; raises ``AssertionError`` if ``process`` ends without, or takes too long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        has_ended = process.poll() is not None  # asked first: it may end just behind what is waited for
        if happened():
            return
        if has_ended:
            break
        time.sleep(0.005)
    process.kill()
    message = f"{complaint}: {process.communicate()}"
    raise AssertionError(message)
