"""What the audit of a run tells of whoever uses it."""

from __future__ import annotations

import json
import os
import platform
import pwd

from holdfast.adapters.shared.audit_log import AuditLog
from tests.support.command_line import corpus, run_here, tiny


def test_whoever_uses_a_run_is_in_its_audit(tmp_path):
    """Every line says which user on which host wrote it, and using a checkpoint leaves one if the audit is free."""
    more = ["run.name=used", "run.budget.steps=2", "evaluation.every=0", "evaluation.at_start=false"]
    assert run_here("train", *tiny(corpus(tmp_path)), *more, cwd=tmp_path).returncode == 0
    generate = ("generate", "runs/used", "--prompt", "the ", "--max-new-tokens", "2")
    assert run_here(*generate, cwd=tmp_path).returncode == 0
    assert run_here("export", "runs/used", "out", cwd=tmp_path).returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "runs/used/audit.jsonl").read_text().splitlines()]
    by = {"user": pwd.getpwuid(os.getuid()).pw_name, "host": platform.node()}
    assert all(line["details"]["by"] == by for line in lines)
    made, exported = lines[-2:]
    assert (made["event"], exported["event"]) == ("TextGenerated", "CheckpointExported")
    assert exported["details"]["location"].endswith("checkpoint-2")
    assert exported["details"]["to"] == str(tmp_path / "out")
    assert run_here("audit", "runs/used", cwd=tmp_path).returncode == 0

    log = AuditLog(tmp_path / "runs/used/audit.jsonl")  # as a run that trains has it
    process = run_here(*generate, cwd=tmp_path)
    log.close()
    assert process.returncode == 0
    assert len((tmp_path / "runs/used/audit.jsonl").read_text().splitlines()) == len(lines)


def test_a_run_without_an_audit_gets_none(tmp_path):
    """With state_store.audit=false nothing is recorded, neither by the run nor by whoever uses it."""
    more = ["run.name=off", "run.budget.steps=1", "evaluation.every=0", "state_store.audit=false"]
    assert run_here("train", *tiny(corpus(tmp_path)), *more, cwd=tmp_path).returncode == 0
    assert run_here("generate", "runs/off", "--prompt", "the ", "--max-new-tokens", "2", cwd=tmp_path).returncode == 0
    assert not (tmp_path / "runs/off/audit.jsonl").exists()
