"""One training run, for the command line and for hosts that embed it."""

from __future__ import annotations

import threading
import time
import warnings
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, TypeVar, final

from holdfast.application.inbox import Inbox
from holdfast.application.training.reply import sample_text
from holdfast.bootstrap.process.exit_codes import leave_for_restart
from holdfast.bootstrap.run_folder.shared import SharedRunFolder, in_turns
from holdfast.bootstrap.wiring.access_roles import refuse_to_train
from holdfast.bootstrap.wiring.assembly import PARTS, assemble, brings_model
from holdfast.bootstrap.wiring.balance_experts import balance_experts
from holdfast.bootstrap.wiring.banner import banner
from holdfast.bootstrap.wiring.best_checkpoint import best_of
from holdfast.bootstrap.wiring.compatibility import check_description, with_former_settings
from holdfast.bootstrap.wiring.compile_model import compile_model
from holdfast.bootstrap.wiring.compute_threads import threads_of_processor
from holdfast.bootstrap.wiring.data_identity import (
    begun_with_data,
    check_data,
    former_tokenizer,
    hold_to_encoder,
    hold_to_tokenizer,
    hold_to_transforms,
    record_data,
    record_versions,
)
from holdfast.bootstrap.wiring.data_tracing import source_names
from holdfast.bootstrap.wiring.deduplication import check_dedup
from holdfast.bootstrap.wiring.device_settings import torch_state
from holdfast.bootstrap.wiring.document_encoder import is_masked, template_in_use
from holdfast.bootstrap.wiring.epochs_budget import decide_epochs
from holdfast.bootstrap.wiring.evaluation_sets import check_files
from holdfast.bootstrap.wiring.excluded_documents import record_exclusion
from holdfast.bootstrap.wiring.first_micro_batch import begin_micro_batch
from holdfast.bootstrap.wiring.goodput_accounting import account_time
from holdfast.bootstrap.wiring.hub_choice import one_hub, refuse_offline
from holdfast.bootstrap.wiring.ledger_rejects import rejected_files
from holdfast.bootstrap.wiring.machine import describe_start
from holdfast.bootstrap.wiring.memory_check import refuse_counted, refuse_from_settings
from holdfast.bootstrap.wiring.memory_limit import memory_limit
from holdfast.bootstrap.wiring.minutes_budget import MinutesBudget
from holdfast.bootstrap.wiring.open_ledger import ledger_subscriptions
from holdfast.bootstrap.wiring.open_monitors import MONITORS, begin_monitors, open_monitors, record_metrics
from holdfast.bootstrap.wiring.probe_loss import probe_loss
from holdfast.bootstrap.wiring.prove_supervision import prove_run
from holdfast.bootstrap.wiring.record_files import open_rejections
from holdfast.bootstrap.wiring.reference_model import compute_reference, reference_of_run
from holdfast.bootstrap.wiring.run_records import open_run_records
from holdfast.bootstrap.wiring.screen import Screen, open_screen
from holdfast.bootstrap.wiring.state_stores import archive_in_use, claim_archive
from holdfast.bootstrap.wiring.step_sizes import with_sizes
from holdfast.bootstrap.wiring.subscriptions import OpenHandlers, build_post_mortem, subscribe_all, trial_subscriptions
from holdfast.bootstrap.wiring.watch_drift import check_cached_data, drift_subscriptions
from holdfast.bootstrap.wiring.watch_run import build_watchdog
from holdfast.configs.rendering import dump_settings
from holdfast.domain.commands import Command, StopRun
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.events import Event
from holdfast.domain.fault_tolerance.goodput import TimeAccount

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.application.data.reference_column import ReferenceColumn
    from holdfast.application.monitoring.monitor_thread import MonitorThread
    from holdfast.application.training.loop import TrainRun
    from holdfast.bootstrap.wiring.container import Container
    from holdfast.bootstrap.wiring.run_parts import DataParts, ModelParts, OpeningParts, RunData, RunParts
    from holdfast.bootstrap.wiring.subscriptions import Subscription
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.fault_tolerance.goodput import Goodput
    from holdfast.domain.training.progress import Progress
    from holdfast.domain.training.text_generation import Sampling
    from holdfast.ports.state_store import CheckpointInfo
    from holdfast.ports.tokenizer import Tokenizer

    ReportLine = Callable[[str], object] | None

E = TypeVar("E", bound=Event)

# torch's random state and Accelerate's device state belong to the process: one run at a time.
_TRAINING = threading.Lock()


def build(
    settings: TrainSettings,
    *,
    report: ReportLine = None,
    accept_changed_data: bool = False,
    is_quiet: bool = False,
    **overrides: Any,
) -> Run:
    """Return a run of ``settings`` that has not begun; no large library is imported yet.

    ``overrides`` replace parts by the container's names: ``data_source``, ``tokenizer``, ``model_factory``,
    ``optimizer``, ``state_store``, ``event_bus``, ``process_group``, ``document_encoder``, ``resource_probe``,
    ``ledger`` or ``monitors`` (a list); ``added_monitors`` (a list) come beside the monitors of the settings.
    ``report`` gets lines for a person; without it they go to the console monitor, if there is one.
    With ``accept_changed_data`` a run whose data have changed continues with them instead of refusing them. If
    ``is_quiet``, the console monitor shows problems only.
    Raises ``ConfigurationError`` for an unknown override, or if the roles in the settings do not permit training, or
    HF_HUB_OFFLINE not what they name on the hub.
    """
    if "say" in overrides:
        warnings.warn("the argument say of build is now called report", DeprecationWarning, stacklevel=2)
        report = overrides.pop("say")
    if strange := sorted(overrides.keys() - {*PARTS, *MONITORS}):
        msg = f"nothing in a run is called {strange[0]}: replace one of {', '.join(PARTS)} or monitors"
        raise ConfigurationError(msg)
    if "state_store" not in overrides:
        refuse_to_train(settings)
    refuse_offline(settings, overrides)
    return Run(settings, overrides, report=report, accepts_changed_data=accept_changed_data, is_quiet=is_quiet)


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
        self._subscriptions: list[Subscription] = []
        self._has_begun = False
        self._opened: OpeningParts | None = None
        self.parts: RunParts | None = None
        self._inbox = Inbox()
        self._time = TimeAccount()
        self.seconds_before, self._began, self._is_training = 0.0, 0.0, False
        self._screen = Screen(report=report or (lambda _: None))

    @property
    def directory(self) -> Path:
        """Return the run folder."""
        return self.settings.run.directory

    def subscribe(self, kind: type[E], handler: Callable[[E], object]) -> None:
        """Call ``handler`` with each event of ``kind``, in the training thread; call this before ``run``."""
        self._subscriptions.append((kind, handler))

    def will_save(self) -> bool:
        """Return whether the training loop exists, so that a stop requested now saves first."""
        return self._is_training

    def request_stop(self, reason: str, signal: int | None = None) -> bool:
        """Ask the run to save and stop at the next step boundary; from any thread or a signal handler.

        Returns whether the training loop exists; before that the request is kept for it.
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
        with ExitStack() as stack:
            stack.callback(_TRAINING.release)
            train_run = self._assemble(stack)
            self._is_training = True
            try:
                return train_run.run()
            finally:
                self._is_training = False
                self.stopped_by = train_run.stopped_by

    def sample(self, prompt: str, sampling: Sampling, *, note: Callable[[str], object] = lambda _: None) -> str:
        """Return ``prompt`` and the model's continuation or reply after ``run``; ``note`` gets a sentence if cut."""
        assert self.parts is not None, "sample needs a run that has ended"
        trainable, tokenizer = self.parts.model.trainable, self.parts.data.tokenizer
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

    def _stored(self) -> Sequence[CheckpointInfo]:
        assert self._opened is not None, "there is no checkpoint to name before a run has ended"
        return self._opened.state_store.list()

    def _assemble(self, stack: ExitStack) -> TrainRun:
        replaced = {name: part for name, part in self._overrides.items() if name not in MONITORS}
        opened, folder = self._open_folder(replaced, stack)
        self._opened, group = opened, opened.process_group
        begun = begun_with_data(folder)
        stack.enter_context(one_hub(self.settings, group, replaced))
        monitors = open_monitors(self._overrides, self.settings, self._screen, stack) if group.rank == 0 else []
        self._screen.say(*folder.told_changes(dump_settings(self.settings)))
        rejections = open_rejections(self.settings, group.rank, stack, report=self._report)
        self.settings = with_sizes(self.settings, replaced, folder.decide, folder.decided, group.size)
        own = {**begun, "record": [folder.part], "rules": folder.rules(), "rejections": rejections}
        container = self._container_of({**replaced, **opened.by_name(), **own}, folder.decide)
        container.hardware()  # decided together, so not within the turn of one rank
        mode, drift = container.mode(), container.drift()
        check_dedup(self.settings.data, mode)
        if group.rank == 0:
            container.ledger()  # a database that refuses is reported before any work is done
        data = self._identify_data(container, folder, opened)
        stack.enter_context(torch_state(self.settings))
        stack.enter_context(threads_of_processor(container.hardware().get("optimizer.device"), opened.state_store))
        folder.enter("preparing the tokens")
        stream = in_turns(group, container.batch_stream)
        record_data(folder, data, container.data_parts(), stream, container.holdout())
        record_versions(folder, container.lineage().versions)
        check_cached_data(drift, mode, container.cache_folder(), container.tokens)
        budget, store = container.budget(), opened.state_store
        self._subscriptions[:0] = decide_epochs(budget, stream, self.settings, folder, store, self._report)
        if is_masked(container.document_encoder()):
            prove_run(folder, self.settings, stream, container.run_tokenizer(), container.mixture().names, self._screen)
        folder.enter("building the model")
        self._screen.show("building the model")
        self.parts = self._build_parts(container, folder, monitors, stack)
        train_run: TrainRun = container.train_run()
        folder.write()
        if group.rank == 0:
            self._screen.say(*banner(self.parts, folder.decisions, container.mixture()))
        self._screen.show("looking for a checkpoint")
        return train_run

    def _container_of(self, parts: Mapping[str, Any], keep_choice: Callable[[str, str, str], str]) -> Container:
        return assemble(
            self.settings,
            self.directory,
            parts,
            report=self._report,
            keep_choice=keep_choice,
            show=lambda phase, part=None: self._screen.show(phase, part),
        )

    def _open_folder(self, replaced: Mapping[str, Any], stack: ExitStack) -> tuple[OpeningParts, SharedRunFolder]:
        container = self._container_of({**replaced, "inbox": self._inbox}, lambda _name, value, _reason: value)
        group = container.process_group()
        stack.callback(group.close)
        if group.rank == 0:
            self.begin_with()
        folder = stack.enter_context(closing(SharedRunFolder(self.directory, group)))
        if group.rank == 0:
            budget, is_quiet = container.budget(), self._is_quiet
            self._screen = open_screen(self._overrides, self.settings, budget, self._own_report, is_quiet=is_quiet)
            stack.callback(self._screen.close)
            self._screen.say(*folder.opening_remarks)
            stack.enter_context(archive_in_use(container.state_store(), self.directory, self._inbox, self._report))
        self.settings = with_former_settings(self.settings, folder.began_with())
        folder.begin(dump_settings(self.settings), self.origins)
        self.has_folder = True
        folder.enter("looking at data, tokenizer and device")
        stack.push(folder.note_failure)
        shortage = refuse_from_settings(self.settings, group.size, is_from_outside=brings_model(self._overrides))
        folder.note_shortage(shortage, self._screen.say)
        opened: OpeningParts = container.opening_parts()
        if group.rank == 0:
            claim_archive(opened.state_store, folder.run_id)
        return opened, folder

    def _identify_data(self, container: Container, folder: SharedRunFolder, opened: OpeningParts) -> RunData:
        """Check data, transforms and tokenizer; raises ``StateError`` if the run began with others."""
        brings_tokenizer, factory = "tokenizer" in self._overrides, container.model_factory()
        is_new = not folder.knows("tokenizer")
        check_description(factory, self.settings, is_new=is_new, replaces_tokenizer=brings_tokenizer)
        self._screen.show("looking at the data")
        parts: DataParts = container.data_parts()
        data = check_data(folder, parts, opened.state_store, accepts_changes=self._accepts_changed_data)
        container.late_data().set(data)
        check_files(self.settings, container.fields(), container.rules()["files"], data, self._report)
        record_exclusion(folder, container.excluded(), self._report)
        container.late_data_changes().set(folder.num_data_changes)
        self._screen.show("preparing the tokenizer")
        if (former := former_tokenizer(folder, parts, opened.state_store)) is not None:
            container.late_tokenizer().set(former)
        tokenizer: Tokenizer = in_turns(container.process_group(), container.run_tokenizer)
        hold_to_transforms(folder, container.pipeline())
        hold_to_tokenizer(folder, tokenizer, parts, replaces_tokenizer=brings_tokenizer)
        hold_to_encoder(folder, container.document_encoder())
        shortage = refuse_counted(
            self.settings,
            factory,
            tokenizer,
            num_ranks=container.process_group().size,
            device=container.hardware().get("optimizer.device"),
            is_from_outside=brings_model(self._overrides),
        )
        folder.note_shortage(shortage, self._screen.say)
        return data

    def _build_parts(
        self, container: Container, folder: SharedRunFolder, monitors: Sequence[MonitorThread], stack: ExitStack
    ) -> RunParts:
        """Build the model, choose its micro-batch, and subscribe the handlers to the finished parts."""
        settings, group, report = self.settings, container.process_group(), self._report
        hardware, built, budget = container.hardware(), container.model(), container.budget()
        column = reference_of_run(built, settings, hardware, folder)
        balance_experts(built, settings, report=report)
        compilations = compile_model(built, settings, budget, hardware, stack, keep_choice=folder.decide, report=report)
        account = account_time(self.directory, self._time, stack, began=self._began, compilations=compilations)
        leave = leave_for_restart if self.may_exit else None
        watchdog = build_watchdog(settings, self.directory, group, self._inbox, report=report, leave=leave)
        stack.callback(watchdog.close)
        model: ModelParts = container.model_parts()
        also = [account.figures, watchdog.figures, memory_limit(hardware.get("optimizer.device"))]
        begin_monitors(monitors, settings, folder.run_id, folder.record or {}, group.size)
        metrics = record_metrics(monitors, settings, model.trainable, compilations, also, report)
        stack.enter_context(closing(metrics))
        rows, adapt = begin_micro_batch(
            model, folder, self._inbox, is_compiled=compilations is not None, report=report, show=self._screen.show
        )
        minutes = MinutesBudget(model, folder, adapt, self._began - self.seconds_before, report, self._screen.show)
        self._provide(container, column, minutes, rows)
        probe_loss(model, report=report)
        parts: RunParts = container.run_parts()
        start = describe_start(model, container.excluded().digest)
        handlers = OpenHandlers(
            post_mortem=build_post_mortem(settings, self.directory, group),
            account=account,
            watchdog=watchdog if settings.recovery.watchdog.enabled else None,
            metrics=metrics,
            micro_batch=adapt,
            compilations=compilations,
            records=open_run_records(parts, stack, start, report=report),
            report=report,
        )
        own = [*self._of_data(container, parts, folder, stack), *self._subscriptions]
        own += trial_subscriptions(parts) if self.awaits_verdicts else []
        subscribe_all(parts, handlers, own, stack)
        return parts

    def _provide(self, container: Container, column: ReferenceColumn | None, minutes: MinutesBudget, rows: int) -> None:
        """Let the container have the column of the reference model without gaps, and the micro-batch."""
        container.late_reference().set(column)
        compute_reference(minutes.parts, column, container.tokens, container.held_out, self._report, minutes.show)
        container.late_micro_batch().set(minutes.decide(container.budget(), rows, container.state_store()))

    def _of_data(
        self, container: Container, parts: RunParts, folder: SharedRunFolder, stack: ExitStack
    ) -> list[Subscription]:
        """Return the subscriptions of the first rank that follow the data: drift and the ledger."""
        if parts.opened.process_group.rank:
            return []
        found = drift_subscriptions(container.drift())
        if (ledger := container.ledger()) is not None:
            names = source_names(self.settings.data, container.mixture())
            rejected = rejected_files(parts, names, container.data_source())
            found += ledger_subscriptions(parts, ledger, folder.run_id, names, rejected, container.excluded(), stack)
        return found

    def _report(self, line: str) -> None:
        self._screen.say(line)
