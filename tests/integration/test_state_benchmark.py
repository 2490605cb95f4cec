from __future__ import annotations

import random

import pytest

from benchmarks.state import groups, overhead
from benchmarks.state.files import SlowFiles, make_durable, read_raw, touched_buffer, write_raw
from benchmarks.state.material import build_torch, build_trainable, captured_tensors, digest, prepare, spoil, tensors_of
from benchmarks.state.overhead import Training
from holdfast.adapters.shared.files.file_operations import FileOperations


class Way:
    """A way that answers from memory; ``remembers`` says whether it restores what it saved."""

    def __init__(self, name, *, remembers=True):
        self.name = name
        self.remembers = remembers
        self.state = "whole"

    def ask(self, command):
        if command == "spoil":
            self.state = "spoilt"
        elif command == "restore" and self.remembers:
            self.state = "whole"
        return {"digest": self.state}


def test_every_way_begins_with_the_same_bits(tmp_path):
    """Holdfast's trainable and torch's network and AdamW hold the same state, a step changes it, a restore does not."""
    prepare(tmp_path, 0.03)
    trainable = build_trainable(tmp_path)
    whole = digest(captured_tensors(trainable.capture()))
    assert digest(tensors_of(*build_torch(tmp_path))) == whole
    spoil(trainable)
    assert digest(captured_tensors(trainable.capture())) != whole


def test_a_way_that_forgets_is_not_timed():
    """A way whose restore does not bring back every bit ends the benchmark."""
    groups._prove([Way("a"), Way("b")], "save")
    with pytest.raises(SystemExit, match="b does not restore what it saved"):
        groups._prove([Way("a"), Way("b", remembers=False)], "save")


def test_ways_with_other_states_are_not_compared():
    """Ways that begin with different states end the benchmark."""
    other = Way("b")
    other.state = "another"
    with pytest.raises(SystemExit, match="do not begin with the same state"):
        groups._prove([Way("a"), other], "save")


def test_a_figure_is_that_of_pairs():
    """Where the machine's speed drifts what counts is the ratio within a round, held to its goal."""
    figure = groups._compared("ours / theirs", [1.0, 20.0, 3.0], [2.0, 40.0, 2.0], "s", "<= 0.5")
    assert figure.value.startswith("0.50x [0.50, 1.50]")
    assert (figure.goal, figure.is_met) == ("<= 0.5x", True)
    goals = {goal: groups._compared("it", [1.0], [1.0], "s", goal).is_met for goal in ("<= 1", "< 1", ">= 1", ">= 2")}
    assert goals == {"<= 1": True, "< 1": False, ">= 1": True, ">= 2": False}


def test_raw_files_hold_the_bytes(tmp_path):
    """What is written as one file in pieces is what is read from it."""
    data = memoryview(random.Random(0).randbytes((4 << 20) + 5))
    write_raw(tmp_path / "state", data)
    make_durable(tmp_path)
    buffer = touched_buffer(len(data))
    assert read_raw(tmp_path, buffer) == len(data)
    assert buffer == data


def test_a_slow_disk_slows_every_operation():
    """No operation of the disk is left as fast as it was."""
    operations = {name for name in vars(FileOperations) if not name.startswith("_")}
    assert operations - vars(SlowFiles).keys() == {"remove_tree"}, "it goes through the others"


def test_a_run_that_learns_otherwise_does_not_count():
    """Losses of the runs must be equal to the bit."""
    with pytest.raises(SystemExit, match="do not learn the same"):
        overhead._refuse_other_losses({"a": [{"losses": [1.0]}], "b": [{"losses": [1.0000001]}]})


def turns_of(*seconds, begun=(0, 1, 0, 1, 0)):
    return [
        {"steps": [1.0, second], "begun": count, "saves": [[0.1, 0.5]] * count}
        for second, count in zip(seconds, begun, strict=True)
    ]


def test_overhead_follows_from_the_periods_around(tmp_path):
    """The figure is the median of the time with a save over the mean of the two periods around without one."""
    training = Training(None, tmp_path, (), 2, 2, 0.2)
    figures = overhead._figures(training, "run with saves", turns_of(1.0, 1.06, 1.0, 2.02, 3.0))
    assert figures[0].value.startswith("1.018x [")
    assert figures[0].is_met
    assert [figure.value for figure in figures[1:]] == ["2.02 / 3.00 s", "0.10 / 0.50 s"]


def test_a_run_that_does_not_save_in_time_does_not_count(tmp_path):
    """No save, a save where none belongs, or one that lasts longer than its period: no figure."""
    training = Training(None, tmp_path, (), 2, 2, 0.2)
    for begun in ((0, 0, 0, 0, 0), (0, 1, 1, 1, 0)):
        with pytest.raises(SystemExit, match="did not save in each second period"):
            overhead._refuse_other_saves(training, "run with saves", turns_of(1.0, 1.0, 1.0, 1.0, 1.0, begun=begun))
    late = turns_of(1.0, 1.0, 1.0, 1.0, 1.0)
    late[1]["saves"], late[2]["saves"] = [], late[1]["saves"]
    with pytest.raises(SystemExit, match="longer than its 2 steps"):
        overhead._figures(training, "run with saves", late)


def test_ways_begin_and_follow_each_other_in_turn():
    """Over two cycles each of three ways is first as often as the others, and follows each of them as often."""
    ways = [Way("a"), Way("b"), Way("c")]
    orders = [[way.name for way in groups._order(ways, turn)] for turn in range(6)]
    assert sorted(map("".join, orders)) == ["abc", "acb", "bac", "bca", "cab", "cba"]
    assert [way.name for way in groups._order(ways[:2], 1)] == ["b", "a"]
