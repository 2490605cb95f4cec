"""Lineage events are sent beside the run, which neither waits for them nor ends with them."""

from __future__ import annotations

import threading

from holdfast.application.handlers.emit_lineage import LineageQueue
from holdfast.domain.data.dataset_version import JobExecution, JobState

EVENT = JobExecution("a").event(JobState.START, [], [])


def test_events_are_sent_in_order():
    """Every event arrives before `close` returns, in its order, from another thread."""
    found = []
    queue = LineageQueue(lambda event: found.append((event, threading.current_thread())), print)
    events = [JobExecution("a").event(JobState.START, [], []) for _ in range(20)]
    for event in events:
        queue.emit(event)
    queue.close()
    assert [event for event, _ in found] == events
    assert threading.current_thread() not in {thread for _, thread in found}


def test_a_failure_is_told_once_and_without_secrets():
    """A receiver that refuses every event leaves one line, in which the password is hidden."""
    said = []

    def refuse(_event):
        msg = "https://user:secret@host refused"
        raise OSError(msg)

    queue = LineageQueue(refuse, said.append)
    queue.emit(EVENT)
    queue.emit(EVENT)
    queue.close()
    assert len(said) == 1
    assert "secret" not in said[0]
    assert "host refused" in said[0]


def test_a_receiver_that_hangs_holds_nobody_up():
    """`emit` returns however many events wait, and `close` after the seconds that it was given, as nothing is taken."""
    answer, said = threading.Event(), []
    queue = LineageQueue(lambda _: answer.wait(), said.append, seconds=0.2)
    try:
        for _ in range(300):
            queue.emit(EVENT)
        queue.close()
        assert len(said) == 1
    finally:
        answer.set()


def test_what_was_never_used_closes():
    """A queue without events has no thread and nothing to say."""
    said = []
    LineageQueue(print, said.append).close()
    assert said == []
