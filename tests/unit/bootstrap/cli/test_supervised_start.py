"""The start of a supervised run by its command line."""

from __future__ import annotations

from holdfast.bootstrap.cli.main import main


def test_a_supervised_run_trains_where_it_is_asked_to(capsys, monkeypatch, tmp_path):
    """With ``--supervise`` too, ``--on ray`` chooses Ray, which a setting of another kind of processes shows."""
    monkeypatch.chdir(tmp_path)
    of_another_kind, wrong = "distributed.processes=2", "run.budget.steps=0"  # so that nothing is ever started
    assert main(["train", "--supervise", "--on", "ray", of_another_kind, wrong]) == 2
    assert "distributed.kind is ray" in capsys.readouterr().err
