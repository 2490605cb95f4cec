"""Who answers which event: the whole table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from holdfast.application.handlers.control_files import ControlFiles
from holdfast.application.handlers.drop_memory_copy import DropMemoryCopy
from holdfast.application.handlers.evaluate_on_cadence import EvaluateOnCadence
from holdfast.application.handlers.log_events import LogEvents
from holdfast.application.handlers.profile_steps import ProfileSteps
from holdfast.application.handlers.record_events import RecordEvents
from holdfast.application.handlers.roll_back import (
    ProtectRollBackTarget,
    RollBackOnDrops,
    RollBackOnSpike,
    RollBackPlanner,
)
from holdfast.application.handlers.save_checkpoints import SaveOnCadence, SaveOnFailure, SaveOnStop
from holdfast.application.handlers.scrub_checkpoints import ScrubCheckpoints
from holdfast.application.handlers.show_saves import ShowSaves
from holdfast.application.handlers.watch_compilation import WatchCompilation
from holdfast.application.handlers.write_post_mortem import WritePostMortem
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.post_mortem import STAMP, PostMortem, resources
from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.bootstrap.wiring.plugins import build_plugin, check_options, load_plugin
from holdfast.bootstrap.wiring.resource_balance import resource_reactions
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
)
from holdfast.domain.fault_tolerance.loss_spike import SpikePolicy
from holdfast.domain.training.cadence import Cadence

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.application.handlers.adapt_micro_batch import AdaptMicroBatch
    from holdfast.application.handlers.record_metrics import RecordMetrics
    from holdfast.application.handlers.watch_compilation import Compilations
    from holdfast.bootstrap.wiring.container import Container
    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.process_group import ProcessGroup

Reaction = tuple[type[Event], "Callable[[Any], object]"]


def reactions(
    container: Container,
    record: RecordMetrics,
    adapt: AdaptMicroBatch,
    *,
    write: Callable[[Mapping[str, Any]], object],
    say: Callable[[str], object],
    compilations: Compilations | None = None,
) -> list[Reaction]:
    """Return each event with its handler, in the order of their subscription: an evaluation comes before a save."""
    wanted, inbox, budget = container.settings().evaluation, container.inbox(), container.budget()
    measure = EvaluateOnCadence(Cadence(wanted.every), budget, inbox, at_start=wanted.at_start)
    measurements = [
        (RunStarted, measure.on_start),
        (StepCompleted, measure.on_step),
        (DataEnded, measure.on_data_end),
    ]
    # one of several ranks cannot save by itself: the others may stand anywhere
    is_alone = container.process_group().size == 1
    failures = [(RunFailed, SaveOnFailure(container.checkpoints()))] if is_alone else []
    watch = [] if compilations is None else [(StepCompleted, WatchCompilation(compilations, say))]
    return [
        (Event, RecordEvents(write)),
        (Event, LogEvents(say)),
        *((kind, record.on_start) for kind in (RunStarted, RolledBack)),
        (StepCompleted, record.on_step),
        (EvaluationCompleted, record.on_evaluation),
        *((kind, record.settle) for kind in (CheckpointStarted, RunFailed, RunFinished)),
        *(measurements if container.holdout().fraction else ()),
        *_save(container),
        (BatchSplit, adapt.on_split),
        (StepCompleted, adapt.on_step),
        *_stops(container, record),
        *_relieve(container),
        *_scrub(container),
        *resource_reactions(container),
        *watch,
        *failures,
        *_profile(container, say),
    ]


def _go_back(container: Container) -> list[Reaction]:
    settings, inbox = container.settings(), container.inbox()
    health = settings.recovery.health
    returns = RollBackPlanner(settings.state_store.every, health.max_rollbacks)
    handlers: list[Callable[[Any], object]] = [RollBackOnDrops(health.nonfinite_limit, returns, inbox)]
    if health.spike:
        policy = SpikePolicy(health.window, health.spike_zscore, health.spike_min_rise, health.spike_steps)
        handlers.append(RollBackOnSpike(policy, returns, inbox))
    most_bad = max(health.nonfinite_limit, health.spike_steps)
    keep = ProtectRollBackTarget(most_bad, settings.state_store.every, container.state_store())
    return [(CheckpointStarted, keep), *((kind, answer) for kind in (RunStarted, StepCompleted) for answer in handlers)]


def _save(container: Container) -> list[Reaction]:
    inbox = container.inbox()
    save = SaveOnCadence(Cadence(container.settings().state_store.every), container.budget(), inbox)
    show = _shown_saves(container)
    shown = [(kind, show) for kind in ShowSaves.EVENTS]
    return [*shown, *_go_back(container), (StepCompleted, save), (ResourcesAdjusted, save.on_adjusted)]


def _shown_saves(container: Container) -> ShowSaves:
    has_archive = getattr(container.settings().state_store, "archive", None) is not None
    return ShowSaves(container.show(), "waiting for the archive" if has_archive else "")


def _relieve(container: Container) -> list[Reaction]:
    if container.settings().state_store.memory_tier != "auto" or container.process_group().size > 1:
        return []
    return [(StepCompleted, DropMemoryCopy(container.memory_pressure(), container.inbox()))]


def reactions_of_each_rank(adapt: AdaptMicroBatch) -> list[Reaction]:
    """Return what other ranks than the first answer too: what one of them alone is met by."""
    return [(MemoryExhausted, adapt.on_shortage)]


def _stops(container: Container, record: RecordMetrics) -> list[Reaction]:
    folder = container.directory()
    obey = ControlFiles(
        lambda name: (folder / name).exists(), lambda name: (folder / name).unlink(missing_ok=True), container.inbox()
    )
    return [
        (StopRequested, SaveOnStop(container.inbox())),
        (StopRequested, record.on_stop),
        (RunStarted, obey.on_start),
        (StepCompleted, obey.on_step),
        (CheckpointSaved, obey.on_saved),
        (CheckpointFailed, obey.on_failed_save),
        (RunFinished, obey.on_end),
    ]


def _scrub(container: Container) -> list[Reaction]:
    every = container.settings().state_store.scrub_every
    if not every:
        return []
    scrub = ScrubCheckpoints(container.state_store(), container.inbox(), every=every)
    return [(CheckpointSaved, scrub), *((kind, scrub.on_end) for kind in (RunFinished, RunFailed))]


def _profile(container: Container, say: Callable[[str], object]) -> list[Reaction]:
    settings = container.settings().profile
    if settings.bounds is None:
        return []
    folder = RunLayout(container.directory()).profile if settings.dir is None else settings.dir.expanduser()
    profiler = lazy("holdfast.adapters.shared.device.torch_profiler:TorchProfiler")(folder)
    profile = ProfileSteps(profiler, *settings.bounds, say)
    ends = [(kind, profile.on_end) for kind in (RunFinished, RunFailed)]
    return [(RunStarted, profile.on_start), (StepCompleted, profile.on_step), *ends]


def subscribe_outside_handlers(container: Container) -> None:
    """Let each handler that ``handlers`` names, an entry point of ``holdfast.handler``, subscribe itself.

    It is called once with the bus and the inbox, and its options by name.
    """
    for section in container.settings().handlers:
        plugin = load_plugin("handler", section.kind)
        check_options("handler", section.kind, plugin, container.event_bus(), container.inbox(), **section.options)
        build_plugin("handler", section.kind, plugin, container.event_bus(), container.inbox(), **section.options)


def post_mortem_reactions(
    settings: TrainSettings, run: Path, group: ProcessGroup
) -> tuple[Sequence[Reaction], Sequence[Reaction]]:
    """Return who remembers events, to come before all others, and who writes, to come behind all; collective."""
    attempt, *_ = group.gather(datetime.now(UTC).strftime(STAMP))
    keep = settings.recovery.post_mortems
    if not keep:
        return [], []
    folder = PostMortem(run, attempt, group.rank, group.size, settings, keep)
    handler = WritePostMortem(lambda: resources(run), folder.write)
    return [(Event, handler.on_event)], [(RunFailed, handler.on_failure)]
