"""What the audit is about, and what it says of it."""

from __future__ import annotations

import json

import pytest

from holdfast.application.handlers.record_events import RecordAudit
from holdfast.domain.checkpoints.tiers import Tier
from holdfast.domain.commands import SaveReason
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.errors import DataError
from holdfast.domain.events import (
    CheckpointMoved,
    CheckpointRejected,
    CheckpointSaved,
    DataEnded,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStarted,
    StopRequested,
)
from holdfast.domain.training.step_outcome import Progress

PROGRESS = Progress(7, 700, Cursor(28))
WHERE = {"step": 7, "tokens": 700}


@pytest.mark.parametrize(
    ("event", "details"),
    [
        (RunStarted(PROGRESS), WHERE),
        (
            CheckpointSaved(PROGRESS, "runs/a/checkpoint-7", SaveReason.FINAL, 0.5, 0.5),
            {**WHERE, "location": "runs/a/checkpoint-7", "reason": "final"},
        ),
        (
            CheckpointRejected("checkpoint-9", "wrong-hash", "runs/a/quarantine/checkpoint-9"),
            {"name": "checkpoint-9", "reason": "wrong-hash", "location": "runs/a/quarantine/checkpoint-9"},
        ),
        (
            CheckpointMoved(7, Tier.DISK, Tier.ARCHIVE, "nearly full"),
            {"step": 7, "from": "disk", "to": "archive", "reason": "nearly full"},
        ),
        (StopRequested(PROGRESS, "SIGTERM", 15), {**WHERE, "reason": "SIGTERM", "signal": 15}),
        (RolledBack(PROGRESS, 12, "a spike"), {**WHERE, "from_step": 12, "reason": "a spike"}),
        (RunFailed(PROGRESS, DataError("line 3")), {**WHERE, "error": "DataError: line 3"}),
        (RunFinished(PROGRESS), WHERE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_was_done_is_recorded(event, details):
    """Each event that the audit is about is one entry under its name, with what JSON can hold."""
    entries = []
    RecordAudit(lambda name, what: entries.append((name, what)))(event)
    assert entries == [(type(event).__name__, details)]
    assert json.loads(json.dumps(entries[0][1])) == details


def test_other_events_are_no_entries():
    """What says nothing of checkpoints, or of how the run began and ended, is left to the history."""
    entries = []
    RecordAudit(lambda name, _: entries.append(name))(DataEnded(PROGRESS))
    assert entries == []


def test_a_long_error_is_cut():
    """An error of any length makes an entry of a few thousand letters."""
    entries = []
    RecordAudit(lambda _, what: entries.append(what))(RunFailed(PROGRESS, DataError("x" * 10**6)))
    assert len(entries[0]["error"]) == 2000
