"""Runs whose settings have the names of earlier versions."""

from __future__ import annotations

import json

from holdfast.configs.aliases import RENAMED
from holdfast.configs.strict_yaml import write_yaml
from tests.support.command_line import corpus, run_here, tiny

FORMER = {
    "data": {"memory": 1 << 20},
    "recovery": {"health": {"z": 7.5, "rise": 0.25, "patience": 4}},
    "resources": {"manage": False},
}


def test_a_file_of_former_names_trains(tmp_path):
    """Each former name has one line of notice, and the run continues from a record under former names."""
    file = tmp_path / "old.yaml"
    archive = {"url": str(tmp_path / "archive"), "keep_read_hours": 2}
    file.write_text(write_yaml({**FORMER, "state_store": {"archive": archive}}))
    command = ("train", "--config", str(file), *tiny(corpus(tmp_path)), "data.mode=stream", "run.name=old")
    process = run_here(*command, "run.budget.steps=1", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    notices = [line for line in process.stdout.splitlines() if "is now called" in line]
    assert sorted(line.split()[0] for line in notices) == sorted(".".join(name) for name in RENAMED)
    path = tmp_path / "runs" / "old" / "run.json"
    record = json.loads(path.read_text())
    assert record["settings"]["resources"]["auto_tune"] is False
    for old, new in RENAMED.items():
        section = record["settings"]
        for key in old[:-1]:
            section = section[key]
        section[old[-1]] = section.pop(new[-1])
    path.write_text(json.dumps(record | {"schema": 1}))
    process = run_here(*command, "run.budget.steps=2", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert not [line for line in process.stdout.splitlines() if "changed: " in line and "budget" not in line]


def test_prepare_reports_former_names(tmp_path):
    """``prepare`` reports a former name of a setting, as ``train`` does."""
    process = run_here("prepare", *tiny(corpus(tmp_path)), "resources.manage=false", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "resources.manage is now called resources.auto_tune; the old name still works" in process.stdout
