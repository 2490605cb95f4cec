import threading
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.application.thread_pool import ThreadPool


def test_more_threads_begin_at_once_and_fewer_work_less_at_a_time():
    """As many calls as there are threads run at the same time, after growing and after shrinking."""
    pool = ThreadPool(1, "test-pool")
    for size in (3, 2, 4, 1):
        pool.resize(size)
        gate, entered = threading.Event(), threading.Semaphore(0)

        def wait(gate=gate, entered=entered):
            entered.release()
            return gate.wait(60)

        futures = [pool.submit(wait) for _ in range(6)]
        assert all(entered.acquire(timeout=10) for _ in range(size))
        assert not entered.acquire(timeout=0.05)
        gate.set()
        assert all(future.result(60) for future in futures)
    pool.close(10)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 5), max_size=8))
def test_no_call_is_lost_however_often_the_size_changes(sizes):
    """Every call that was made before, between and after changes has its result, and no thread is left in the end."""
    pool = ThreadPool(2, "test-many")
    futures = []
    for number, size in enumerate([2, *sizes]):
        pool.resize(size)
        futures += [pool.submit(lambda value: value * 2, number * 10 + each) for each in range(10)]
    assert [future.result(60) for future in futures] == [each * 2 for each in range(len(futures))]
    pool.close(10)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("test-many")]


def test_closing_after_a_change_cancels_what_waits_and_ends_every_thread():
    """A pool that was made smaller while all its threads were busy still cancels the calls that have not begun."""
    pool = ThreadPool(3, "test-closing")
    gate, entered = threading.Event(), threading.Semaphore(0)

    def block():
        entered.release()
        gate.wait(60)

    for _ in range(3):
        pool.submit(block)
    assert all(entered.acquire(timeout=10) for _ in range(3))
    pool.resize(1)
    waiting = [pool.submit(time.sleep, 100) for _ in range(3)]
    closing = threading.Thread(target=pool.close, args=(10,))
    closing.start()
    while not all(future.cancelled() for future in waiting):
        assert closing.is_alive()
    gate.set()
    closing.join(60)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("test-closing")]
