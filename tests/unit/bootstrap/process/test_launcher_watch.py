"""A process of several that its launcher has left."""

import fcntl
import os
import signal
import threading

import pytest

from holdfast.bootstrap.process.launch import ending_with_launcher, launcher_of
from holdfast.bootstrap.process.signals import StoppedAtOnce, stopping_on_signals

SECONDS = 60


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """Be one of two processes."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)


class Parent:
    """The process above this one: ``launcher`` first, then 1."""

    def __init__(self, launcher=4711):
        self.pids = [launcher, 1]

    def __call__(self):
        return self.pids.pop(0) if len(self.pids) > 1 else self.pids[0]


def test_a_run_that_its_launcher_left_is_asked_to_stop():
    """The run hears that the launcher is gone as it hears SIGTERM, and may leave in its own time."""
    asked, heard = [], threading.Event()

    def request_stop(reason, number):
        asked.append((reason, number))
        heard.set()
        return True

    with ending_with_launcher(request_stop, SECONDS, parent_of=Parent(), end=pytest.fail):
        assert heard.wait(SECONDS)
    assert asked == [("the launcher (process 4711) is gone", signal.SIGTERM)]


def test_before_training_the_process_ends_at_once():
    """Where there is nothing to save yet, the main thread is stopped where it is."""
    never = threading.Event()
    with (
        pytest.raises(StoppedAtOnce, match="SIGTERM"),
        stopping_on_signals(lambda *_: False),
        ending_with_launcher(lambda *_: False, SECONDS, parent_of=Parent(), end=pytest.fail),
    ):
        never.wait(SECONDS)


def test_a_signal_at_once_leaves_no_thread(monkeypatch):
    """A process that ends while the watch begins has no thread left that would end it a second time."""
    start, threads = threading.Thread.start, []

    def interrupted(self):
        start(self)
        threads.append(self)
        raise StoppedAtOnce(signal.SIGTERM)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(StoppedAtOnce), ending_with_launcher(pytest.fail, SECONDS, parent_of=lambda: 4711, end=int):
        pass
    assert [thread.is_alive() for thread in threads] == [False]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_process_that_hangs_is_ended(is_there):
    """A process that has not ended within its grace period, as in a collective without peers, is ended by force."""
    ended, codes = threading.Event(), []

    def end(code):
        codes.append(code)
        ended.set()

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # native code that waits hears no signal either
    try:
        with ending_with_launcher(lambda *_: is_there, 0.1, parent_of=Parent(), end=end):
            assert ended.wait(SECONDS)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert codes == [143]


@pytest.fixture
def held():
    """Have standard error be a pipe that is full and that nobody reads."""
    reader, writer = os.pipe()
    size, before = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ), os.dup(2)
    os.write(writer, bytes(size))
    os.dup2(writer, 2)
    yield
    os.dup2(before, 2)
    for each in (reader, writer, before):
        os.close(each)


@pytest.mark.usefixtures("held")
def test_a_held_terminal_keeps_no_process():
    """A process whose words nobody reads is asked to stop, and ended by force, as any other."""
    ended = threading.Event()
    with ending_with_launcher(lambda *_: True, 0.1, parent_of=Parent(), end=lambda _: ended.set()):
        assert ended.wait(SECONDS)


def test_a_launcher_that_is_there_changes_nothing():
    """As long as the parent is the same nobody is asked to stop, and no thread stays."""
    before = threading.active_count()
    with ending_with_launcher(pytest.fail, 0.0, parent_of=lambda: 4711, end=pytest.fail):
        pass
    assert threading.active_count() == before


def test_a_process_on_its_own_has_no_launcher(monkeypatch):
    """A run that a shell started goes on when the shell is gone."""
    monkeypatch.setenv("WORLD_SIZE", "1")
    before = threading.active_count()
    with ending_with_launcher(pytest.fail, 0.0, parent_of=Parent(), end=pytest.fail):
        assert threading.active_count() == before


@pytest.mark.parametrize(
    ("run_id", "expected"), [("holdfast.launcher.12", 12), ("77", 1), ("mine", 1), ("holdfast-12", 1), (None, 1)]
)
def test_a_launcher_that_left_early_is_known(run_id, expected):
    """Of a process that this program launched the launcher is known even if it was gone before anybody looked."""
    environment = {} if run_id is None else {"TORCHELASTIC_RUN_ID": run_id}
    assert launcher_of(1, environment) == expected
