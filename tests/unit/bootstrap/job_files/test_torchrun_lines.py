"""The lines for machines without a scheduler."""

from __future__ import annotations

import subprocess

from holdfast.bootstrap.job_files.render_job import torchrun_lines
from tests.support.job_examples import job


def run_by_bash(text, **environment):
    """Return the exit code, the words that python gets, and the errors."""
    script = f'python() {{ printf "%s\\n" "$@"; }}\n{text}'
    outcome = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    return outcome.returncode, outcome.stdout.splitlines(), outcome.stderr


def test_one_line_is_for_all_machines():
    """Each machine meets the others at the address in HEAD, without which the shell says what is missing."""
    code, words, _ = run_by_bash(torchrun_lines(job()), HEAD="10.0.0.1")
    assert code == 0
    assert words[words.index("--rdzv-endpoint") + 1] == "10.0.0.1:29500"
    code, words, errors = run_by_bash(torchrun_lines(job()))
    assert (code, words) == (127, [])
    assert "HEAD" in errors


def test_a_preparation_has_a_line_for_each_part():
    """The parts are numbered from 0."""
    _, words, _ = run_by_bash(torchrun_lines(job(3, "prepare")))
    assert [words[number + 1] for number, word in enumerate(words) if word == "--part"] == ["0/3", "1/3", "2/3"]
