"""Older checkpoints are looked at beside training."""

import threading

import pytest

from holdfast.application.handlers.save_checkpoints import ScrubCheckpoints
from holdfast.application.inbox import Inbox
from holdfast.domain.commands import ReportDamage
from holdfast.domain.errors import StateError
from holdfast.domain.events import CheckpointSaved, RunFinished
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.state_store import RejectedCheckpoint

SAVED = CheckpointSaved(Progress(step=1), "here", "periodic", 0.1, 0.1)


class Store:
    """Counts the looks into it; each takes until ``may_end`` is set."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.looks = 0
        self.may_end = threading.Event()
        self.may_end.set()

    def scrub(self):
        self.looks += 1
        assert self.may_end.wait(60)
        outcome = self.outcomes.pop(0) if self.outcomes else ()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def saves(handler, number):
    for _ in range(number):
        handler(SAVED)
        handler._thread.settle(60)


def test_each_so_many_saves_one_is_looked_at():
    """Of seven saves the third and the sixth have an older checkpoint looked at."""
    store = Store()
    saves(ScrubCheckpoints(store, Inbox(), every=3), 7)
    assert store.looks == 2


def test_what_is_damaged_is_reported():
    """The loop is told of what was set aside, to publish it on every rank."""
    inbox = Inbox()
    saves(ScrubCheckpoints(Store([RejectedCheckpoint("checkpoint-1", "a bit", "quarantine/1")]), inbox, every=1), 1)
    assert inbox.drain() == [ReportDamage("checkpoint-1", "a bit", "quarantine/1")]


def test_a_disk_that_refuses_is_heard_and_tried_again():
    """What a look raises is the handler's error at a later save, and the next look is made."""
    store = Store(StateError("the disk refuses"))
    handler = ScrubCheckpoints(store, Inbox(), every=1)
    saves(handler, 1)
    with pytest.raises(StateError, match="refuses"):
        handler(SAVED)
    saves(handler, 1)
    assert store.looks >= 2


def test_a_long_look_is_not_joined_by_a_second_one():
    """While one checkpoint is being read, no other look begins, and the end of the run does not wait."""
    store = Store()
    store.may_end.clear()
    handler = ScrubCheckpoints(store, Inbox(), every=1)
    for _ in range(3):
        handler(SAVED)
    handler.on_end(RunFinished(Progress(step=3)))
    store.may_end.set()
    assert store.looks <= 1
