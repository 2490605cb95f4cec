"""A run evaluates its checkpoints with the tasks of lm-evaluation-harness."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.support.command_line import SAME_RHYTHM, WORDS, corpus, environment, run, run_here, tiny

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs lm-evaluation-harness: pip install lm-eval"),
]
RUN = "runs/default"
TRUST = ("--trust", "evaluation.harness.tasks=tasks")
TASK = """\
task: own_words
dataset_path: json
dataset_kwargs:
  data_files: {examples}
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list:
  - metric: acc
  - metric: acc_norm
"""
TEXTS = """\
task: own_texts
dataset_path: json
dataset_kwargs:
  data_files: {examples}
test_split: train
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: question
metric_list:
  - metric: bits_per_byte
"""


def write_tasks(folder):
    """Write two tasks that need no network into ``folder``."""
    generator, words = random.Random(3), WORDS.split()
    folder.mkdir()
    examples = folder / "examples.jsonl"
    with examples.open("w") as file:
        for _ in range(20):
            question = " ".join(generator.choice(words) for _ in range(6))
            choices = generator.sample(words, 3)
            file.write(json.dumps({"question": question, "choices": choices, "answer": generator.randrange(3)}) + "\n")
    for name, text in (("words", TASK), ("texts", TEXTS)):
        (folder / f"{name}.yaml").write_text(text.format(examples=examples))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Train a run with suites."""
    home = tmp_path_factory.mktemp("suites")
    write_tasks(home / "tasks")
    suites = ("evaluation.suites=[own_words, own_texts]", "evaluation.harness.tasks=tasks")
    settings = tiny(corpus(home), SAME_RHYTHM, *suites, "run.budget.steps=10")
    process = run("train", *settings, cwd=home, timeout=900)
    assert process.returncode == 0, process.stderr
    return home


def test_results_are_those_of_the_harness_itself(home):
    """Metrics equal those of the harness's own command on the exported folder, to the last digit."""
    exported = run_here("export", RUN, "model", cwd=home)
    assert exported.returncode == 0, exported.stderr
    command = [sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", "pretrained=model", "--device", "cpu"]
    command += [
        "--tasks",
        "own_words,own_texts",
        "--include_path",
        "tasks",
        "--batch_size",
        "8",
        "--output_path",
        "out",
    ]
    own = subprocess.run(command, cwd=home, env=environment(), capture_output=True, text=True, timeout=900, check=False)
    assert own.returncode == 0, own.stderr
    (path,) = (home / "out").rglob("results_*.json")
    expected = {
        f"suite/{task}/{key.partition(',')[0]}": value
        for task, figures in json.loads(path.read_text())["results"].items()
        for key, value in figures.items()
        if "," in key and isinstance(value, float)
    }
    assert len(expected) >= 5
    records = [json.loads(line) for line in (home / RUN / "metrics.jsonl").read_text().splitlines()]
    (found,) = [record for record in records if any(name.startswith("suite/") for name in record)]
    assert found.pop("step") == 10
    assert found == expected


def test_the_command_gives_the_run_s_results(home):
    """``evaluate --suite`` returns what the run recorded, and uses its folder of tasks once that is trusted."""
    process = run("evaluate", RUN, "--suite", "own_words", "--json", *TRUST, cwd=home, timeout=900)
    assert process.returncode == 0, process.stderr
    (record,) = map(json.loads, (home / RUN / "evaluations.jsonl").read_text().splitlines())
    assert json.loads(process.stdout)["results"]["own_words"] == record["results"]["own_words"]


def test_an_unknown_suite_is_a_mistake_of_the_settings(home):
    """A name that is neither the harness's nor in the folder ends with exit code 2 and says where it was looked for."""
    process = run("evaluate", RUN, "--suite", "nothing", *TRUST, cwd=home, timeout=900)
    assert process.returncode == 2
    assert "knows no task or group 'nothing', and neither does tasks" in process.stderr
