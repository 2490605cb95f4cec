from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import report, smoke, stale
from benchmarks.report import Figure
from benchmarks.smoke import NotPossibleError

ROOT = Path(__file__).parents[2]
MISSED = Figure("tokens/s", "0.1x", ">= 2x", is_met=False)


def run_trial(monkeypatch, figures, *words):
    def measure(_):
        if isinstance(figures, Exception):
            raise figures
        return figures

    monkeypatch.setattr(sys, "argv", ["benchmark", *(words or ["--smoke"])])
    report.main("benchmark", "What it does.", measure, ())


def ended(code, out="", err=""):
    return subprocess.CompletedProcess([], code, out, err)


def test_a_trial_prints_no_figures(monkeypatch, capsys):
    """A trial holds no goal of speed and prints no time, only that all went well."""
    run_trial(monkeypatch, [MISSED, Figure("decisions that differ", "0", "0", is_met=True, is_equality=True)])
    assert capsys.readouterr().out == "ok\n"


def test_a_trial_compares_results(monkeypatch):
    """A trial in which two results differ that are to be equal ends with an error that names them."""
    figure = Figure("decisions that differ", "3", "0", is_met=False, is_equality=True)
    with pytest.raises(SystemExit, match="not equal: decisions that differ is 3, goal 0"):
        run_trial(monkeypatch, [MISSED, figure])


def test_a_trial_is_not_written_down(monkeypatch, capsys):
    """A trial measures nothing, so no table of it gets into the documentation."""
    with pytest.raises(SystemExit):
        run_trial(monkeypatch, [], "--smoke", "--write")
    assert "takes neither --write nor --check" in capsys.readouterr().err


def test_a_trial_that_is_not_possible_says_why(monkeypatch, capsys):
    """A benchmark whose only peer is not installed is skipped with the reason."""
    run_trial(monkeypatch, NotPossibleError("datatrove is not installed"))
    assert capsys.readouterr().out == "skipped: datatrove is not installed\n"


def test_only_a_trial_leaves_out_a_missing_peer(capsys):
    """A measurement goes on to the error of the missing package, and a trial leaves it out with a line."""
    assert smoke.has_peer("no_such_package", is_smoke=False)
    assert capsys.readouterr().out == ""
    assert not smoke.has_peer("no_such_package", is_smoke=True)
    assert capsys.readouterr().out == "skipped: no_such_package is not installed\n"


@pytest.mark.parametrize(
    ("done", "line"),
    [
        (ended(0, "what a run printed\nok\n"), "ok"),
        (ended(0, "skipped: ray is not installed\nok\n"), "ok (skipped: ray is not installed)"),
        (ended(0, "skipped: datatrove is not installed\n"), "skipped (datatrove is not installed)"),
        (ended(0, "some lines\n"), "failed: it ended without a result"),
        (ended(1, "ok\n", "a warning\nlosses differ\n"), "failed with code 1: losses differ"),
    ],
)
def test_each_trial_has_a_line(done, line):
    """A trial went well, was skipped for a reason, or failed with its last words; one without a result has failed."""
    assert smoke.outcome(done) == line


def test_a_failed_trial_fails_all(monkeypatch, capsys):
    """The code of all trials is 1 if one of them failed, and the others are tried nevertheless."""
    monkeypatch.setattr(smoke, "names", lambda: ["no_such_benchmark", "neither_this_one"])
    assert smoke.try_all() == 1
    written = capsys.readouterr()
    failed = re.findall(r"^(\w+): failed with code 1: ", written.out, re.MULTILINE)
    assert failed == ["no_such_benchmark", "neither_this_one"]
    assert written.err.endswith("the trial of no_such_benchmark, neither_this_one failed\n")


def test_trials_that_are_all_skipped_fail(monkeypatch, capsys):
    """Where no benchmark can be tried nothing was compared, so the code is 1; one that can be tried is enough."""
    ends = {"a": "skipped (a is not installed)", "b": "skipped (b is not installed)"}
    monkeypatch.setattr(smoke, "names", lambda: list(ends))
    monkeypatch.setattr(smoke, "_try_one", lambda name: (ends[name], ""))
    assert smoke.try_all() == 1
    assert capsys.readouterr().err == "all benchmarks were skipped, so nothing was compared\n"
    ends["b"] = "ok (skipped: b is not installed)"
    assert smoke.try_all() == 0


def test_each_measured_section_has_a_benchmark_and_its_code():
    """Each section of the page is a benchmark that is tried, and the code that its age is counted by exists."""
    sections = stale.measured(stale.PAGE.read_text(encoding="utf-8"))
    assert set(sections) == set(stale.PATHS) <= set(smoke.names())
    assert all((ROOT / path).exists() for paths in stale.PATHS.values() for path in paths)


def test_changes_since_a_measurement_are_counted(tmp_path, monkeypatch, capsys):
    """The page says how many commits changed a section's code since it was measured, and says it once."""

    def git(*words):
        options = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        command = ["git", "-C", str(tmp_path), *options, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    page = tmp_path / "docs" / "benchmarks.md"
    page.parent.mkdir()
    monkeypatch.setattr(stale, "PAGE", page)
    monkeypatch.setattr(stale, "PATHS", {"ledger": ("ledger.py",), "loop": ("loop.py",)})
    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "-m", "first")
    section = "## {}\n\n- date: 2026-11-25, on commit {}\n\n| figure |\n"
    page.write_text(section.format("ledger", git("rev-parse", "--short", "HEAD")) + section.format("loop", "a66ac62"))
    for name in ("ledger.py", "other.py"):
        (tmp_path / name).write_text("")
        git("add", name)
        git("commit", "--quiet", "-m", name)
    assert stale.note_changes() == stale.note_changes() == 0
    lines = [line for line in page.read_text().splitlines() if line.startswith("- since then")]
    head = git("rev-parse", "--short", "HEAD")
    assert lines == [
        f"- since then: 1 commit up to {head} changed `ledger.py`",
        "- since then: unknown, as that commit is not in the history; the code is `loop.py`",
    ]
    assert f"ledger: 1 commit up to {head}" in capsys.readouterr().out
