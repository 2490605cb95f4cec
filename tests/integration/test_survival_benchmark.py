from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from benchmarks.survival import __main__ as survival
from benchmarks.survival.machine import Hog, SlowDisk, SmallMachine
from benchmarks.survival.runs import Plan, Record
from holdfast.domain.events import ResourcesAdjusted
from holdfast.domain.resources.balance_policy import Knob
from holdfast.domain.training.step_outcome import Progress

PLAN = Plan(4, 4, 4, Path())


def record_of(seconds, changes=()):
    adjusted = [ResourcesAdjusted(Progress(step), knob, before, after, "why") for step, knob, before, after in changes]
    return Record(list(seconds), [0.99 * each for each in seconds], [1.0] * len(seconds), adjusted, 100)


def test_figures_follow_from_the_records():
    """Rates are over disturbed and last steps, the first change counts from the first slower step, and goals hold."""
    plain = record_of([1.0] * 4 + [4.0] * 4 + [1.0] * 4)
    managed = record_of([1.0] * 4 + [2.0] * 4 + [1.5, 1.0, 1.0, 1.0], [(6, Knob.THREADS, 2, 4)])
    figures = survival._slow_figures(PLAN, [(managed, plain)] * 3)
    assert [figure.value for figure in figures[1:4]] == ["1.60x [1.60, 1.60]", "1", "2"]
    assert all(figure.is_met for figure in figures[:4])
    worse = survival._slow_figures(PLAN, [(plain, managed)])
    assert [figure.is_met for figure in worse[:4]] == [True, False, True, True]
    assert survival._hog_figures(PLAN, [(managed, plain)])[2].is_met is False
    assert survival._hog_figures(PLAN, [(managed, plain)])[1].value == "2"


def test_a_process_that_is_slow_from_the_start_is_measured_by_itself():
    """Beside a hog a run that was slow before is as fast as one that was not, and one that became slow is not."""
    plain, slow = (record_of([seconds] * 12) for seconds in (1.0, 1.3))
    slowed = record_of([1.0] * 4 + [1.25] * 8)
    figures = [survival._hog_figures(PLAN, [(managed, plain)])[0] for managed in (slow, slowed)]
    assert [figure.value for figure in figures] == ["1.00x [1.00, 1.00]", "0.80x [0.80, 0.80]"]


def test_a_slow_disk_gives_the_same_documents():
    """What is read slowly and what is read after recovery are the same texts."""
    disk = SlowDisk(["abc", "def"])
    disk.slow_down(1e6)
    slow = [item.text for unit in disk.units() for item in disk.read(unit)]
    disk.recover()
    assert slow == [item.text for unit in disk.units() for item in disk.read(unit)] == ["abc", "def"]


def test_a_hog_really_takes_memory():
    """The machine is fuller by what the other process holds, and as before once it lets go."""
    with closing(Hog()) as hog:
        machine = SmallMachine([hog.pid])
        before = machine.used
        machine.limit = before + (100 << 20)
        hog.hold(50 << 20)
        assert machine.used - before > 40 << 20
        assert machine.sample().memory < 1.0
        hog.hold(0)
        assert machine.used - before < 20 << 20


def test_a_record_reaches_another_process():
    """What one process tells of its run another one takes as the same record."""
    record = record_of([1.0, 2.0], [(6, Knob.THREADS, 2, 4)])
    assert Record.from_json(json.loads(json.dumps(record.to_json()))) == record
