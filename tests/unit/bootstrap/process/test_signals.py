import signal
import threading

import pytest

from holdfast.bootstrap.process.signals import StoppedAtOnce, exiting_on_termination, stopping_on_signals
from holdfast.domain.fault_tolerance.restart_policy import GracePeriod

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP]


def asked_by(*numbers, is_training=True):
    """Return what a run was asked by these signals, one after another."""
    asked = []
    with stopping_on_signals(lambda reason, number: asked.append((reason, number)) or is_training):
        for number in numbers:
            signal.raise_signal(number)
    return asked


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_asks_the_run_to_stop(number):
    """Each of the signals becomes one wish with its name and number; its handler is as before behind the block."""
    before = signal.getsignal(number)
    assert asked_by(number) == [(f"received {number.name}", number)]
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_the_process_at_once(first, second):
    """Whoever asks twice does not want to wait for a checkpoint."""
    with pytest.raises(StoppedAtOnce, match=second.name):
        asked_by(first, second)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_before_training_ends_the_process_at_once(number):
    """There is nothing to save before there is a run."""
    with pytest.raises(StoppedAtOnce, match=number.name):
        asked_by(number, is_training=False)


@pytest.mark.parametrize(
    "signals",
    [
        [signal.SIGUSR1, signal.SIGINT],
        [signal.SIGUSR1, signal.SIGUSR1],
        [signal.SIGTERM, signal.SIGUSR1],
        [signal.SIGHUP, signal.SIGHUP],  # of the kernel and of the shell
        [signal.SIGTERM, signal.SIGHUP],  # of systemd
        [signal.SIGHUP, signal.SIGTERM],
    ],
)
def test_a_warning_is_no_first_and_no_second_signal(signals):
    """SIGUSR1 and SIGHUP come beside the signal that ends a job: before or after it, neither cuts the save short."""
    assert asked_by(*signals)[0] == (f"received {signals[0].name}", signals[0])


def test_a_warning_does_not_take_the_second_signal_away():
    """Behind a warning, too, it takes two signals to end the process at once."""
    with pytest.raises(StoppedAtOnce):
        asked_by(signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM)


def test_a_hang_up_that_is_ignored_stays_ignored():
    """Under nohup a run that loses its terminal continues."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert asked_by(signal.SIGHUP) == []
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def acknowledged(*numbers, will_save, seconds=5.0):
    """Return the sentences that a person reads one for each signal."""
    said, is_told = [], threading.Event()

    def tell(sentence):
        said.append(sentence)
        is_told.set()

    with stopping_on_signals(lambda *_: True, acknowledge=tell, will_save=lambda: will_save):
        for number in numbers:
            is_told.clear()
            signal.raise_signal(number)
            assert is_told.wait(seconds)
    return said


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_acknowledged(number):
    """A run that will save says so, with the signal's name, and a person who presses Ctrl-C how to stop at once."""
    (sentence,) = acknowledged(number, will_save=True)
    assert number.name in sentence
    assert "saving" in sentence
    assert ("again" in sentence) == (number == signal.SIGINT)


def test_nothing_is_promised_where_there_is_no_run():
    """Before training the sentence names the signal and tells of no save."""
    (sentence,) = acknowledged(signal.SIGTERM, will_save=False)
    assert "SIGTERM" in sentence
    assert "saving" not in sentence


def test_the_threads_of_signals_end_with_the_block():
    """Behind the block no thread waits for signals any more."""
    before = threading.active_count()
    acknowledged(signal.SIGTERM, will_save=True)
    assert threading.active_count() == before


def test_a_held_terminal_does_not_keep_the_command():
    """Where the sentence cannot be written, the block ends all the same."""
    is_written, is_held = threading.Event(), threading.Event()

    def tell(_):
        is_held.set()
        is_written.wait(60)

    with stopping_on_signals(lambda *_: True, acknowledge=tell, will_save=lambda: True):
        signal.raise_signal(signal.SIGTERM)
        assert is_held.wait(5)
    assert not is_written.is_set()
    (thread,) = (each for each in threading.enumerate() if each.name == "signals")
    is_written.set()
    thread.join(5)
    assert not thread.is_alive()


def test_the_grace_period_is_for_the_save():
    """A step may take half of the grace period, and the save has the rest."""
    grace = GracePeriod(20.0)
    assert [grace.is_short(waited) for waited in (0.0, 9.9, 10.0, 30.0)] == [False, False, True, True]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_termination_lets_blocks_clean_up(number):
    """A command without a run leaves by the code of the signal, and blocks around the work are ended in order."""
    before, cleaned = signal.getsignal(number), []

    def work():
        with exiting_on_termination():
            try:
                signal.raise_signal(number)
            finally:
                cleaned.append(number)

    with pytest.raises(SystemExit) as end:
        work()
    assert (end.value.code, cleaned) == (128 + number, [number])
    assert signal.getsignal(number) is before


def test_the_copy_that_a_launcher_passes_on_is_no_second_signal(monkeypatch):
    """Slurm signals each rank and torchrun, which passes the signal on: the rank saves, and another signal ends it."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert asked_by(signal.SIGTERM, signal.SIGTERM) == [("received SIGTERM", signal.SIGTERM)]
    with pytest.raises(StoppedAtOnce):
        asked_by(signal.SIGTERM, signal.SIGINT)
    monkeypatch.setattr("holdfast.bootstrap.process.signals._COPY_SECONDS", 0.0)
    with pytest.raises(StoppedAtOnce):
        asked_by(signal.SIGTERM, signal.SIGTERM)
