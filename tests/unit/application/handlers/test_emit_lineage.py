"""What the receiver of lineage events learns about a run."""

from __future__ import annotations

import pytest

from holdfast.application.handlers.emit_lineage import EmitLineage
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.data.dataset_version import LineageDataset
from holdfast.domain.errors import DataError
from holdfast.domain.events import DataEnded, RunFailed, RunFinished, RunStarted, StopRequested
from holdfast.domain.training.step_outcome import Progress

AT = Progress(7, 700, Cursor(28))
STOP = StopRequested(AT, "SIGTERM", 15)


def emitted(*events):
    found = []
    handler = EmitLineage(found.append, "a.train", [LineageDataset("file", "/in")], [], lambda text: text.upper())
    for event in events:
        handler(event)
    return found


@pytest.mark.parametrize(
    ("events", "states"),
    [
        ([RunStarted(AT), RunFinished(AT)], ["START", "COMPLETE"]),
        ([RunStarted(AT), STOP, RunFinished(AT)], ["START", "ABORT"]),
        ([RunStarted(AT), DataEnded(AT), STOP, RunFinished(AT)], ["START", "COMPLETE"]),
        ([RunStarted(AT), RunFailed(AT, KeyboardInterrupt())], ["START", "FAIL"]),
    ],
)
def test_a_run_starts_and_ends_once(events, states):
    """A stop before the end is an abort; the end of the data and of the budget complete the run."""
    found = emitted(*events)
    assert [event.state.value for event in found] == states
    assert {event.run_id for event in found} == {found[0].run_id}
    assert found[0].inputs[0].name == "/in"


def test_the_error_of_a_failure_is_told_without_secrets():
    """The message of the error passes the function that hides secrets."""
    *_, failure = emitted(RunStarted(AT), RunFailed(AT, DataError("https://a:b@host is gone")))
    assert failure.error == "DATAERROR: HTTPS://***@HOST IS GONE"
