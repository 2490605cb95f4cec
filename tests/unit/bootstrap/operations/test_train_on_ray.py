"""A run on Ray as its command sees it: the number of workers, signals, and the exit code."""

from __future__ import annotations

import itertools
import signal
from types import SimpleNamespace

import pytest

from holdfast.bootstrap.operations.rank_coordinator import RankCoordinator, RunStatus
from holdfast.bootstrap.operations.train_on_ray import (
    Fit,
    ReceivedSignals,
    StartReports,
    check_secrets,
    check_shares,
    cluster_of,
    code_of_run,
    follow_run,
    is_to_start_on_ray,
    note_on_variables,
    scaling,
)
from holdfast.bootstrap.process.signals import StoppedAtOnce
from holdfast.configs.sections.distributed import RayDistributedSettings
from holdfast.configs.settings import TrainSettings
from holdfast.domain.errors import ConfigurationError, TrainingError


def test_only_the_command_itself_starts_ranks():
    """The same settings in a rank do not start Ray again."""
    settings = TrainSettings(distributed={"kind": "ray"})
    assert is_to_start_on_ray(settings, {})
    assert not is_to_start_on_ray(settings, {"RANK": "0", "WORLD_SIZE": "1"})
    assert not is_to_start_on_ray(TrainSettings(), {})


def test_a_batch_that_some_number_of_workers_cannot_share_is_refused():
    """The sentence names the first number of workers that does not divide the batch."""
    check_shares(8, RayDistributedSettings(workers=(1, 2)))
    check_shares("auto", RayDistributedSettings(workers=(1, 3)))
    with pytest.raises(
        ConfigurationError, match=r"goes from 1 to 4, but 3 workers cannot share optimizer\.batch_size=8"
    ):
        check_shares(8, RayDistributedSettings(workers=(1, 4)))
    with pytest.raises(ConfigurationError, match="but 3 workers cannot share"):
        check_shares(8, RayDistributedSettings(workers=(2, 4), mesh={"tensor": 2}))


@pytest.mark.parametrize(("workers", "number"), [((2, 2), 2), ((1, 2), (1, 2))])
def test_one_number_of_workers_is_fixed(workers, number):
    """Ray changes the number of workers only if there is more than one."""
    asked = scaling(SimpleNamespace(ScalingConfig=dict), RayDistributedSettings(workers=workers, gpus_per_worker=1))
    assert asked["num_workers"] == number
    assert asked["resources_per_worker"] == {"CPU": 1, "GPU": 1}


def test_a_secret_on_the_command_line_is_refused():
    """Ray records the arguments of its workers, so a password among them is refused and not repeated."""
    check_secrets(["train", "run.name=a", "data.path=s3://bucket/texts"])
    with pytest.raises(ConfigurationError, match="which Ray would record") as refused:
        check_secrets(["train", "ledger.dsn=postgresql://user:hunter2@host/db"])
    assert "hunter2" not in str(refused.value)


def test_variables_that_another_cluster_may_lack_are_named():
    """Ray on this machine gives its workers the variables of the command, and another cluster its own."""
    own = {"HOLDFAST_LEDGER__DSN": "hunter2", "HOLDFAST_HOME": "x"}
    assert note_on_variables(own) is None
    assert note_on_variables({"HOLDFAST_HOME": "x", "RAY_ADDRESS": "10.0.0.1:6379"}) is None
    note = note_on_variables({**own, "RAY_ADDRESS": "10.0.0.1:6379"})
    assert "need HOLDFAST_LEDGER__DSN too" in note
    assert "hunter2" not in note


@pytest.mark.parametrize(
    ("raised", "expected", "words"),
    [
        (
            ConnectionError("Failed to connect\nmore"),
            TrainingError,
            "cannot be reached: Failed to connect; check",
        ),
        (SystemExit(15), StoppedAtOnce, "stopped at once by SIGTERM"),
    ],
)
def test_a_cluster_that_is_not_reached_is_a_sentence(raised, expected, words):
    """Ray leaves no traceback, nor an exit code of its own, and its handler of SIGTERM goes."""
    calls = []
    handler = signal.getsignal(signal.SIGTERM)

    def init(**_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise raised

    ray = SimpleNamespace(init=init, LoggingConfig=dict, shutdown=lambda: calls.append("shutdown"))
    with pytest.raises(expected, match=words), cluster_of(ray):
        pass
    assert calls == ["shutdown"]
    assert signal.getsignal(signal.SIGTERM) == handler


def test_workers_out_of_order_are_refused():
    """The least number stands first."""
    with pytest.raises(ValueError, match="write the least number first"):
        RayDistributedSettings(workers=(3, 2))


class FakeFit:
    """A call of Ray that ends at the look after ``is_over`` returns True."""

    def __init__(self, is_over):
        self._is_over = is_over

    def wait(self, _seconds):
        """Return whether the call has ended."""
        return self._is_over()


def test_a_signal_reaches_the_ranks_and_the_command_waits_for_their_end():
    """The command passes the signal on once, and ends when the ranks have ended by it."""
    coordinator, signals = RankCoordinator(), ReceivedSignals()
    coordinator.begin("a", 0, 1)
    looks = itertools.count()

    def is_over():
        look = next(looks)
        if look == 1:
            assert signals.add("received SIGINT", signal.SIGINT), "there is a run to stop"
        if look == 5:
            coordinator.end("a", 0, 130)
        return look == 6

    status = follow_run(FakeFit(is_over), coordinator, signals, StartReports(print, 1), 30.0)
    assert coordinator.signals() == (signal.SIGINT,)
    assert next(looks) == 7
    assert code_of_run(status, signals.first, None, print) == 130


def test_a_signal_without_a_rank_ends_the_command_at_once():
    """While Ray waits for room there is nothing to save."""
    signals = ReceivedSignals()
    assert not signals.add("received SIGTERM", signal.SIGTERM), "before Ray has started there is no run"
    status = follow_run(FakeFit(lambda: False), RankCoordinator(), signals, StartReports(print, 1), 30.0)
    with pytest.raises(StoppedAtOnce, match="stopped at once by SIGTERM"):
        code_of_run(status, signals.first, None, print)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_ranks_that_do_not_end_after_a_signal_are_left(number):
    """A rank that hangs holds the command for the grace period, unless the signal only announces another one."""
    coordinator, signals, clock = RankCoordinator(), ReceivedSignals(), itertools.count(0, 10)
    coordinator.begin("a", 0, 1)
    signals.add("", number)
    fit = FakeFit(lambda: next(looks) == 100)
    looks = itertools.count()
    status = follow_run(fit, coordinator, signals, StartReports(print, 1), 30.0, clock=lambda: next(clock))
    assert status.num_running == 1
    assert next(looks) == (101 if number == signal.SIGUSR1 else 6)


def test_ranks_that_do_not_end_after_a_decision_are_left():
    """A mistake of one rank ends the run although another one hangs."""
    coordinator, clock = RankCoordinator(), itertools.count(0, 10)
    coordinator.begin("a", 0, 2)
    coordinator.begin("a", 1, 2)
    coordinator.end("a", 1, 2)
    status = follow_run(
        FakeFit(lambda: False),
        coordinator,
        ReceivedSignals(),
        StartReports(print, 1),
        30.0,
        clock=lambda: next(clock),
    )
    assert code_of_run(status, None, None, print) == 2


@pytest.mark.parametrize(
    ("status", "number", "code"),
    [
        (RunStatus(1, 0, 0, None), None, 0),
        (RunStatus(1, 0, 4, 4), None, 4),
        (RunStatus(1, 0, 130, 130), signal.SIGINT, 130),
        (RunStatus(1, 0, None, 1), signal.SIGTERM, 1),
        (RunStatus(1, 1, None, 75), None, 75),
    ],
)
def test_the_command_ends_with_the_code_of_its_ranks(status, number, code):
    """What decided the end of the run is its code, and else the code of the last rank that failed."""
    said = []
    assert code_of_run(status, number, RuntimeError("a\nb"), said.append) == code
    assert (said == []) == (status.decided is not None)


def test_failed_starts_and_waits_for_room_are_reported_once_each():
    """The log of Ray is quiet, so the command says why no step is taken."""
    said = []
    reports = StartReports(said.append, 2)
    for now, status in enumerate(
        [
            *[RunStatus(0, 2, None, None)] * 60,
            RunStatus(0, 1, None, 1),
            *[RunStatus(1, 1, None, 137)] * 2,
            *[RunStatus(1, 0, None, 137)] * 60,
            *[RunStatus(1, 2, None, None)] * 60,
            RunStatus(2, 1, None, 143),
            RunStatus(2, 0, 0, None),
        ]
    ):
        reports.look(status, float(now))
    assert said == [
        "a rank was killed by SIGKILL: Ray starts all ranks again",
        "waiting for room on the cluster of Ray for at least 2 workers",
        "a rank was killed by SIGTERM: Ray starts all ranks again",
    ]


def test_an_end_without_a_word_of_a_rank_names_the_reason_of_ray():
    """The last line of the error of Ray is the reason."""
    with pytest.raises(TrainingError, match="Ray ended the run: no worker started; the same command continues it"):
        code_of_run(RunStatus(1, 0, None, None), None, RuntimeError("trace\nno worker started\n"), print)


def test_the_error_of_a_call_in_a_thread_is_kept():
    """The main thread learns how the call ended."""

    def fail():
        raise ZeroDivisionError

    fit = Fit(fail)
    assert fit.wait(60)
    assert isinstance(fit.error, ZeroDivisionError)
