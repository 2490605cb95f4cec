"""Trains on a Ray cluster: Ray starts one process for each worker, and each worker one rank of the same run."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import psutil

from holdfast.bootstrap.operations.rank_coordinator import RankCoordinator, RemoteCoordinator, RunStatus
from holdfast.bootstrap.process.exit_codes import ExitCode, cause_of, code_of_child
from holdfast.bootstrap.process.launch import RUN_ID
from holdfast.bootstrap.process.signals import (
    MILD,
    StoppedAtOnce,
    keeping_handlers,
    stopping_on_signals,
    stopping_signals,
)
from holdfast.bootstrap.run_folder.run_lock import is_locked
from holdfast.configs.secret_masking import mask_text
from holdfast.configs.sections.distributed import RayDistributedSettings
from holdfast.configs.settings_layers import DELIMITER, PREFIX
from holdfast.domain.errors import ConfigurationError, TrainingError
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from holdfast.bootstrap.operations.rank_coordinator import Coordinator
    from holdfast.configs.settings import TrainSettings

MISSING = 'distributed.kind=ray needs another package: pip install "holdfast-lm[ray]"'

_POLL_SECONDS = 0.2
_PARTING_SECONDS = 10.0  # in which Ray notices that all ranks have ended
_PASSING_SECONDS = 2.0  # in which a second signal reaches the ranks
_IDLE_SECONDS = 30.0  # longer than Ray takes to start workers that it has room for
_QUIET = {"RAY_TRAIN_V2_ENABLED": "1", "RAY_DEDUP_LOGS": "0", "RAY_SCHEDULER_EVENTS": "0"}


def is_to_start_on_ray(settings: TrainSettings, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this command has to start the ranks of a run on Ray, and is not one of them."""
    return settings.distributed.kind == "ray" and "RANK" not in environment


def train_on_ray(
    settings: TrainSettings, arguments: Sequence[str], run_folder: Path, report: Callable[[str], object], *, module: str
) -> int:
    """Run ``module`` with ``arguments`` as one rank on each worker of Ray; return the exit code of the run.

    Ray starts between the least and the most number of workers that ``distributed.workers`` names, as many as the
    cluster has room for, and starts them again with another number when the room changes or a worker is lost. A rank
    whose worker ends saves with the others. The run folder must be the same for all workers, and the settings must
    come from files and arguments that all machines have. A signal stops all ranks, as it stops a single process.

    Raises ``ConfigurationError`` without the extra ``ray``, if the batch cannot be shared by each number of workers or
    if a secret is among the arguments, ``TrainingError`` if Ray ends the run, and ``StoppedAtOnce``.
    """
    distributed = settings.distributed
    assert isinstance(distributed, RayDistributedSettings)
    check_shares(settings.optimizer.batch_size, distributed)
    check_secrets(arguments)
    if (note := note_on_variables(os.environ)) is not None:
        report(note)
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        ray: Any = import_module("ray")
        import_module("ray.train.v2.api.data_parallel_trainer")
    except ImportError as error:
        raise ConfigurationError(MISSING) from error
    grace = settings.recovery.grace_seconds
    folder = run_folder.absolute()
    # text, as the paths are for other machines
    rank = RankCommand([sys.executable, "-m", module, *arguments], str(Path.cwd()), str(folder), grace)
    signals = ReceivedSignals()
    try:
        with stopping_on_signals(signals.add), cluster_of(ray):
            code = _train(ray, distributed, rank, signals, report)
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[-1]
        msg = f"Ray ended the run: {reason}; the same command continues it"
        raise TrainingError(msg) from error
    wait_until_free(folder, grace)
    return code


def note_on_variables(environment: Mapping[str, str]) -> str | None:
    """Return a note on variables with settings if the workers run on another cluster, which may not have them."""
    names = sorted(name for name in environment if name.startswith(PREFIX) and DELIMITER in name)
    if not names or not environment.get("RAY_ADDRESS"):
        return None
    return f"the machines of Ray need {', '.join(names)} too: set them there, or give what is no secret as an argument"


@contextmanager
def cluster_of(ray: Any) -> Iterator[None]:
    """Connect to the cluster of ``RAY_ADDRESS``, or start one here; the end of the block ends all that runs there.

    Raises ``TrainingError`` if there is no cluster at that address, and ``StoppedAtOnce`` on SIGTERM before the block.
    """
    try:
        with keeping_handlers(stopping_signals()):  # Ray sets one for SIGTERM, which ends the process with code 15
            ray.init(
                include_dashboard=False,
                logging_level="ERROR",
                logging_config=ray.LoggingConfig(log_level="ERROR"),
            )
        yield
    except SystemExit as end:
        raise StoppedAtOnce(signal.SIGTERM) from end
    except ConnectionError as error:
        reason = str(error).strip().splitlines()[0]
        msg = f"the cluster of Ray cannot be reached: {reason}; check RAY_ADDRESS"
        raise TrainingError(msg) from error
    finally:
        ray.shutdown()


def _train(
    ray: Any,
    distributed: RayDistributedSettings,
    rank: RankCommand,
    signals: ReceivedSignals,
    report: Callable[[str], object],
) -> int:
    """Train on the cluster; return the exit code of the run."""
    node = ray.get_runtime_context().get_node_id()
    here = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy(node, soft=False)
    actor = ray.remote(num_cpus=0, scheduling_strategy=here)(RankCoordinator).remote()
    coordinator = RemoteCoordinator(ray, actor)
    fit = Fit(_trainer(distributed, rank, actor).fit)
    try:
        status = follow_run(fit, coordinator, signals, StartReports(report, distributed.workers[0]), rank.grace_seconds)
    except StoppedAtOnce as stop:
        with suppress(ray.exceptions.RayError):
            coordinator.send(stop.number)
            fit.wait(_PASSING_SECONDS)
        raise
    return code_of_run(status, signals.first, fit.error, report)


@final
class ReceivedSignals:
    """The signals that this command has received, and not yet passed on."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.waiting: list[int] = []
        self.is_training = False

    def add(self, _reason: str, number: int) -> bool:
        """Queue the signal ``number``; return False if there is no run yet."""
        self.first = self.first or number
        self.waiting.append(number)
        return self.is_training


@final
class Fit:
    """A call that blocks, in a thread, as only the main thread can handle signals; ``error`` is the one it raised."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.error: Exception | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, name="fit", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds``; return whether the call has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._call()
        except Exception as error:  # noqa: BLE001  the caller looks at it
            self.error = error


@final
class StartReports:
    """Reports starts that failed, and that Ray has no room for the ranks, in place of Ray's own log."""

    def __init__(self, report: Callable[[str], object], least: int) -> None:
        self._report = report
        self._least = least
        self._num_failed = 0
        self._idle_since: float | None = None

    def look(self, status: RunStatus, now: float) -> None:
        """Report what is new in ``status`` at the time ``now``, in seconds; once for each start and each wait."""
        if status.failure is not None and status.num_failed > self._num_failed:
            self._num_failed = status.num_failed
            self._report(f"a rank {cause_of(status.failure)}: Ray starts all ranks again")
        if status.num_running or status.decided is not None:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > _IDLE_SECONDS:
            self._idle_since = math.inf
            self._report(f"waiting for room on the cluster of Ray for at least {counted(self._least, 'worker')}")


def follow_run(
    fit: Fit,
    coordinator: Coordinator,
    signals: ReceivedSignals,
    reports: StartReports,
    grace_seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> RunStatus:
    """Pass signals to the ranks until the run has ended; return its last status.

    The ranks have ``grace_seconds`` to end after a signal, or after one of them has decided the end of the run.
    """
    signals.is_training = True
    until = math.inf
    while True:
        has_ended = fit.wait(_POLL_SECONDS)
        passed = [signals.waiting.pop(0) for _ in signals.waiting[:]]
        for number in passed:
            coordinator.send(number)
        status: RunStatus = coordinator.status()
        is_asked = signals.first is not None
        if not is_asked:
            reports.look(status, clock())
        if has_ended or clock() > until or (is_asked and not status.num_running and status.decided is None):
            return status
        if until == math.inf and (status.decided is not None or set(passed) - MILD):
            until = clock() + grace_seconds + _PARTING_SECONDS


def code_of_run(status: RunStatus, number: int | None, error: Exception | None, report: Callable[[str], object]) -> int:
    """Return the exit code of a run with the last ``status``, the signal ``number`` and the ``error`` that Ray raised.

    Raises ``StoppedAtOnce`` if a signal came and no rank told its end, and ``TrainingError`` if Ray ended the run.
    """
    if status.decided is not None:
        return status.decided
    if number is not None and status.failure is None:
        raise StoppedAtOnce(number)
    if status.failure is not None:
        report(
            f"Ray starts no more ranks after one that {cause_of(status.failure)}: the same command continues the run"
        )
        return status.failure
    reason = str(error).strip().splitlines()[-1] if error is not None else "its ranks did not start"
    msg = f"Ray ended the run: {reason}; the same command continues it"
    raise TrainingError(msg) from error


def _trainer(distributed: RayDistributedSettings, rank: RankCommand, actor: object) -> Any:
    train: Any = import_module("ray.train")
    return import_module("ray.train.v2.api.data_parallel_trainer").DataParallelTrainer(
        run_rank,
        train_loop_config={**asdict(rank), "coordinator": actor},
        backend_config=_backend_config(),
        scaling_config=scaling(train, distributed),
        run_config=train.RunConfig(
            name=f"start-{os.getpid()}",
            storage_path=str(Path(rank.run_folder) / "ray"),
            failure_config=train.FailureConfig(max_failures=distributed.max_failures),
            logging_config=train.LoggingConfig(log_level="CRITICAL"),  # it logs each restart with a traceback
        ),
    )


def _backend_config() -> Any:
    """Return a configuration by which each worker sees the GPUs of all workers of its machine, as LOCAL_RANK counts."""
    module: Any = import_module("ray.train.backend")
    backend = type("SharedGpusBackend", (module.Backend,), {"share_cuda_visible_devices": True})
    return type("SharedGpusConfig", (module.BackendConfig,), {"backend_cls": property(lambda _: backend)})()


def scaling(train: Any, distributed: RayDistributedSettings) -> Any:
    """Return Ray's ``ScalingConfig`` for ``distributed``; ``train`` is the module ``ray.train``."""
    least, most = distributed.workers
    resources = {"CPU": distributed.cpus_per_worker, "GPU": distributed.gpus_per_worker}
    return train.ScalingConfig(
        num_workers=most if least == most else (least, most),
        use_gpu=distributed.gpus_per_worker > 0,
        resources_per_worker={name: number for name, number in resources.items() if number},
        elastic_resize_monitor_interval_s=distributed.resize_seconds,
    )


def check_shares(batch_size: int | str | None, distributed: RayDistributedSettings) -> None:
    """Raise ``ConfigurationError`` unless each number of workers can share ``batch_size`` rows evenly."""
    if not isinstance(batch_size, int):
        return
    least, most = distributed.workers
    peers = distributed.mesh.context * distributed.mesh.tensor * distributed.mesh.pipeline
    uneven = [number for number in range(least, most + 1) if number % peers or batch_size % (number // peers)]
    if uneven:
        msg = (
            f"distributed.workers goes from {least} to {most}, but {uneven[0]} workers cannot share "
            f"optimizer.batch_size={batch_size} evenly: choose a batch size that all numbers of workers divide"
        )
        raise ConfigurationError(msg)


def check_secrets(arguments: Sequence[str]) -> None:
    """Raise ``ConfigurationError`` if a secret is among ``arguments``, which Ray records."""
    if any(mask_text(word) != word for word in arguments):
        msg = (
            "the command line has a password or a key, which Ray would record: give it in the environment of all "
            "machines, such as HOLDFAST_LEDGER__DSN for ledger.dsn"
        )
        raise ConfigurationError(msg)


_ASK_SECONDS = 0.5
_RANK_PARTING_SECONDS = (
    5.0  # in which the other ranks say how they ended, as the first one may have ended because of them
)
# Ray kills the session and the children of a worker that it ends. The shell is such a child, and a rank, which is none,
# notices that its launcher has gone, and saves.
_KEEPER = f'TORCHELASTIC_RUN_ID={RUN_ID}$$ "$@"; exit $?'
# Ray blocks SIGINT in its processes, and whoever started Ray may ignore signals; a child inherits both.
_FRESH_SIGNALS = """\
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
os.execv(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True, slots=True)
class RankCommand:
    """The command of each rank, in ``folder``, which lies at the same path on all machines.

    ``run_folder`` is that of the run, which the ranks of an earlier start may hold for ``grace_seconds``.
    """

    command: Sequence[str]
    folder: str
    run_folder: str
    grace_seconds: float


def run_rank(config: Mapping[str, Any]) -> None:
    """Run one rank to its end on a worker of Ray. ``config`` has a ``coordinator`` and the fields of ``RankCommand``.

    Raises ``RuntimeError`` if another start may continue the run, so that Ray starts all ranks again.
    """
    ray: Any = import_module("ray")
    broadcast = import_module("ray.train.collective").broadcast_from_rank_zero
    fields = {**config}
    actor, context = fields.pop("coordinator"), import_module("ray.train").get_context()
    command, rank = RankCommand(**fields), context.get_world_rank()
    if rank == 0:  # the ranks of an earlier start may still be saving
        wait_until_free(command.run_folder, command.grace_seconds)
    *address, start = broadcast([_own_address(), _free_port(), uuid.uuid4().hex] if rank == 0 else None)
    gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", ())
    coordinator = RemoteCoordinator(ray, actor)
    if coordinator.begin(start, rank, context.get_world_size()):
        environment = {**os.environ, **environment_of(context, address, gpus)}
        end_rank(coordinator, start, rank, follow_rank(start_rank(command, environment), coordinator))


def start_rank(command: RankCommand, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the process of a rank; return its keeper."""
    return subprocess.Popen(  # noqa: S603  the command of this run
        ["/bin/sh", "-c", _KEEPER, "sh", *with_fresh_signals(command.command)],
        cwd=command.folder,
        env=environment,
        start_new_session=True,
    )


def with_fresh_signals(command: Sequence[str]) -> Sequence[str]:
    """Return the words of ``command`` so that it neither blocks nor ignores the signals that stop a run."""
    return [sys.executable, "-I", "-S", "-c", _FRESH_SIGNALS, *command]


def follow_rank(process: subprocess.Popen[bytes], coordinator: Coordinator) -> int:
    """Pass the signals of the run to the rank whose keeper is ``process`` until it ends; return its exit code."""
    delivered = 0
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return code_of_child(process.wait(timeout=_ASK_SECONDS))
            for number in coordinator.signals()[delivered:]:
                delivered += _deliver(process, number)
    finally:
        if process.poll() is None:
            process.terminate()  # the rank saves and ends


def end_rank(
    coordinator: Coordinator,
    start: str,
    rank: int,
    code: int,
    *,
    seconds: float = _RANK_PARTING_SECONDS,
    poll: float = _POLL_SECONDS,
) -> None:
    """Tell the coordinator that ``rank`` has ended with ``code``.

    Raises ``RuntimeError`` if it did not finish, and no rank decides the end of the run within ``seconds``.
    """
    coordinator.end(start, rank, code)
    until = time.monotonic() + seconds
    while code != ExitCode.FINISHED and not coordinator.has_ended(start) and time.monotonic() < until:
        time.sleep(poll)
    if code != ExitCode.FINISHED and coordinator.status().decided is None:
        coordinator.fail(start)
        msg = f"rank {rank} {cause_of(code)}"
        raise RuntimeError(msg)


def environment_of(
    context: Any, address: Sequence[Any], gpus: Sequence[Any] = (), environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the variables by which a rank finds the others, as torchrun sets them; ``context`` is Ray's.

    ``LOCAL_RANK`` is the place of the worker's GPU, the first of ``gpus``, among those that ``environment`` shows to
    all workers of the machine.
    """
    host, port = address
    visible = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    own = str(gpus[0]) if gpus else None
    return {
        "RANK": str(context.get_world_rank()),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(visible.index(own) if own in visible else context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "MASTER_ADDR": str(host),
        "MASTER_PORT": str(port),
    }


def wait_until_free(run_folder: str | Path, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
    """Return once no process holds ``run_folder``, or after ``seconds``."""
    until = clock() + seconds
    while is_locked(Path(run_folder)) and clock() < until:
        time.sleep(_POLL_SECONDS)


def _deliver(keeper: subprocess.Popen[bytes], number: int) -> bool:
    """Send the signal ``number`` to the rank of ``keeper``; return False if it has none yet."""
    with suppress(psutil.Error):
        for child in psutil.Process(keeper.pid).children():
            child.send_signal(signal.Signals(number))
            return True
    return False


def _own_address() -> str:
    address: str = import_module("ray").util.get_node_ip_address()
    return address


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        port: int = server.getsockname()[1]
        return port
