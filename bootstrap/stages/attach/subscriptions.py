"""The subscriptions of all handlers to events, in one list."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.event_bus.blinker import BlinkerEventBus
from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.application.handlers.control_files import ControlFiles
from holdfast.application.handlers.evaluate_on_cadence import AwaitVerdicts, EvaluateOnCadence, StopWithoutImprovement
from holdfast.application.handlers.log_events import LogEvents
from holdfast.application.handlers.profile_steps import ProfileSteps, WatchCompilation
from holdfast.application.handlers.record_events import RecordAudit, RecordEvents
from holdfast.application.handlers.roll_back import (
    ProtectRollBackTarget,
    RollBackOnDrops,
    RollBackOnSpike,
    RollBackPlanner,
)
from holdfast.application.handlers.run_suites import wait_for_suites
from holdfast.application.handlers.save_checkpoints import (
    DropMemoryCopy,
    LeaveShareOnFailure,
    SaveOnCadence,
    SaveOnFailure,
    SaveOnStop,
    SaveTimer,
    ScrubCheckpoints,
    ShowSaves,
)
from holdfast.application.handlers.write_post_mortem import WritePostMortem
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.adapter_choice.plugins import build_plugin, check_options, load_plugin
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.post_mortem import STAMP, PostMortem, resources
from holdfast.bootstrap.run_folder.study_folder import VerdictFile
from holdfast.bootstrap.stages.attach.banner import limit_of_best
from holdfast.bootstrap.stages.attach.resource_balance import build_balance, free_unused_memory
from holdfast.bootstrap.stages.open_run.screen import WAITING
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.events import (
    BatchSplit,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointStarted,
    DataEnded,
    EvaluationCompleted,
    Event,
    MemoryExhausted,
    ResourcesAdjusted,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStarted,
    StepCompleted,
    StopRequested,
    SuiteEvaluated,
    TextGenerated,
)
from holdfast.domain.fault_tolerance.health import SpikePolicy
from holdfast.domain.training.cadence import Cadence, mean_seconds
from holdfast.domain.urls import expanded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from holdfast.application.handlers.adapt_micro_batch import AdaptMicroBatch
    from holdfast.application.handlers.profile_steps import Compilations
    from holdfast.application.handlers.record_events import RecordSamples
    from holdfast.application.handlers.record_metrics import RecordMetrics, TrackGoodput
    from holdfast.application.handlers.run_suites import RunSuites
    from holdfast.application.handlers.watchdog import Watchdog
    from holdfast.bootstrap.stages.attach.run_parts import RunParts
    from holdfast.bootstrap.stages.attach.run_records import RunRecords
    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.event_bus import EventBus, Subscription
    from holdfast.ports.process_group import ProcessGroup


@final
@dataclass(frozen=True, slots=True)
class OpenHandlers:
    """The handlers of a run that hold files or threads, which are closed with the run.

    ``records`` are None on all ranks but the first. ``report`` shows a line to a person.
    """

    post_mortem: WritePostMortem | None
    account: TrackGoodput
    watchdog: Watchdog | None
    metrics: RecordMetrics
    micro_batch: AdaptMicroBatch
    compilations: Compilations | None
    records: RunRecords | None
    report: Callable[[str], object]


def subscribe_all(parts: RunParts, opened: OpenHandlers, own: Sequence[Subscription], stack: ExitStack) -> None:
    """Subscribe all handlers of a run until ``stack`` ends; their order is the order in which an event reaches them.

    The handlers of Holdfast come first, then those from other packages, then ``own``, those of the host program, which
    find the post-mortem of a failure written.
    """
    stack.callback(parts.host.lineage.close)
    is_first = parts.opened.process_group.rank == 0  # commands come from there alone, and most events concern all ranks
    others = [*subscriptions_of_rank(opened), *_wait_for_suites(parts), *_leave_share(parts)]
    chosen = subscriptions(parts, opened) if is_first else others
    connect(parts.event_bus, chosen, stack)
    if is_first:
        subscribe_plugins(parts)
    last = [] if opened.post_mortem is None else [(RunFailed, opened.post_mortem.on_failure)]
    connect(parts.event_bus, [*last, *own], stack)


def connect(bus: EventBus, chosen: Sequence[Subscription], stack: ExitStack) -> None:
    """Subscribe the handlers of ``chosen`` in their order, until ``stack`` ends."""
    for _, handler in chosen:
        if iscoroutinefunction(handler) or iscoroutinefunction(type(handler).__call__):
            name = getattr(handler, "__name__", type(handler).__name__)
            msg = f"{name} is asynchronous, and handlers of a run are called in its thread: use build_async"
            raise ConfigurationError(msg)
    for kind, handler in chosen:  # ended with the run: a bus of the host program may serve another one
        stack.callback(bus.subscribe(kind, handler))


def subscriptions_of_rank(opened: OpenHandlers) -> list[Subscription]:
    """Return the subscriptions of every rank, for events of the rank itself, in their order."""
    return _post_mortem(opened) + _of_rank(opened)


def _post_mortem(opened: OpenHandlers) -> list[Subscription]:
    return [] if opened.post_mortem is None else [(Event, opened.post_mortem.on_event)]


def _of_rank(opened: OpenHandlers) -> list[Subscription]:
    watchdog: list[Subscription] = [] if opened.watchdog is None else [(Event, opened.watchdog)]
    return [(MemoryExhausted, opened.micro_batch.on_shortage), *watchdog]


def subscriptions(parts: RunParts, opened: OpenHandlers) -> list[Subscription]:
    """Return the subscriptions of the first rank in their order; an evaluation comes before a save."""
    metrics, adapt = opened.metrics, opened.micro_batch
    compilations = opened.compilations
    records = opened.records
    assert records is not None, "the first rank records"
    suites = records.suites
    watch = [] if compilations is None else [(StepCompleted, WatchCompilation(compilations, opened.report))]
    return [
        *_post_mortem(opened),
        (Event, RecordAudit(parts.opened.audit.record)),
        *_of_rank(opened),
        *([] if suites is None else [(RunFinished, suites.on_end)]),  # so that its own events come before the end
        (Event, opened.account),
        (Event, RecordEvents(records.write_event)),
        (Event, LogEvents(opened.report)),
        *((kind, metrics.on_start) for kind in (RunStarted, RolledBack)),
        (StepCompleted, metrics.on_step),
        (EvaluationCompleted, metrics.on_evaluation),
        (SuiteEvaluated, metrics.on_suite),
        (CheckpointStarted, metrics.on_checkpoint),
        *((kind, metrics.on_end) for kind in (RunFailed, RunFinished)),
        (Event, metrics.on_event),
        *_samples(records.samples),
        *_suites(suites),
        *_evaluate(parts, opened.report),
        *_save(parts),
        (BatchSplit, adapt.on_split),
        (StepCompleted, adapt.on_step),
        *_stop(parts, metrics),
        *_drop_memory_copy(parts),
        *_scrub(parts),
        *_balance(parts),
        *watch,
        *_save_on_failure(parts),
        *_profile(parts, opened.report),
        *_lineage(parts),
    ]


def _evaluate(parts: RunParts, report: Callable[[str], object]) -> list[Subscription]:
    chosen, budget, inbox = parts.settings.evaluation, parts.plan.budget, parts.opened.inbox
    has_documents = bool(parts.rows.data.holdout.fraction or chosen.sets)
    if (limit := limit_of_best(parts.settings, has_documents=has_documents)) is not None:
        report(f"warning: {limit}")
    if not (has_documents or chosen.prompts or chosen.prompts_file):
        return []
    rule = parts.settings.recovery.early_stopping.rule
    measure = EvaluateOnCadence(Cadence(chosen.every), budget, inbox, at_start=chosen.at_start, early_stopping=rule)
    stop = StopWithoutImprovement(rule, budget, inbox, report)
    return [
        (RunStarted, measure.on_start),
        (RunStarted, stop.on_start),
        (EvaluationCompleted, stop.on_evaluation),
        (StepCompleted, measure.on_step),
        (DataEnded, measure.on_data_end),
    ]


def _samples(record: RecordSamples) -> list[Subscription]:
    return [*((kind, record.on_start) for kind in (RunStarted, RolledBack)), (TextGenerated, record.on_text)]


def _suites(suites: RunSuites | None) -> list[Subscription]:
    if suites is None:
        return []
    return [
        *((kind, suites.on_start) for kind in (RunStarted, RolledBack)),
        (CheckpointSaved, suites.on_saved),
        (StepCompleted, suites.on_step),
        (DataEnded, suites.on_data_end),
        (StopRequested, suites.on_stop),
        (RunFailed, suites.on_failure),
    ]


def _wait_for_suites(parts: RunParts) -> list[Subscription]:
    group = parts.opened.process_group
    return [(RunFinished, lambda _: wait_for_suites(group))] if parts.settings.evaluation.suites else []


def _save_on_failure(parts: RunParts) -> list[Subscription]:
    group = parts.opened.process_group
    if group.size == 1:
        return [(RunFailed, SaveOnFailure(parts.checkpoints))]
    if parts.model.trainable.is_sharded:
        return _leave_share(parts)
    alone = lazy("holdfast.adapters.process_group.single:SingleProcessGroup")()
    return [(RunFailed, SaveOnFailure(parts.checkpoints, alone=alone))]


def _leave_share(parts: RunParts) -> list[Subscription]:
    is_sharded = parts.model.trainable.is_sharded
    return [(RunFailed, LeaveShareOnFailure(parts.checkpoints))] if is_sharded else []


def _balance(parts: RunParts) -> list[Subscription]:
    if (built := build_balance(parts)) is None:
        return []
    sampler, balance = built
    return [
        (RunStarted, lambda _: sampler.start()),
        (StepCompleted, balance.on_step),
        (CheckpointSaved, balance.on_save),
        (BatchSplit, balance.on_split),
        (ResourcesAdjusted, free_unused_memory),
        *((kind, lambda _: sampler.close()) for kind in (RunFinished, RunFailed)),
    ]


def _roll_back(parts: RunParts) -> list[Subscription]:
    settings, inbox = parts.settings, parts.opened.inbox
    health = settings.recovery.health
    returns = RollBackPlanner(settings.state_store.every_steps, health.max_rollbacks)
    handlers: list[Callable[[Any], object]] = [RollBackOnDrops(health.nonfinite_limit, returns, inbox)]
    if health.spike:
        policy = SpikePolicy(health.window, health.spike_zscore, health.spike_min_rise, health.spike_steps)
        handlers.append(RollBackOnSpike(policy, returns, inbox))
    most_bad = max(health.nonfinite_limit, health.spike_steps)
    keep = ProtectRollBackTarget(most_bad, settings.state_store.every_steps, parts.opened.state_store)
    return [(CheckpointStarted, keep), *((kind, answer) for kind in (RunStarted, StepCompleted) for answer in handlers)]


def _save(parts: RunParts) -> list[Subscription]:
    inbox = parts.opened.inbox
    timer = _save_timer(parts)
    save = SaveOnCadence(Cadence(parts.settings.state_store.every_steps), parts.plan.budget, inbox, timer)
    show = _show_saves(parts)
    shown = [(kind, show) for kind in ShowSaves.EVENTS]
    timed = [] if timer is None else timer.subscriptions()
    return [*shown, *_roll_back(parts), *timed, (StepCompleted, save), (ResourcesAdjusted, save.on_adjusted)]


def _save_timer(parts: RunParts) -> SaveTimer | None:
    if parts.settings.state_store.every != "auto" or parts.opened.process_group.rank:
        return None
    deaths = JsonLines(RunLayout(parts.host.directory).restarts).read()
    return SaveTimer(between_failures=mean_seconds(death.get("seconds") for death in deaths))


def _show_saves(parts: RunParts) -> ShowSaves:
    has_archive = parts.settings.state_store.archive is not None
    return ShowSaves(parts.host.show, WAITING if has_archive else "")


def _drop_memory_copy(parts: RunParts) -> list[Subscription]:
    if parts.settings.state_store.memory_tier != "auto" or parts.opened.process_group.size > 1:
        return []
    return [(StepCompleted, DropMemoryCopy(parts.host.memory_pressure, parts.opened.inbox))]


def _stop(parts: RunParts, record: RecordMetrics) -> list[Subscription]:
    folder = parts.host.directory
    obey = ControlFiles(
        lambda name: (folder / name).exists(), lambda name: (folder / name).unlink(missing_ok=True), parts.opened.inbox
    )
    return [
        (StopRequested, SaveOnStop(parts.opened.inbox)),
        (StopRequested, record.on_stop),
        (DataEnded, record.on_data_end),
        (RunStarted, obey.on_start),
        (StepCompleted, obey.on_step),
        (CheckpointSaved, obey.on_saved),
        (CheckpointFailed, obey.on_failed_save),
        (RunFinished, obey.on_end),
    ]


def _scrub(parts: RunParts) -> list[Subscription]:
    every = parts.settings.state_store.scrub_every
    if not every:
        return []
    scrub = ScrubCheckpoints(parts.opened.state_store, parts.opened.inbox, every=every)
    return [(CheckpointSaved, scrub), *((kind, scrub.on_end) for kind in (RunFinished, RunFailed))]


def _profile(parts: RunParts, report: Callable[[str], object]) -> list[Subscription]:
    settings = parts.settings.profile
    if settings.bounds is None:
        return []
    folder = RunLayout(parts.host.directory).profile if settings.dir is None else expanded(settings.dir)
    profiler = lazy("holdfast.adapters.shared.device.torch_profiler:TorchProfiler")(folder)
    profile = ProfileSteps(profiler, *settings.bounds, report)
    ends = [(kind, profile.on_end) for kind in (RunFinished, RunFailed)]
    return [(RunStarted, profile.on_start), (StepCompleted, profile.on_step), *ends]


def _lineage(parts: RunParts) -> list[Subscription]:
    handler = parts.host.lineage.handler()
    return [] if handler is None else [(Event, handler)]


def trial_subscriptions(parts: RunParts) -> list[Subscription]:
    """Return the subscriptions of a run that is a trial: it waits for the verdicts of its study."""
    if parts.opened.process_group.rank:
        return []
    cadence = Cadence(parts.settings.evaluation.every)
    verdicts = VerdictFile(parts.host.directory)
    wait = AwaitVerdicts(verdicts.at, cadence, parts.plan.budget, parts.opened.inbox)
    return [(RunStarted, wait.on_start), (EvaluationCompleted, wait.on_evaluation)]


def subscribe_plugins(parts: RunParts) -> None:
    """Let each handler in the setting ``handlers``, an entry point of ``holdfast.handler``, subscribe itself.

    Each is called once with the bus and the inbox, and its options by name.
    """
    for section in parts.settings.handlers:
        plugin = load_plugin("handler", section.kind)
        check_options("handler", section.kind, plugin, parts.event_bus, parts.opened.inbox, **section.options)
        build_plugin("handler", section.kind, plugin, parts.event_bus, parts.opened.inbox, **section.options)


def build_post_mortem(settings: TrainSettings, run: Path, group: ProcessGroup) -> WritePostMortem | None:
    """Return the handler that writes a post-mortem of a failed run, None if the settings disable it; collective."""
    attempt, *_ = group.gather(datetime.now(UTC).strftime(STAMP))
    keep = settings.recovery.post_mortems
    if not keep:
        return None
    folder = PostMortem(run, attempt, group.rank, group.size, settings, keep)
    return WritePostMortem(lambda: resources(run), folder.write)


@final
class HostEvents:
    """Delivers events to ``subscriptions`` from ``begin`` to ``hand_over``, and once more by ``publish_alone``.

    In between ``subscribe_all`` subscribes them behind the handlers of the loop. ``has_failed`` tells whether a
    ``RunFailed`` has been published.
    """

    def __init__(self) -> None:
        self.subscriptions: list[Subscription] = []
        self.has_failed = False
        self.bus: EventBus = BlinkerEventBus()  # of a run that fails before there is another
        self._connected = ExitStack()

    def begin(self, bus: EventBus, stack: ExitStack) -> None:
        """Deliver the events of ``bus``, at most until ``stack`` ends."""
        self.bus = bus
        stack.callback(bus.subscribe(RunFailed, self._note))
        connect(bus, self.subscriptions, stack.enter_context(self._connected))

    def hand_over(self) -> None:
        """Deliver no more events, as the handlers are to be subscribed elsewhere."""
        self._connected.close()

    def publish(self, event: Event) -> None:
        """Publish ``event`` on the bus."""
        self.bus.publish(event)

    def publish_alone(self, event: Event) -> None:
        """Publish ``event`` after the run, to the host's handlers and to those that subscribed to the bus itself."""
        with ExitStack() as stack:
            connect(self.bus, self.subscriptions, stack)
            self.bus.publish(event)

    def _note(self, _: RunFailed) -> None:
        self.has_failed = True
