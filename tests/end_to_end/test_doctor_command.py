"""The command ``doctor`` as a user calls it."""

import contextlib
import json
import os
import resource
import subprocess
import sys

import pytest

from holdfast.bootstrap.cli.main import _parser
from tests.support.command_line import ROOT, corpus, environment, run, run_here, tiny
from tests.support.planted_troubles import closed_port, mounted

GIB = 2**30


@pytest.fixture(autouse=True)
def _same_package(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the process that asks torch


def findings_of(process):
    """Return the findings that ``doctor --json`` printed, by their names."""
    return {finding["name"]: finding for finding in json.loads(process.stdout)["findings"]}


def test_the_default_settings_have_no_error_here(tmp_path):
    """The table has a line for each check, the code is 0, and neither a file nor a run folder is left behind."""
    process = run("doctor", "--timeout", "60", f"run.cache_dir={tmp_path / 'cache'}", cwd=tmp_path)
    assert process.returncode == 0, process.stdout + process.stderr
    lines = process.stdout.splitlines()
    assert lines[0].split() == ["verdict", "check", "result"]
    names = [line[9:].partition("  ")[0] for line in lines[1:-1]]
    assert {"python", "torch", "device", "memory", "open files", "clock"} <= set(names)
    assert {f"run folder {each}" for each in ("space", "speed", "fsync", "locks", "rename")} <= set(names)
    assert {line.split()[0] for line in lines[1:-1]} <= {"ok", "warning"}
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def troubled(tmp_path_factory):
    """Return ``doctor --json`` with planted troubles under a limit of 1 GiB, and whether its disk is small."""
    place = tmp_path_factory.mktemp("troubled")
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (GIB, GIB))  # noqa: E731
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(pytest.skip.Exception):  # then the disk is large, and the rest is there all the same
            stack.enter_context(mounted(place / "disk", "-t", "tmpfs", "-o", "size=1m", "none"))
        settings = [
            *tiny(corpus(place), f"run.dir={place / 'disk/run'}"),
            "data.cache.encryption.key_from=env:NO_SUCH_KEY",
            f"monitors=[{{kind: postgres, dsn: 'postgresql://user:hunter2@127.0.0.1:{closed_port()}/figures'}}]",
        ]
        is_small = os.path.ismount(place / "disk")
        process = subprocess.run(
            [sys.executable, "-m", "application", "doctor", "--json", *settings],
            cwd=place,
            env=environment(),
            text=True,
            capture_output=True,
            timeout=280,
            check=False,
            preexec_fn=limit,
        )
    return process, is_small


def test_planted_troubles_end_with_the_documented_code(troubled):
    """A small disk, a server that is down and a missing key give errors with remedies, one line each."""
    process, is_small = troubled
    assert process.returncode == 1, process.stderr
    found = findings_of(process)
    assert json.loads(process.stdout)["verdict"] == "error"
    assert found["data.cache.encryption.key_from"]["verdict"] == "error"
    assert found["monitors.postgres.dsn"]["verdict"] == "warning"
    assert found["token cache"]["verdict"] == "ok"
    assert "hunter2" not in process.stdout + process.stderr
    if not is_small:
        pytest.skip("a small disk needs the right to mount")
    assert found["run folder space"]["verdict"] == "error"
    assert "run.dir" in found["run folder space"]["remedy"]


def test_a_memory_limit_of_1_gib_is_named(troubled):
    """Under a limit of 1 GiB of address space the report is complete, and names the limit and how to raise it."""
    found = findings_of(troubled[0])
    assert found["memory"]["verdict"] == "error"
    assert "RLIMIT_AS is 1.0 GiB" in found["memory"]["detail"]
    assert "ulimit -v unlimited" in found["memory"]["remedy"]
    assert "clock" in found


def test_settings_with_a_mistake_end_with_code_2(tmp_path):
    """Settings that cannot be read are reported as by every command."""
    process = run_here("doctor", "optimizer.learning_rate=fast", cwd=tmp_path)
    assert process.returncode == 2
    assert "optimizer.learning_rate" in process.stderr


def test_the_help_names_the_exit_codes():
    """The codes that are tested above stand in the help of the command."""
    (commands,) = (action.choices for action in _parser()[0]._actions if action.choices)
    for words in ("Exit code 0: no error", "1: an error", "2: the settings are invalid"):
        assert words in commands["doctor"].epilog


def test_the_json_has_every_field_of_a_finding(troubled):
    """Each finding has a name, a verdict, a detail and a remedy, which is empty only if there is nothing to do."""
    findings = findings_of(troubled[0]).values()
    assert {finding["verdict"] for finding in findings} >= {"ok", "error"}
    for finding in findings:
        assert finding.keys() == {"name", "verdict", "detail", "remedy"}
        assert bool(finding["remedy"]) is (finding["verdict"] != "ok")
