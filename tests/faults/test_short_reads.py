"""Whoever removes what follows the last complete line of a file believes no reading that is short or wrong."""

from __future__ import annotations

import itertools
import os

import pytest

from holdfast.adapters.shared.audit_log import AuditLog
from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.adapters.study.optuna import OptunaStudy, SearchRules
from holdfast.domain.errors import StateError
from holdfast.ports.testing.study import SPACE

_right = os.pread


def add_record(path):
    lines = JsonLines(path)
    lines.append({"step": path.stat().st_size if path.exists() else 0})
    lines.close()


def add_entry(path):
    log = AuditLog(path)
    log.append("CheckpointSaved", {"step": 1})
    log.close()


def add_trial(path):
    study = OptunaStudy(path, SPACE, SearchRules("random", "none"))
    study.add(len(study.trials()))


WRITERS = pytest.mark.parametrize("add", [add_record, add_entry, add_trial])


def short(descriptor, size, offset):
    return _right(descriptor, (size + 1) // 2, offset)


@WRITERS
@pytest.mark.parametrize("torn", [b"", b'{"ste'])
def test_short_readings_remove_no_line(add, torn, tmp_path, monkeypatch):
    """On a file system that returns less than it was asked for, the lines that were there stay."""
    path = tmp_path / "lines"
    for _ in range(4):
        add(path)
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    monkeypatch.setattr(os, "pread", short)
    add(path)
    assert path.read_bytes().startswith(whole)
    assert torn == b"" or torn + b"\n" not in path.read_bytes()


@WRITERS
@pytest.mark.parametrize("torn", [b"", b'{"ste'])
def test_no_wrong_reading_removes_a_line(add, torn, tmp_path, monkeypatch):
    """Whichever reading has a wrong byte in place of each line break, the lines that were there stay."""
    path = tmp_path / "lines"
    for _ in range(4):
        add(path)
    whole = path.read_bytes()

    def wrong(descriptor, size, offset):
        data = _right(descriptor, size, offset)
        return data.replace(b"\n", b"\x0b") if next(calls) == point else data

    monkeypatch.setattr(os, "pread", wrong)
    for point in itertools.count():
        path.write_bytes(whole + torn)
        calls = itertools.count()
        add(path)
        assert path.read_bytes().startswith(whole)
        if next(calls) <= point:
            break
    assert point > 1


def test_a_file_that_reads_differently_each_time_ends_in_a_sentence(tmp_path, monkeypatch):
    """A torn end is not repaired from readings that never agree, and nobody waits for them for ever."""
    path = tmp_path / "audit.jsonl"
    add_entry(path)
    path.write_bytes(path.read_bytes() + b'{"ste')
    before, calls = path.read_bytes(), itertools.count()
    monkeypatch.setattr(os, "pread", lambda *asked: bytes([next(calls) % 256]) + _right(*asked)[1:])
    with pytest.raises(StateError, match="returns different bytes each time it is read"):
        AuditLog(path)
    assert path.read_bytes() == before
