"""The client programs of schedulers."""

from __future__ import annotations

import pytest

from holdfast.bootstrap.job_files.submit_job import client_of, submit
from holdfast.domain.errors import ConfigurationError, TrainingError


@pytest.mark.parametrize(
    ("kind", "program"), [("slurm", "sbatch"), ("kubernetes", "kubectl"), ("ray", "kubectl"), ("skypilot", "sky")]
)
def test_a_client_that_is_not_installed_is_named(kind, program, monkeypatch, tmp_path):
    """One sentence says which program is missing; where it is, its command takes the file."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=f"needs the program {program}, which is not on the PATH"):
        client_of(kind)
    (tmp_path / program).write_text("#!/bin/sh\n")
    (tmp_path / program).chmod(0o755)
    assert client_of(kind)[0] == program


def test_skypilot_gets_the_names_of_secrets(monkeypatch, tmp_path):
    """The program passes on only the variables that it is told."""
    for program in ("sky", "sbatch"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert client_of("skypilot", ["A", "B"])[-4:] == ["--secret", "A", "--secret", "B"]
    assert client_of("slurm", ["A"]) == ["sbatch"]


def test_torchrun_has_no_scheduler():
    """There is nothing to submit lines of a shell to."""
    with pytest.raises(ConfigurationError, match="no scheduler"):
        client_of("torchrun")


def test_the_client_reads_the_file(tmp_path):
    """The client gets a file with the text, and its failure is reported."""
    client = ["sh", "-c", f'cat "$1" > {tmp_path}/seen; exit $(cat "$1")', "client"]
    submit(client, "0", ".yaml")
    assert (tmp_path / "seen").read_text() == "0"
    with pytest.raises(TrainingError, match="ended with code 3"):
        submit(client, "3", ".yaml")
