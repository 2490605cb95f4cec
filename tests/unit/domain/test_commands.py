import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.application.inbox import Inbox
from holdfast.domain import commands
from holdfast.domain.checkpoints.tiers import Tier
from holdfast.domain.commands import (
    AcknowledgeArchive,
    AcknowledgeMove,
    AcknowledgeSave,
    AdjustResources,
    Command,
    DropCopy,
    Evaluate,
    ReportDamage,
    ReportStall,
    RollBack,
    SaveCheckpoint,
    SaveReason,
    SplitBatch,
    StopEarly,
    StopRun,
    from_json,
    to_json,
)
from holdfast.domain.resources.balance_policy import Knob

OUTCOME = (st.integers(1, 99), st.integers(1, 10**6), st.text(), st.floats(0, 1e6), st.none() | st.text())
COMMANDS = st.one_of(
    st.builds(SplitBatch, st.integers(1, 10**6)),
    st.builds(AdjustResources, st.sampled_from(Knob), st.integers(1, 99), st.integers(1, 99), st.text()),
    st.builds(SaveCheckpoint, st.sampled_from(SaveReason)),
    st.just(Evaluate()),
    st.builds(ReportDamage, st.text(), st.text(), st.text()),
    st.builds(
        RollBack, st.integers(0), st.text(), st.none() | st.integers(0), st.none() | st.integers(0), st.booleans()
    ),
    st.builds(StopRun, st.text(), st.none() | st.integers(1, 64), st.booleans()),
    st.builds(StopEarly, st.integers(1, 10**6), st.text()),
    st.builds(AcknowledgeArchive, *OUTCOME[1:]),
    st.builds(AcknowledgeSave, *OUTCOME),
    st.builds(AcknowledgeMove, st.integers(1, 99), st.sampled_from(Tier), st.sampled_from(Tier), st.text()),
    st.just(DropCopy()),
    st.builds(ReportStall, st.floats(0, 1e6), st.text()),
)


@given(COMMANDS)
def test_a_command_survives_the_way_to_another_rank(command):
    """Each command, as JSON text and back, is the same command with fields of the same types."""
    again = from_json(json.loads(json.dumps(to_json(command))))
    assert again == command
    assert repr(again) == repr(command)


def test_every_command_can_be_told_to_another_rank():
    """No command is forgotten when a new one is written."""
    examples = [SplitBatch(1), SaveCheckpoint(), Evaluate(), StopRun("why"), StopEarly(7, "why")]
    examples += [
        AcknowledgeSave(1, 7, "here", 0.5),
        AcknowledgeArchive(1, "there", 0.5, "no way"),
        AcknowledgeMove(1, Tier.DISK, Tier.ARCHIVE, "why"),
        DropCopy(),
        ReportDamage("a", "b", "c"),
        AdjustResources(Knob.PREFETCH, 4, 8, "why"),
        ReportStall(61.5, "why"),
        RollBack(100, "a spike", 3, 8),
    ]
    kinds = {kind for kind in vars(commands).values() if isinstance(kind, type) and issubclass(kind, Command)}
    assert {type(command) for command in examples} == kinds - {Command}
    assert [from_json(to_json(command)) for command in examples] == examples


def test_an_unknown_command_is_refused():
    """What is not a command is not obeyed."""
    with pytest.raises(KeyError):
        from_json({"kind": "FormatDisk"})


@given(st.lists(COMMANDS))
def test_the_inbox_gives_commands_in_their_order_once(posted):
    """Draining takes all commands, oldest first, and leaves none; a stop is known from the moment it is posted."""
    inbox = Inbox()
    assert not inbox
    for command in posted:
        inbox.post(command)
    assert bool(inbox) == bool(posted)
    assert inbox.drain() == posted
    assert inbox.drain() == []
    assert not inbox
    assert inbox.stop_requested == any(isinstance(command, StopRun) for command in posted)


def test_the_inbox_takes_commands_from_many_threads():
    """No command is lost or doubled, and each thread's stay in order."""
    inbox = Inbox()
    threads = [
        threading.Thread(target=lambda base=base: [inbox.post(SplitBatch(base + number)) for number in range(200)])
        for base in range(0, 4000, 1000)
    ]
    for thread in threads:
        thread.start()
    received = []
    while any(thread.is_alive() for thread in threads):
        received += inbox.drain()
    received += inbox.drain()
    rows = [command.rows for command in received]
    assert sorted(rows) == [base + number for base in range(0, 4000, 1000) for number in range(200)]
    for base in range(0, 4000, 1000):
        own = [number for number in rows if base <= number < base + 1000]
        assert own == sorted(own)
