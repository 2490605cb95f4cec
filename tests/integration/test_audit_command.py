"""What a person is told of a run's audit, and what never gets into it."""

from __future__ import annotations

import json

import pytest

from holdfast.adapters.shared.audit_log import AuditLog
from holdfast.application.handlers.record_events import RecordAudit
from holdfast.bootstrap.run_folder.run_audit import Audit, audit_run
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.errors import DataError, StateError
from holdfast.domain.events import RunFailed, RunFinished, RunStarted
from holdfast.domain.training.step_outcome import Progress

KEY = bytes(range(32))
PROGRESS = Progress(7, 700, Cursor(28))


@pytest.fixture
def run(tmp_path):
    """Return a run folder whose audit has three entries."""
    (tmp_path / "run").mkdir()
    record = RecordAudit(Audit(tmp_path / "run").record)
    for event in (RunStarted(PROGRESS), RunFailed(PROGRESS, DataError("x")), RunFinished(PROGRESS)):
        record(event)
    return tmp_path / "run"


def lines_of(run):
    return (run / "audit.jsonl").read_bytes().splitlines(keepends=True)


def test_an_intact_audit(run, capsys):
    """A person is told how many entries there are, from when to when, and the last hash; the exit code is 0."""
    assert audit_run(run, as_json=False)
    told = capsys.readouterr().out
    first, last = (json.loads(lines_of(run)[place]) for place in (0, -1))
    assert f"3 entries from {first['time']} to {last['time']}, intact" in told
    assert last["hash"] in told


def test_a_broken_audit(run, capsys):
    """A person is told the first broken line and what is wrong with it; the exit code is that of damaged state."""
    lines = lines_of(run)
    (run / "audit.jsonl").write_bytes(lines[0] + lines[2])
    assert not audit_run(run / "audit.jsonl", as_json=False)
    told = capsys.readouterr().out
    assert "line 2 holds entry 3" in told
    assert "(removed)" in told
    assert "1 entry from" in told


def test_the_same_as_json(run, capsys):
    """With ``as_json`` there is one object, sound or not."""
    assert audit_run(run, as_json=True)
    report = json.loads(capsys.readouterr().out)
    last_hash = json.loads(lines_of(run)[-1])["hash"]
    assert (report["sound"], report["entries"], report["last_hash"], report["broken"]) == (True, 3, last_hash, None)
    (run / "audit.jsonl").write_bytes(b"".join(lines_of(run)[:2]))
    assert not audit_run(run, as_json=True, holding=last_hash)
    report = json.loads(capsys.readouterr().out)
    assert (report["sound"], report["entries"]) == (False, 2)
    assert (report["broken"]["line"], report["broken"]["flaw"]) == (3, "removed")


def test_an_audit_with_a_key(tmp_path, capsys):
    """A keyed audit is intact with its key only."""
    log = AuditLog(tmp_path / "audit.jsonl", key=KEY)
    log.append("RunStarted", {})
    log.close()
    assert audit_run(tmp_path, as_json=False, key=KEY)
    assert not audit_run(tmp_path, as_json=False)
    assert "give that key" in capsys.readouterr().out


def test_an_audit_without_entries(tmp_path, capsys):
    """A run that was never begun has no entries, which is no damage."""
    AuditLog(tmp_path / "audit.jsonl").close()
    assert audit_run(tmp_path, as_json=False)
    assert "no entries" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["missing", "run/audit.jsonl/below", "."])
def test_where_there_is_no_audit(run, tmp_path, name):
    """A place without an audit is an error of state, in one sentence."""
    with pytest.raises(StateError, match="does not exist"):
        audit_run(tmp_path / name, as_json=False)


def test_what_a_hostile_file_says_is_shown_harmlessly(tmp_path, capsys):
    """No control character of the file reaches the terminal."""
    (tmp_path / "\x1b[2J.jsonl").write_bytes(b'{"event":"\x1b[2J"}\n')
    assert not audit_run(tmp_path / "\x1b[2J.jsonl", as_json=False)
    assert "\x1b" not in capsys.readouterr().out


def test_no_secret_is_recorded(tmp_path):
    """Secrets in URLs of an error, and under names of secrets, are masked before they are written."""
    audit = Audit(tmp_path)
    RecordAudit(audit.record)(RunFailed(PROGRESS, DataError("s3://key:CANARY@bucket/x cannot be read")))
    audit.record("Other", {"api_key": "CANARY", "inner": {"hf_token": ["CANARY"]}, "step": 3})
    assert b"CANARY" not in (tmp_path / "audit.jsonl").read_bytes()
    assert [json.loads(line)["details"].get("step") for line in lines_of(tmp_path)] == [7, 3]
