import threading

import pytest

from holdfast.application.thread_pool import BackgroundWorker


def test_calls_are_made_in_order_beside_the_caller():
    """Calls are made one after another in another thread, all of them before ``settle`` returns."""
    made = []
    background = BackgroundWorker("test")
    for number in range(1000):
        background.submit(lambda number=number: made.append((number, threading.current_thread().name)))
    assert background.settle(60)
    assert made == [(number, "test") for number in range(1000)]
    background.close(20)


def test_an_error_is_raised_where_the_caller_asks_and_stops_nothing():
    """Each error is raised once, several as a group, and calls after it are made."""
    made = []
    background = BackgroundWorker("test")
    background.submit(lambda: 1 / 0)
    assert background.settle(60)
    with pytest.raises(ZeroDivisionError):
        background.raise_errors()
    background.submit(lambda: 1 / 0)
    background.submit(lambda: {}[1])
    background.submit(lambda: made.append(1))
    background.close(20)
    with pytest.raises(ExceptionGroup) as raised:
        background.raise_errors()
    assert [type(error) for error in raised.value.exceptions] == [ZeroDivisionError, KeyError]
    background.raise_errors()
    assert made == [1]


def test_a_call_that_hangs_holds_nobody_up():
    """``settle`` and ``close`` return when their time is up; nothing to wait for is no wait."""
    background = BackgroundWorker("test")
    assert background.settle(0)
    go_on = threading.Event()
    background.submit(lambda: go_on.wait(60))
    background.submit(lambda: None)
    assert not background.settle(0.01)
    assert background.waiting >= 1
    background.close(0.01)
    go_on.set()
    assert background.settle(0)


def test_it_can_be_used_again_after_its_end():
    """A call after ``close`` starts another thread."""
    made = []
    background = BackgroundWorker("test")
    background.submit(lambda: made.append(1))
    background.close(20)
    background.close(20)
    background.submit(lambda: made.append(2))
    background.close(20)
    assert made == [1, 2]
