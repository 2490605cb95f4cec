"""Attaches everything to the loop of a run: its feed, its checkpoints, its evaluations and its handlers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.tensor_state.file_parts import captured
from holdfast.adapters.state_store.shown_transfer import ShownStateStore
from holdfast.application.checkpointer import Checkpointer
from holdfast.application.data.feed import Feed
from holdfast.application.training.command_executor import LoopParts
from holdfast.application.training.generate import PromptSampler
from holdfast.application.training.loop import TrainRun
from holdfast.application.training.step_engine import StepEngine
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.stages.attach.ledger import ledger_subscriptions, rejected_files
from holdfast.bootstrap.stages.attach.resource_balance import build_memory_tier
from holdfast.bootstrap.stages.attach.run_parts import HostParts, RunParts
from holdfast.bootstrap.stages.build.evaluation_sets import prompts_of, sampling_of
from holdfast.bootstrap.stages.choose.hardware import gpu_of
from holdfast.bootstrap.stages.fit.micro_batch import MemoryPressure, conditions
from holdfast.bootstrap.stages.identify.document_encoder import template_in_use
from holdfast.bootstrap.stages.prepare.data_streams import prefetch_depth
from holdfast.bootstrap.stages.prepare.data_tracing import source_names
from holdfast.bootstrap.stages.prepare.drift import drift_subscriptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from holdfast.application.data.drift_monitor import DriftMonitor
    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.bootstrap.stages.build.built import Built, EvaluationParts
    from holdfast.bootstrap.stages.choose.stage import Chosen
    from holdfast.bootstrap.stages.fit.stage import Fitted
    from holdfast.bootstrap.stages.open_run.stage import Opened
    from holdfast.bootstrap.stages.prepare.stage import PreparedRows
    from holdfast.ports.event_bus import EventBus, Subscription
    from holdfast.ports.ledger import Ledger
    from holdfast.ports.resource_probe import ResourceProbe
    from holdfast.ports.tokenizer import Tokenizer


@final
@dataclass(frozen=True, slots=True)
class Ready:
    """The loop of a run with its parts, to which handlers can be subscribed."""

    train_run: TrainRun
    parts: RunParts


def attach(
    opened: Opened,
    chosen: Chosen,
    rows: PreparedRows,
    built: Built,
    evaluation: EvaluationParts,
    fitted: Fitted,
    bus: EventBus,
    folder: SharedRunFolder,
) -> Ready:
    """Return the loop of a run; its checkpoints hold the record of ``folder`` and the tokenizer too."""
    settings, data, request = chosen.settings, rows.data, chosen.request
    pressure, rejections = MemoryPressure(), data.found.records.rejections
    depth = prefetch_depth(settings.data, settings.optimizer.num_rows)
    feed = Feed(fitted.stream, prefetch=depth, source=data.run.source, rejections=rejections)
    checkpoints = Checkpointer(
        ShownStateStore(opened.state_store, request.show),
        built.trainable,
        bus,
        chosen.process_group,
        opened.inbox,
        parts=[folder.part, *captured(data.tokenizer.write)],
        memory=build_memory_tier(settings.state_store, chosen.process_group.size, pressure),
        conditions=conditions(settings, chosen.hardware, chosen.mesh, fitted.micro_batch, folder.num_data_changes),
    )
    loop_parts = LoopParts(
        feed=feed,
        engine=StepEngine(built.trainable, micro_batch=fitted.micro_batch),
        evaluator=evaluation.evaluator,
        sampler=_sampler(chosen, data.tokenizer, built),
        checkpoints=checkpoints,
        bus=bus,
        inbox=opened.inbox,
        ranks=chosen.data_ranks,
    )
    shown = opened.archive_progress.show
    host = HostParts(request.directory, shown, pressure, rows.readers.lineage, _probe(chosen))
    parts = RunParts(opened, rows, built, fitted, feed, bus, checkpoints, host)
    return Ready(TrainRun(fitted.plan, loop_parts), parts)


def _sampler(chosen: Chosen, tokenizer: Tokenizer, built: Built) -> PromptSampler:
    """Return the sampler of the prompts in the settings."""
    evaluation, request = chosen.settings.evaluation, chosen.request
    return PromptSampler(
        built.trainable,
        tokenizer,
        prompts_of(evaluation),
        sampling_of(evaluation),
        chosen.process_group,
        template=template_in_use(chosen.settings.data, tokenizer),
        report=request.report,
        show=request.show,
    )


def _probe(chosen: Chosen) -> ResourceProbe | None:
    if chosen.process_group.rank or not chosen.settings.resources.auto_tune:
        return None
    make: Callable[..., ResourceProbe] = lazy("holdfast.adapters.resource_probe.host:HostResourceProbe")
    request = chosen.request
    return request.ports.part("resource_probe", lambda: make(request.directory, gpu=gpu_of(chosen.hardware)))


def data_subscriptions(
    parts: RunParts, drift: DriftMonitor | None, ledger: Ledger | None, run_id: str, stack: ExitStack
) -> list[Subscription]:
    """Return the subscriptions of the first rank that follow the data: drift and the ledger."""
    if parts.opened.process_group.rank:
        return []
    subscriptions = drift_subscriptions(drift)
    if ledger is not None:
        data = parts.rows.data.found
        names = source_names(parts.settings.data, data.mixture)
        rejected = rejected_files(parts, names, data.data.source)
        subscriptions += ledger_subscriptions(parts, ledger, run_id, names, rejected, data.excluded, stack)
    return subscriptions
