"""Who answers which event: the whole table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from application.handlers.announce import Announce
from application.handlers.evaluate_on_cadence import EvaluateOnCadence
from application.handlers.halve_micro_batch import HalveMicroBatch
from application.handlers.profile_steps import ProfileSteps
from application.handlers.record_events import RecordEvents
from application.handlers.save_checkpoints import SaveOnCadence, SaveOnFailure, SaveOnStop
from application.handlers.watch_compilation import WatchCompilation
from bootstrap.lazy import lazy
from bootstrap.plugins import check_options, load_plugin
from domain.cadence import Every
from domain.events import (
    CheckpointStarted,
    DataEnded,
    EvaluationCompleted,
    Event,
    MemoryExhausted,
    RunFailed,
    RunFinished,
    RunStarted,
    StepCompleted,
    StopRequested,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from application.handlers.record_metrics import RecordMetrics
    from application.handlers.watch_compilation import Compilations
    from bootstrap.container import Container

Reaction = tuple[type[Event], "Callable[[Any], object]"]


def reactions(
    container: Container,
    record: RecordMetrics,
    *,
    write: Callable[[Mapping[str, Any]], object],
    say: Callable[[str], object],
    compilations: Compilations | None = None,
) -> list[Reaction]:
    """Return each event with its handler, in the order of their subscription: an evaluation comes before a save."""
    settings, inbox, budget = container.settings(), container.inbox(), container.budget()
    measure = EvaluateOnCadence(Every(settings.evaluation.every), budget, inbox, at_start=settings.evaluation.at_start)
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
        (Event, Announce(say)),
        (RunStarted, record.on_start),
        (StepCompleted, record.on_step),
        (EvaluationCompleted, record.on_evaluation),
        *((kind, record.settle) for kind in (CheckpointStarted, RunFailed, RunFinished)),
        *(measurements if container.holdout().fraction else ()),
        (StepCompleted, SaveOnCadence(Every(settings.state_store.every), budget, inbox)),
        (MemoryExhausted, HalveMicroBatch(inbox)),
        (StopRequested, SaveOnStop(inbox)),
        *watch,
        *failures,
        *_profile(container, say),
    ]


def _profile(container: Container, say: Callable[[str], object]) -> list[Reaction]:
    settings = container.settings().profile
    if settings.bounds is None:
        return []
    folder = container.directory() / "profile" if settings.dir is None else settings.dir.expanduser()
    profiler = lazy("adapters.shared.profiling:TorchProfiler")(folder)
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
        plugin(container.event_bus(), container.inbox(), **section.options)
