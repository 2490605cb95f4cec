"""Checks in threads: their order, their time limits, and their errors."""

import threading
import time

import pytest

from holdfast.bootstrap.doctor.diagnosis import perform_in_turn, perform_together
from holdfast.bootstrap.doctor.finding import Check, CheckVerdict, good
from holdfast.domain.errors import ConfigurationError


def test_findings_come_in_the_order_of_the_checks():
    """A slow check keeps its place, and all run at once."""
    both = threading.Barrier(2)

    def meet():
        both.wait(60)  # for the other one, so that neither ends alone
        time.sleep(0.1)
        yield good("slow", "there")

    fast = Check("fast", lambda: [good("fast", "there")])
    slow = Check("slow", meet, seconds=100)
    assert [finding.name for finding in perform_together([slow, slow, fast])] == ["slow", "slow", "fast"]


def test_checks_in_turn_do_not_overlap():
    """A check begins only after the one before it has ended."""
    running = threading.Lock()

    def alone():
        assert running.acquire(blocking=False)
        time.sleep(0.05)
        running.release()
        yield good("alone", "there")

    assert {finding.verdict for finding in perform_in_turn([Check("alone", alone)] * 3)} == {CheckVerdict.OK}


def test_what_was_found_before_a_check_hangs_counts():
    """The findings of a check that hangs, or fails, stay, and one more says so."""
    half_over, over = threading.Event(), threading.Event()

    def half(*, fails: bool):
        yield good("run folder", "can be written")
        if fails:
            raise OSError(5, "Input/output error")
        half_over.set()
        over.wait()

    first = Check("first", lambda: [] if half_over.wait(60) else [good("first", "in vain")], seconds=100)
    hanging = Check("run folder", lambda: half(fails=False), seconds=0.1)
    failing = Check("token cache", lambda: half(fails=True), seconds=100)
    try:
        findings = perform_together([first, hanging, failing])
    finally:
        over.set()
    verdicts = [finding.verdict for finding in findings]
    assert verdicts == [CheckVerdict.OK, CheckVerdict.ERROR, CheckVerdict.OK, CheckVerdict.ERROR]
    assert "no answer within 0.1 s" in findings[1].detail
    assert "Input/output error" in findings[3].detail


def test_an_error_of_holdfast_keeps_its_remedy():
    """The end of a sentence of Holdfast's own, after its colon, is the remedy."""

    def refuse():
        msg = "run.cache_dir is not set and this user has no home folder: set run.cache_dir"
        raise ConfigurationError(msg)
        yield

    (finding,) = perform_together([Check("token cache", refuse)])
    assert finding.detail == "run.cache_dir is not set and this user has no home folder"
    assert finding.remedy == "set run.cache_dir"


def test_a_machine_without_threads_is_checked_too(monkeypatch):
    """If no thread can be started, the check runs in the thread that asked."""

    def refuse(_):
        msg = "can't start new thread"
        raise RuntimeError(msg)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert perform_together([Check("python", lambda: [good("python", "3.11")])]) == [good("python", "3.11")]


@pytest.mark.parametrize("seconds", [0.05, 0.2])
def test_a_check_may_take_as_long_as_it_says(seconds):
    """The limit is that of the check, not that of the one before it."""
    over = threading.Event()
    try:
        found = perform_together([Check(name, lambda: [over.wait()], seconds) for name in ("a", "b", "c")])
        assert [finding.detail for finding in found] == [f"no answer within {seconds} s"] * 3
    finally:
        over.set()
