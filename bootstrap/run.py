"""One training run, for the command line and for hosts that embed it."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar, Unpack, final

from holdfast.application.inbox import Inbox
from holdfast.application.preparation import Preparation, is_stop
from holdfast.application.training.generate import sample_text
from holdfast.bootstrap.adapter_choice.part_overrides import MONITORS, brings_model, checked_overrides, replaced_names
from holdfast.bootstrap.adapter_choice.ports import Ports
from holdfast.bootstrap.adapter_choice.state_stores import archive_in_use, begin_afresh, claim_archive
from holdfast.bootstrap.process.exit_codes import leave_for_restart
from holdfast.bootstrap.run_folder.best_checkpoint import best_of
from holdfast.bootstrap.run_folder.shared import SharedRunFolder
from holdfast.bootstrap.stages.attach.banner import banner
from holdfast.bootstrap.stages.attach.monitors import begin_monitors, open_monitors, record_metrics
from holdfast.bootstrap.stages.attach.run_records import account_time, describe_start, open_run_records
from holdfast.bootstrap.stages.attach.stage import data_subscriptions
from holdfast.bootstrap.stages.attach.subscriptions import (
    HostEvents,
    OpenHandlers,
    build_post_mortem,
    subscribe_all,
    trial_subscriptions,
)
from holdfast.bootstrap.stages.attach.watchdog import build_watchdog
from holdfast.bootstrap.stages.choose.former_settings import with_former_settings
from holdfast.bootstrap.stages.choose.hardware import memory_limit, threads_of_processor, torch_state
from holdfast.bootstrap.stages.choose.memory_check import refuse_from_settings
from holdfast.bootstrap.stages.choose.step_sizes import budget_of
from holdfast.bootstrap.stages.fit.stage import plan_of
from holdfast.bootstrap.stages.identify.data_identity import begun_with_data
from holdfast.bootstrap.stages.identify.document_encoder import template_in_use
from holdfast.bootstrap.stages.open_run.hub_choice import one_hub, refuse_offline
from holdfast.bootstrap.stages.open_run.record_files import open_rejections
from holdfast.bootstrap.stages.open_run.screen import Screen, log, open_screen
from holdfast.bootstrap.stages.open_run.stage import open_run
from holdfast.bootstrap.stages.request import Request
from holdfast.bootstrap.stages.train import TrainStages
from holdfast.configs.rendering import dump_settings
from holdfast.domain.commands import Command, StopRun
from holdfast.domain.errors import ConfigurationError, LeaveAtOnce
from holdfast.domain.events import Event, RunFailed, RunFinished, StopRequested
from holdfast.domain.fault_tolerance.goodput import TimeAccount
from holdfast.domain.training.step_outcome import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from holdfast.application.handlers.monitor_thread import MonitorThread
    from holdfast.application.handlers.record_metrics import RecordMetrics, TrackGoodput
    from holdfast.application.handlers.watchdog import Watchdog
    from holdfast.application.handlers.write_post_mortem import WritePostMortem
    from holdfast.application.training.loop import TrainRun
    from holdfast.bootstrap.adapter_choice.part_overrides import Overrides
    from holdfast.bootstrap.stages.attach.run_parts import RunParts
    from holdfast.bootstrap.stages.build.built import Built
    from holdfast.bootstrap.stages.open_run.stage import Opened
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.fault_tolerance.goodput import Goodput
    from holdfast.domain.phase import Amount
    from holdfast.domain.training.text_generation import Sampling
    from holdfast.ports.state_store import CheckpointInfo

    ReportLine = Callable[[str], object] | None

E = TypeVar("E", bound=Event)

# torch's random state and Accelerate's device state belong to the process: one run at a time.
_TRAINING = threading.Lock()


def build(
    settings: TrainSettings,
    *,
    report: ReportLine = None,
    accept_changed_data: bool = False,
    fresh: bool = False,
    is_quiet: bool = False,
    **overrides: Unpack[Overrides],
) -> Run:
    """Return a run of ``settings`` that has not begun; no large library is imported yet.

    ``overrides`` replace parts: ``data_source``, ``tokenizer``, ``model_factory``, ``optimizer``, ``state_store``,
    ``event_bus``, ``process_group``, ``document_encoder``, ``resource_probe``, ``ledger`` or ``monitors`` (a list);
    ``added_monitors`` (a list) come beside the monitors of the settings. A function in place of a part wraps the part
    of the settings: it gets that, and returns what the run uses (``state_store=lambda inner: Counting(inner)``).
    ``report`` gets lines for a person, from any thread; else the console monitor does, or the logger ``holdfast``.
    With ``accept_changed_data`` a run whose data have changed continues with them instead of refusing them. With
    ``fresh`` an existing run folder is moved aside, never deleted. If ``is_quiet``, the console shows problems only.
    Raises ``ConfigurationError`` for an unknown override or an object that is no such part, for settings that a
    replaced state store does not read, if the roles in the settings do not permit training, or if HF_HUB_OFFLINE does
    not permit what they name on the hub.
    """
    parts, report = checked_overrides(settings, {**overrides}, report)
    refuse_offline(settings, parts)
    run = Run(settings, parts, report=report, accepts_changed_data=accept_changed_data, is_quiet=is_quiet)
    if fresh:
        run.begin_with = partial(begin_afresh, settings, report or log)
    return run


@final
class Run:
    """A run that a host starts, watches and stops; usable from any thread, and installs no signal handler.

    ``stopped_by`` is the command that ended it before its budget was spent, None otherwise. With ``may_exit`` the
    watchdog ends the process, with exit code 75, if the run hangs. With ``awaits_verdicts`` the run is a trial, and
    waits after each evaluation for the verdict of its study. The first rank calls ``begin_with`` once all ranks
    have joined the process group. ``origins`` says where each setting comes from. ``parts`` are None until built.
    ``seconds_before`` run, such as those of imports, count towards ``run.budget.minutes``.
    """

    def __init__(
        self,
        settings: TrainSettings,
        overrides: dict[str, Any],
        *,
        report: ReportLine = None,
        accepts_changed_data: bool = False,
        is_quiet: bool = False,
    ) -> None:
        self.settings = settings
        self.stopped_by: StopRun | None = None
        self.has_folder = False  # whether this start was accepted as one of the run in its folder
        self.may_exit, self.awaits_verdicts, self._accepts_changed_data = False, False, accepts_changed_data
        self.begin_with: Callable[[], object] = lambda: None
        self.origins: Mapping[str, str] | None = None
        self._overrides = overrides
        self._own_report, self._is_quiet = report, is_quiet
        self._host = HostEvents()
        self._has_begun = False
        self._opened: Opened | None = None
        self.parts: RunParts | None = None
        self._inbox = Inbox()
        self._preparation = Preparation(self._inbox, self._host.publish)
        self._folder: SharedRunFolder | None = None
        self._failures: WritePostMortem | None = None
        self._time = TimeAccount()
        self.seconds_before, self._began, self._is_training = 0.0, 0.0, False
        self._screen = Screen(report=report or (lambda _: None))

    @property
    def directory(self) -> Path:
        """Return the run folder."""
        return self.settings.run.directory

    def subscribe(self, kind: type[E], handler: Callable[[E], object]) -> None:
        """Call ``handler`` with each event of ``kind``, in the thread that calls ``run``; call this before it."""
        self._host.subscriptions.append((kind, handler))

    def will_save(self) -> bool:
        """Return whether the training loop exists, so that a stop requested now saves first."""
        return self._is_training

    def request_stop(self, reason: str, signal: int | None = None) -> bool:
        """Ask the run to save and stop at the next step boundary; from any thread or a signal handler.

        Returns whether the training loop exists; before that the preparation of the run ends at once.
        """
        self._inbox.post(StopRun(reason, signal))
        return self._is_training

    def request(self, command: Command) -> None:
        """Ask the run for ``command`` at the next step boundary, such as ``Evaluate()``; all ranks ask at one step."""
        self._inbox.post(command)

    def run(self) -> Progress:
        """Train from the newest valid checkpoint to the end; return the progress.

        Raises ``ConfigurationError``, ``DataError``, ``StateError`` or another ``TrainingError``; complete steps are
        durable then. A second run in this process at the same time raises ``ConfigurationError``.
        """
        if self._has_begun:
            msg = "this run was started before: build another one, which continues from its newest checkpoint"
            raise ConfigurationError(msg)
        if not _TRAINING.acquire(blocking=False):
            msg = "another run is training in this process: wait for it, or start this one in a process of its own"
            raise ConfigurationError(msg)
        self._has_begun, self._began = True, time.monotonic()
        try:
            with ExitStack() as stack:
                stack.callback(self._preparation.when_free, _TRAINING.release)
                return self._trained(stack)
        except (LeaveAtOnce, KeyboardInterrupt):
            raise
        except BaseException as error:
            if not self._host.has_failed:
                self._host.publish_alone(RunFailed(self._newest_progress(), error))
            raise

    def _trained(self, stack: ExitStack) -> Progress:
        try:
            train_run = self._assemble(stack)
        except Exception as error:
            if (stop := self._inbox.first_stop) is None or not is_stop(error):
                raise
            return self._stopped(stop)
        self._is_training = True
        try:
            return train_run.run()
        finally:
            self._is_training = False
            self.stopped_by = train_run.stopped_by

    def _stopped(self, stop: StopRun) -> Progress:
        """Return the progress of a run that ``stop`` has ended before it trained."""
        self.stopped_by, progress = stop, self._newest_progress()
        if self._folder is not None:
            self._folder.note_stop(stop.reason)
        self._host.publish(StopRequested(progress, stop.reason, stop.signal, stop.is_early))
        self._host.publish(RunFinished(progress))
        return progress

    def sample(self, prompt: str, sampling: Sampling, *, note: Callable[[str], object] = lambda _: None) -> str:
        """Return ``prompt`` and the model's continuation or reply after ``run``; ``note`` gets a sentence if cut.

        Raises ``ConfigurationError`` if the run has not trained.
        """
        if self.parts is None:
            msg = "there is no model to sample from: the run has not begun to train"
            raise ConfigurationError(msg)
        trainable, tokenizer = self.parts.model.trainable, self.parts.rows.data.tokenizer
        template = template_in_use(self.settings.data, tokenizer)
        return sample_text(trainable, tokenizer, template, prompt, sampling, note=note)

    @property
    def goodput(self) -> Goodput:
        """Return the use of the run's time over all its starts, as known to the first rank."""
        return self._time.goodput

    def newest_checkpoint(self) -> str | None:
        """Return the location of the newest checkpoint after ``run``, None if there is none."""
        return stored[-1].location if (stored := self._stored()) else None

    def best_checkpoint(self, progress: Progress) -> Mapping[str, Any] | None:
        """Return the best checkpoint after ``run``, which ended at ``progress``, as ``best_of`` does."""
        return best_of(self._stored(), progress.patience, keeps_best=self.settings.state_store.keep_best > 0)

    @property
    def post_mortem(self) -> Path | None:
        """Return the folder with the facts about the failure of this run on this rank, None if none was written.

        It is there when the handlers of ``RunFailed`` run.
        """
        if self._failures is not None and self._failures.folder is not None:
            return self._failures.folder
        return None if self._folder is None else self._folder.post_mortem

    def _newest_progress(self) -> Progress:
        """Return the progress of the newest checkpoint, that of step 0 if there is none or none can be found."""
        with suppress(Exception):
            return max((each.progress for each in self._stored()), key=lambda progress: progress.step)
        return Progress()

    def _stored(self) -> Sequence[CheckpointInfo]:
        return () if self._opened is None else self._opened.state_store.list()

    def _assemble(self, stack: ExitStack) -> TrainRun:
        """Go through the stages of the run; return its loop."""
        stages, request = self._open(stack)
        folder, group = stages.folder, stages.opened.process_group
        begun = begun_with_data(folder)
        stack.enter_context(one_hub(self.settings, group, replaced_names(self._replaced)))
        monitors = open_monitors(self._overrides, self.settings, self._screen, stack) if group.rank == 0 else []
        self._screen.say(*folder.told_changes(dump_settings(self.settings)))
        rejections = open_rejections(self.settings, group.rank, stack, report=self._report)
        request = replace(request, settings=self.settings, decide=folder.decide, begun=begun)
        chosen, data, ledger = stages.identify(request, rejections)
        self.settings = chosen.settings
        device = chosen.hardware.get("optimizer.device")
        stack.enter_context(torch_state(self.settings))
        stack.enter_context(threads_of_processor(device, stages.opened.state_store))
        folder.enter("preparing the tokens")
        prepared = stages.prepare(chosen, data, budget_of(self.settings))
        folder.enter("building the model")
        built, evaluation = stages.build(chosen, prepared, stack)
        account, watchdog, metrics = self._open_watchers(stages, built, monitors, stack)
        fitted = stages.fit(prepared, built, self._began - self.seconds_before)
        ready = stages.attach(chosen, prepared, built, evaluation, fitted)
        self.parts = parts = ready.parts
        self._failures = build_post_mortem(self.settings, self.directory, group)
        start = describe_start(built, data.found.excluded.digest)
        records = open_run_records(parts, stack, start, report=self._report)
        watching = watchdog if self.settings.recovery.watchdog.enabled else None
        opened = (self._failures, account, watching, metrics, fitted.adapt, built.compilations, records)
        handlers = OpenHandlers(*opened, self._report)
        own = [*data_subscriptions(parts, prepared.drift, ledger, folder.run_id, stack), *prepared.budget_subscriptions]
        own += [*self._host.subscriptions, *(trial_subscriptions(parts) if self.awaits_verdicts else [])]
        self._preparation.end()
        self._host.hand_over()
        subscribe_all(parts, handlers, own, stack)
        folder.write()
        if group.rank == 0:
            self._screen.limit(fitted.plan.budget)
            self._screen.say(*banner(parts, folder.decisions, data.found.mixture))
        self._screen.show("looking for a checkpoint")
        return ready.train_run

    def _open_watchers(
        self, stages: TrainStages, built: Built, monitors: Sequence[MonitorThread], stack: ExitStack
    ) -> tuple[TrackGoodput, Watchdog, RecordMetrics]:
        """Begin the account of the run's time, its watchdog and its metrics, which end with ``stack``."""
        settings, folder, group = self.settings, stages.folder, stages.opened.process_group
        account = account_time(self.directory, self._time, stack, began=self._began, compilations=built.compilations)
        leave = leave_for_restart if self.may_exit else None
        watchdog = build_watchdog(settings, self.directory, group, self._inbox, report=self._report, leave=leave)
        stack.callback(watchdog.close)
        also = [account.figures, watchdog.figures, memory_limit(built.hardware.get("optimizer.device"))]
        begin_monitors(monitors, settings, folder.run_id, folder.record or {}, group.size)
        metrics = record_metrics(monitors, settings, built.trainable, built.compilations, also, self._report)
        stack.enter_context(closing(metrics))
        return account, watchdog, metrics

    @property
    def _replaced(self) -> Mapping[str, object]:
        """Return the parts of the host, replaced or wrapped, without its monitors."""
        return {name: part for name, part in self._overrides.items() if name not in MONITORS}

    def _open(self, stack: ExitStack) -> tuple[TrainStages, Request]:
        """Open processes, folder and checkpoints of the run; return the stages that follow, and what it asks for."""
        ports = Ports(self.settings, self._replaced)
        group = ports.process_group(self.settings.distributed)
        stack.callback(group.close)
        self._preparation.begin(group)
        bus = ports.event_bus(self.settings.event_bus.kind)
        self._host.begin(bus, stack)
        if group.rank == 0:
            self.begin_with()
        self._folder = folder = stack.enter_context(closing(SharedRunFolder(self.directory, group)))
        request = Request(self.settings, self.directory, ports, self._report, self._show)
        if group.rank == 0:
            self._screen = open_screen(self._overrides, self.settings, self._own_report, is_quiet=self._is_quiet)
            stack.callback(self._screen.close)
            self._screen.say(*folder.opening_remarks)
        opened = open_run(request, group, self._inbox)
        self._opened = opened
        if group.rank == 0:
            stack.enter_context(archive_in_use(opened.inner_store, self.directory, self._inbox, self._report))
        self.settings = with_former_settings(self.settings, folder.began_with())
        folder.begin(dump_settings(self.settings), self.origins)
        self.has_folder = True
        folder.enter("looking at data, tokenizer and device")
        stack.push(folder.note_failure)
        plan_of(self.settings, budget_of(self.settings))  # a schedule that fits no length is refused now
        shortage = refuse_from_settings(self.settings, group.size, is_from_outside=brings_model(self._overrides))
        folder.note_shortage(shortage, self._screen.say)
        if group.rank == 0:
            claim_archive(opened.inner_store, folder.run_id)
        accepts = self._accepts_changed_data
        found = (opened, folder, self._overrides, bus, self._preparation, self._screen, accepts)
        return TrainStages(*found), request

    def _show(self, activity: str, part: float | Amount | None = None, /) -> None:
        self._screen.show(activity, part)
        self._preparation.show(activity, part)

    def _report(self, line: str) -> None:
        self._screen.say(line)
