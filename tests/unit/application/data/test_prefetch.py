import threading
import time
from itertools import count, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.application.data.prefetch import Prefetch


@settings(deadline=None)
@given(st.lists(st.integers()), st.integers(1, 5))
def test_items_come_in_order_and_end(items, depth):
    """Prefetching yields the same items in the same order, and stays ended."""
    prefetch = Prefetch(iter(items), depth=depth)
    assert list(prefetch) == items
    assert list(prefetch) == []
    prefetch.close()


@pytest.mark.parametrize("depth", [1, 3])
def test_an_error_comes_where_its_item_would_be(depth):
    """Items that were made before an error come first, and the error comes each time one asks again."""

    def items():
        yield from "abcd"
        raise ZeroDivisionError

    prefetch = Prefetch(items(), depth=depth)
    assert [next(prefetch) for _ in range(4)] == list("abcd")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            next(prefetch)
    prefetch.close()


def test_an_interruption_in_the_thread_reaches_the_one_who_asks():
    """No exception is lost in the thread, not even one that is no ``Exception``."""

    def items():
        yield 1
        raise KeyboardInterrupt

    prefetch = Prefetch(items(), depth=1)
    assert next(prefetch) == 1
    with pytest.raises(KeyboardInterrupt):
        next(prefetch)
    prefetch.close()


def test_only_so_many_items_are_made_ahead():
    """Memory is bounded: ``depth`` items wait, and one more is in hand."""
    made = []
    enough = threading.Event()

    def items():
        for number in count():
            made.append(number)
            if number == 3:
                enough.set()
            yield number

    prefetch = Prefetch(items(), depth=3)
    assert enough.wait(60)
    for taken in range(20):
        assert len(made) <= taken + 3 + 1
        assert next(prefetch) == taken
    prefetch.close()


@pytest.mark.parametrize("depth", [1, 4])
def test_closing_ends_the_thread(depth):
    """``close`` waits for the thread, in the middle of endless items and after the last, and may be called twice."""
    before = set(threading.enumerate())
    endless, ended = Prefetch(count(), depth=depth), Prefetch(iter([1]), depth=depth)
    assert next(endless) == 0
    assert list(ended) == [1]
    for prefetch in (endless, ended, endless):
        prefetch.close()
    assert set(threading.enumerate()) <= before  # of those that were there some may have ended meanwhile


def test_closing_wakes_one_who_waits():
    """A thread that waits for an item learns that none comes any more."""
    may_go_on = threading.Event()

    def items():
        may_go_on.wait(60)
        yield 1

    prefetch = Prefetch(items(), depth=1)
    received = []
    waiting = threading.Thread(target=lambda: received.extend(prefetch))
    waiting.start()
    closing = threading.Thread(target=prefetch.close)
    closing.start()
    may_go_on.set()
    closing.join(60)
    waiting.join(60)
    assert not closing.is_alive()
    assert not waiting.is_alive()
    assert received in ([], [1])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), max_size=12), st.integers(1, 5))
def test_the_depth_may_change_at_any_item(changes, depth):
    """Whatever depth it is set to on the way, the same items come in the same order, and none twice."""
    prefetch = Prefetch(iter(range(40)), depth=depth)
    found = []
    for new, taken in changes:
        prefetch.resize(new)
        found += islice(prefetch, taken)
    found += prefetch
    prefetch.close()
    assert found == list(range(40))


def test_a_new_depth_bounds_what_is_made_ahead():
    """A deeper queue fills further, and a shallower one is bounded anew once what waits in it was taken."""
    made = []

    def items():
        for number in count():
            made.append(number)
            yield number

    def settled(expected):
        deadline = time.monotonic() + 60
        while len(made) < expected and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
        return len(made)

    prefetch = Prefetch(items(), depth=1)
    assert settled(2) == 2
    prefetch.resize(5)
    assert settled(6) == 6
    assert prefetch.fill == 5
    prefetch.resize(2)
    assert [next(prefetch) for _ in range(3)] == [0, 1, 2]
    assert settled(6) == 6
    assert [next(prefetch) for _ in range(4)] == [3, 4, 5, 6]
    assert settled(10) == 10
    prefetch.close()
