"""Runs the command ``evaluate --suite`` beside training, for one checkpoint at a time."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, final

import psutil

from holdfast.adapters.shared.files.file_operations import FileOperations, explain, replace_file
from holdfast.adapters.shared.files.json_lines import limit_log
from holdfast.adapters.state_store.store_folder import StoreFolder
from holdfast.application.handlers.run_suites import SuiteOutcome
from holdfast.bootstrap.adapter_choice.encryption_keys import KEY_KINDS
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.stages.identify.data_identity import scratch_of
from holdfast.bootstrap.stages.identify.record_pipeline import TRANSFORMS
from holdfast.bootstrap.stages.prepare.data_streams import EVICTIONS
from holdfast.configs.sections.schedule import SCHEDULES
from holdfast.domain.built_in import ATTENTION, LOSSES
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from holdfast.configs.sections.base import Section
    from holdfast.configs.settings import TrainSettings

_LAUNCHER = re.compile(r"(RANK|WORLD_SIZE|(LOCAL|GROUP|ROLE|MASTER)_\w+|TORCHELASTIC_\w+)")
_SHARE = re.compile(rb"(\d+)%\|")  # of tqdm's bars
_INSTALLED = ("site-packages", "dist-packages")  # which Python finds by itself
_TAIL = 8192
_SECONDS_BETWEEN_LOOKS = 1.0
_LOWEST_PRIORITY = 19
_LONGEST_PROBLEM = 500
SCRATCH = "holdfast-suite-"
PACKAGE = "lm_eval"
MISSING = 'evaluation.suites needs another package: pip install "holdfast-lm[eval]"'


@final
class EvaluateProcess:
    """Evaluates checkpoints of the run folder ``run`` by ``suites`` in processes of the lowest priority.

    The other settings of the evaluation are those in the run's record. A checkpoint is kept by a pin; ``suites`` in the
    run folder holds the list of the kept steps, and the number and the log of the last process. A process ends with
    this one, and after ``timeout_seconds``. ``scratch`` is the folder of the exported model, None for the usual one.
    ``trust`` are the settings that are trusted to run code from outside.
    """

    def __init__(
        self,
        run: Path,
        suites: Sequence[str],
        *,
        device: str,
        timeout_seconds: float,
        scratch: Path | None = None,
        trust: Mapping[str, str],
    ) -> None:
        self._layout = RunLayout(run)
        self._suites = suites
        self._device = device
        self._timeout = timeout_seconds
        self._scratch = scratch
        self._trust = trust
        self._folder = StoreFolder(run, FileOperations())
        self._list = self._layout.suites / "kept.json"
        self._log = self._layout.suites / "log.txt"
        self._answer = self._layout.suites / "answer.json"
        self._last = self._layout.suites / "process.json"
        self._process: subprocess.Popen[bytes] | None = None
        self._failure = ""
        self._began = self._next_look = 0.0

    @property
    def obstacle(self) -> str | None:
        """Return a sentence if the package of the suites is missing."""
        return None if find_spec(PACKAGE) else MISSING

    def kept(self) -> Sequence[int]:
        """Return the steps of the kept checkpoints that are still there, in ascending order."""
        there = set(self._layout.durable_steps())
        return sorted(step for step in self._read() if step in there)

    def keep(self, step: int) -> None:
        """Pin the checkpoint of ``step``, unless a person has; raises ``StateError`` if it cannot be kept."""
        try:
            is_ours = step not in self._folder.pinned()
            self._write({**self._read(), step: is_ours})
            if is_ours:
                self._folder.pin(step)
        except OSError as error:
            msg = f"checkpoint {step} cannot be kept for its evaluation by suites, {explain(error)}"
            raise StateError(msg) from error

    def release(self, step: int) -> None:
        """Remove the pin of ``step`` if it is ours; raises ``StateError`` if that fails."""
        kept = self._read()
        if step not in kept:
            return
        try:
            if kept.pop(step) and step in self._folder.pinned():
                self._folder.unpin(step)
            self._write(kept)
        except OSError as error:
            msg = f"checkpoint {step} cannot be released after its evaluation by suites, {explain(error)}"
            raise StateError(msg) from error

    def start(self, step: int) -> None:
        """Start a process for the checkpoint of ``step``."""
        self._failure = "its process was not started"
        self._began = time.monotonic()
        try:
            self._layout.suites.mkdir(parents=True, exist_ok=True)
            self._remove_model_of_last()
            with _new_file(self._log) as log, _new_file(self._answer) as answer:
                self._process = subprocess.Popen(  # noqa: S603  this program
                    self._command(step),
                    stdin=subprocess.DEVNULL,
                    stdout=answer,
                    stderr=log,
                    env=self._environment(),
                    process_group=0,  # Ctrl-C is for the run; in a new session Linux would ignore the priority
                )
        except OSError as error:
            self._failure = f"its process cannot be started, {explain(error)}"
            return
        _yield_to_others(self._process.pid)
        with suppress(OSError):  # it matters only if this process is killed
            replace_file(self._last, json.dumps({"host": socket.gethostname(), "pid": self._process.pid}).encode())

    @property
    def share(self) -> float | None:
        """Return the share in the last progress bar of the process, None before the first."""
        shares = _SHARE.findall(self._tail())
        return int(shares[-1]) / 100 if shares else None

    def outcome(self) -> SuiteOutcome | None:
        """Return the outcome once the process has ended; one that takes too long is ended."""
        if self._process is None:
            return SuiteOutcome({}, 0.0, self._failure)
        seconds, code = time.monotonic() - self._began, self._process.poll()
        self._limit_log(has_ended=code is not None)
        if code is None:
            if seconds < self._timeout:
                return None
            self.stop()
            problem = f"it did not end within evaluation.harness.timeout_seconds={self._timeout:g}"
            return SuiteOutcome({}, seconds, problem)
        self._clear()
        if code:
            return SuiteOutcome({}, seconds, self._problem(code))
        try:
            results = json.loads(self._answer.read_bytes())["results"]
        except (OSError, ValueError, KeyError, TypeError):
            return SuiteOutcome({}, seconds, f"its process wrote no results: see {self._log}")
        return SuiteOutcome(results, seconds)

    def stop(self) -> None:
        """End the process and those that it started."""
        if (process := self._process) is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._clear()

    def _command(self, step: int) -> Sequence[str]:
        suites = [word for name in self._suites for word in ("--suite", name)]
        trust = [word for key, value in self._trust.items() for word in ("--trust", f"{key}={value}")]
        run = str(self._layout.root)
        own = ["--step", str(step), "--json", "--parent", str(os.getpid())]
        return [sys.executable, "-m", "holdfast", "evaluate", run, *own, *suites, *trust]

    def _environment(self) -> Mapping[str, str]:
        """Return the variables of this process, without those of a launcher, and with the path of this package."""
        kept = {name: value for name, value in os.environ.items() if not _LAUNCHER.fullmatch(name)}
        spec = find_spec("holdfast")
        assert spec is not None, "this package"
        package = Path(str(spec.origin)).absolute().parents[1]
        if package.name not in _INSTALLED:
            kept["PYTHONPATH"] = os.pathsep.join(filter(None, (str(package), kept.get("PYTHONPATH"))))
        if self._device == "cpu":
            kept["CUDA_VISIBLE_DEVICES"] = ""
        return kept

    def _problem(self, code: int) -> str:
        lines = [line.strip() for line in self._tail().decode(errors="replace").splitlines() if line.strip()]
        told = lines[-1].removeprefix("error: ")[:_LONGEST_PROBLEM] if lines and code > 0 else ""
        name = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        return told or f"its process {name}: see {self._log}"

    def _tail(self) -> bytes:
        try:
            with self._log.open("rb") as file:
                file.seek(-min(_TAIL, file.seek(0, os.SEEK_END)), os.SEEK_END)
                return file.read()
        except OSError:
            return b""

    def _limit_log(self, *, has_ended: bool) -> None:
        """Limit the log once a second, as this is called in each step of the training, and at its end."""
        now = time.monotonic()
        if now < self._next_look and not has_ended:
            return
        self._next_look = now + _SECONDS_BETWEEN_LOOKS
        with suppress(OSError), os.fdopen(os.open(self._log, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW), "rb") as log:
            limit_log(log.fileno())

    def _clear(self) -> None:
        """Forget the process, and remove the model that it may have left."""
        assert self._process is not None
        self._remove_model(self._process.pid)
        self._process = None

    def _remove_model_of_last(self) -> None:
        """Remove the model that the last process has left if it was killed together with this run."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            last = json.loads(self._last.read_bytes())
            if last["host"] == socket.gethostname() and not psutil.pid_exists(int(last["pid"])):
                self._remove_model(int(last["pid"]))

    def _remove_model(self, process: int) -> None:
        for left in (self._scratch or Path(tempfile.gettempdir())).glob(f"{SCRATCH}{process}-*"):
            shutil.rmtree(left, ignore_errors=True)

    def _read(self) -> dict[int, bool]:
        """Return the kept steps, each with whether its pin is ours."""
        try:
            tasks: Any = json.loads(self._list.read_bytes())
            return {int(step): bool(is_ours) for step, is_ours in tasks.items()}
        except (OSError, ValueError, AttributeError):
            return {}

    def _write(self, kept: Mapping[int, bool]) -> None:
        self._layout.suites.mkdir(parents=True, exist_ok=True)
        replace_file(self._list, json.dumps(dict(sorted(kept.items()))).encode())


def _new_file(path: Path) -> BinaryIO:
    """Open an empty file at ``path`` for appending, in place of one that is there, which may be a link or a pipe."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666), "wb")


def _yield_to_others(process: int) -> None:
    """Give ``process`` the lowest priority for the processors, and let it be the first to be killed without memory."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process, _LOWEST_PRIORITY)
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        Path(f"/proc/{process}/oom_score_adj").write_text("1000", encoding="ascii")


def suite_process(settings: TrainSettings, run: Path) -> EvaluateProcess | None:
    """Return the process for the suites in the settings of the run folder ``run``, None without suites."""
    chosen = settings.evaluation
    if not chosen.suites:
        return None
    return EvaluateProcess(
        run,
        chosen.suites,
        device=chosen.harness.device,
        timeout_seconds=chosen.harness.timeout_seconds,
        scratch=scratch_of(settings),
        trust={**asked_trust(settings), **trust_of_suites(settings)},
    )


TASKS = "evaluation.harness.tasks"
"""The setting with a folder of tasks of suites, which may contain code."""

_SECTIONS = ("data", "tokenizer", "model", "optimizer", "state_store", "event_bus")


def asked_trust(settings: TrainSettings) -> Mapping[str, str]:
    """Return each setting that would run code from outside Holdfast when the model is only used.

    This code is code or pickles beside a base model, and the entry points of installed packages.
    """
    return dict(_asked(settings))


def trust_of_suites(settings: TrainSettings) -> Mapping[str, str]:
    """Return the setting that would run code from outside Holdfast only when the model is evaluated by suites."""
    tasks = settings.evaluation.harness.tasks
    return {} if tasks is None else {TASKS: str(tasks)}


def _asked(settings: TrainSettings) -> Iterator[tuple[str, str]]:
    model, data = settings.model, settings.data
    has_base = model.lora is not None  # else the base model is not opened
    names = {f"{name}.kind": section.kind for name, section in settings if name in _SECTIONS and _is_outside(section)}
    if has_base:
        names |= {"model.trust_remote_code": model.trust_remote_code, "model.trust_pickle": model.trust_pickle}
    names["model.attention"] = _outside(model.attention, ("auto", *ATTENTION))
    names["model.loss"] = _outside(model.loss, LOSSES) if has_base else None
    names["data.transforms"] = ",".join(each.kind for each in data.transforms if each.kind not in TRANSFORMS) or None
    names["wrappers"] = ",".join(each.kind for each in settings.wrappers) or None
    names["optimizer.schedule.kind"] = _outside(settings.optimizer.schedule.kind, SCHEDULES)
    names["data.cache.eviction"] = _outside(data.cache.eviction, EVICTIONS)
    sections = {"state_store": settings.state_store.encryption, "data.cache": data.cache.encryption}
    for place, encryption in sections.items():
        if encryption is not None and encryption.key_from.partition(":")[0] not in KEY_KINDS:
            names[f"{place}.encryption.key_from"] = encryption.key_from
    yield from ((key, value) for key, value in names.items() if value is not None)


def _is_outside(section: Section) -> bool:
    return "options" in type(section).model_fields  # what an outside adapter is given, and no other


def _outside(name: str, built_in: Collection[str]) -> str | None:
    return None if name in built_in else name
