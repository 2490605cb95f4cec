"""The stages in which a run is assembled: its data, its model, and what is measured before its first step."""

from __future__ import annotations

from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from holdfast.application.data.cached_batches import CachedBatches
from holdfast.bootstrap.run_folder.shared import in_turns
from holdfast.bootstrap.wiring.balance_experts import balance_experts
from holdfast.bootstrap.wiring.compatibility import check_description
from holdfast.bootstrap.wiring.compile_model import compile_ahead, compile_model
from holdfast.bootstrap.wiring.data_identity import (
    check_data,
    former_tokenizer,
    hold_to_encoder,
    hold_to_tokenizer,
    hold_to_transforms,
    record_data,
    record_versions,
)
from holdfast.bootstrap.wiring.data_streams import pack_rows
from holdfast.bootstrap.wiring.data_tracing import source_names
from holdfast.bootstrap.wiring.document_encoder import is_masked
from holdfast.bootstrap.wiring.epochs_budget import decide_epochs
from holdfast.bootstrap.wiring.evaluation_sets import check_files
from holdfast.bootstrap.wiring.excluded_documents import record_exclusion
from holdfast.bootstrap.wiring.first_micro_batch import begin_micro_batch
from holdfast.bootstrap.wiring.ledger_rejects import rejected_files
from holdfast.bootstrap.wiring.memory_check import refuse_counted
from holdfast.bootstrap.wiring.minutes_budget import MinutesBudget
from holdfast.bootstrap.wiring.open_ledger import ledger_subscriptions
from holdfast.bootstrap.wiring.part_overrides import brings_model
from holdfast.bootstrap.wiring.probe_loss import probe_loss
from holdfast.bootstrap.wiring.prove_supervision import prove_run
from holdfast.bootstrap.wiring.reference_model import compute_reference, reference_of_run
from holdfast.bootstrap.wiring.watch_drift import check_cached_data, drift_subscriptions
from holdfast.configs.sections.optimizer import AccelerateOptimizerSettings
from holdfast.domain.events import CompilationStarted
from holdfast.domain.phase import PreparationPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import ExitStack

    from holdfast.adapters.shared.modeling.torch_compile import CompiledLayers
    from holdfast.application.data.feed import BatchStream
    from holdfast.application.data.reference_column import ReferenceColumn
    from holdfast.application.handlers.adapt_micro_batch import AdaptMicroBatch
    from holdfast.application.inbox import Inbox
    from holdfast.application.preparation import Preparation
    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.bootstrap.wiring.container import Container
    from holdfast.bootstrap.wiring.run_parts import DataParts, ModelParts, RunData, RunParts
    from holdfast.bootstrap.wiring.screen import Screen
    from holdfast.bootstrap.wiring.subscriptions import Subscription
    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.event_bus import EventBus
    from holdfast.ports.tokenizer import Tokenizer


def identify_data(
    container: Container,
    folder: SharedRunFolder,
    settings: TrainSettings,
    overrides: Mapping[str, Any],
    *,
    accepts_changes: bool,
    report: Callable[[str], object],
) -> RunData:
    """Return the data of a run, and let ``container`` have them; raises ``StateError`` if the run began with others."""
    is_new = not folder.knows("tokenizer")
    factory = container.model_factory()
    check_description(factory, settings, is_new=is_new, replaces_tokenizer="tokenizer" in overrides)
    data = check_data(folder, container.data_parts(), container.inner_store(), accepts_changes=accepts_changes)
    container.late_data().set(data)
    check_files(settings, container.fields(), container.rules()["files"], data, report)
    record_exclusion(folder, container.excluded(), report)
    container.late_data_changes().set(folder.num_data_changes)
    return data


def identify_tokenizer(
    container: Container,
    folder: SharedRunFolder,
    settings: TrainSettings,
    overrides: Mapping[str, Any],
    preparation: Preparation,
    report: Callable[[str], object],
) -> None:
    """Make the tokenizer of a run; raises ``StateError`` if the run began with another one, or other transforms."""
    parts: DataParts = container.data_parts()
    if (former := former_tokenizer(folder, parts, container.state_store())) is not None:
        container.late_tokenizer().set(former)
    group = container.process_group()
    tokenizer: Tokenizer = preparation.in_turns(partial(in_turns, group), container.run_tokenizer)
    hold_to_transforms(folder, container.pipeline())
    hold_to_tokenizer(folder, tokenizer, parts, replaces_tokenizer="tokenizer" in overrides)
    hold_to_encoder(folder, container.document_encoder())
    shortage = refuse_counted(
        settings,
        container.model_factory(),
        tokenizer,
        num_ranks=group.size,
        device=container.hardware().get("optimizer.device"),
        is_from_outside=brings_model(overrides),
    )
    folder.note_shortage(shortage, report)


def prepare_tokens(
    container: Container,
    folder: SharedRunFolder,
    settings: TrainSettings,
    data: RunData,
    preparation: Preparation,
    screen: Screen,
) -> Sequence[Subscription]:
    """Prepare the tokens of a run and their rows; return the subscriptions that decide the length of a run in epochs.

    Raises the errors of the data, and those of ``decide_epochs`` and ``prove_supervision``.
    """
    group, parts, store = container.process_group(), container.data_parts(), container.state_store()
    with preparation.phase(PreparationPhase.TOKENS):
        stream: BatchStream = preparation.in_turns(partial(in_turns, group), container.batch_stream)
        preparation.awaited(partial(record_data, folder, data, parts, stream, container.holdout()))
        record_versions(folder, container.lineage().versions)
        check_cached_data(container.drift(), parts.mode, container.cache_folder(), container.tokens)
    if isinstance(stream, CachedBatches):
        with preparation.phase(PreparationPhase.ROWS):
            preparation.in_turns(partial(in_turns, group), partial(pack_rows, stream, parts.show))
    found = decide_epochs(container.budget(), stream, settings, folder, store, parts.report)
    if is_masked(container.document_encoder()):
        names = container.mixture().names
        preparation.awaited(partial(prove_run, folder, settings, stream, container.run_tokenizer(), names, screen))
    return found


def data_subscriptions(
    container: Container, parts: RunParts, folder: SharedRunFolder, stack: ExitStack
) -> list[Subscription]:
    """Return the subscriptions of the first rank that follow the data: drift and the ledger."""
    if parts.opened.process_group.rank:
        return []
    found = drift_subscriptions(container.drift())
    if (ledger := container.ledger()) is not None:
        names = source_names(parts.settings.data, container.mixture())
        rejected = rejected_files(parts, names, container.data_source())
        found += ledger_subscriptions(parts, ledger, folder.run_id, names, rejected, container.excluded(), stack)
    return found


def build_model_parts(
    container: Container,
    folder: SharedRunFolder,
    settings: TrainSettings,
    preparation: Preparation,
    stack: ExitStack,
) -> tuple[ModelParts, ReferenceColumn | None, CompiledLayers | None]:
    """Return the model with its optimizer, the column of its reference model, and its compilations.

    These are counted until ``stack`` ends. Raises the errors of ``build_model``, ``reference_of_run`` and
    ``compile_model``.
    """
    hardware, budget, data = container.hardware(), container.budget(), container.data_parts()
    with preparation.phase(PreparationPhase.MODEL):
        data.show("building the model")
        container.optimizer()  # in this thread, as it may choose the device of the thread
        is_plain = isinstance(settings.optimizer, AccelerateOptimizerSettings)
        build = container.model
        built: Any = preparation.awaited(build, is_exclusive=True) if is_plain else build()
        column = preparation.awaited(partial(reference_of_run, built, settings, hardware, folder))
        balance_experts(built, settings, report=data.report)
        compilations = compile_model(
            built, settings, budget, hardware, stack, keep_choice=folder.decide, report=data.report
        )
        if compilations is not None:
            compilations.on_start = partial(_publish_compilation, container.event_bus(), get_ident())
        preparation.agree()
        return container.model_parts(), column, compilations


def _publish_compilation(bus: EventBus, thread: int, graph: int, seconds: float) -> None:
    if get_ident() == thread:  # where handlers are called
        bus.publish(CompilationStarted(graph, seconds))


def fill_reference(
    container: Container, parts: ModelParts, column: ReferenceColumn | None, preparation: Preparation
) -> None:
    """Let ``container`` have the column of the reference model without gaps, if there is one."""
    container.late_reference().set(column)
    if column is None:
        return
    data = container.data_parts()
    with preparation.phase(PreparationPhase.REFERENCE):
        compute_reference(
            parts, column, container.tokens, container.held_out, data.report, data.show, preparation.agree
        )


def fit_model(
    container: Container,
    parts: ModelParts,
    folder: SharedRunFolder,
    inbox: Inbox,
    started: float,
    preparation: Preparation,
    *,
    is_compiled: bool,
) -> AdaptMicroBatch:
    """Choose the micro-batch and, from minutes, the length of the run; return the handler that changes the first.

    A compiled model is compiled for that micro-batch.

    ``started`` is as in ``MinutesBudget``. Raises the errors of its ``decide``, and of ``probe_loss``.
    """
    data = container.data_parts()
    report, show = data.report, data.show
    rows, adapt = begin_micro_batch(parts, folder, inbox, is_compiled=is_compiled, report=report, show=show)
    if is_compiled:
        compile_ahead(parts, container.trained_stream(), rows, preparation, show)
    minutes = MinutesBudget(parts, folder, adapt, started, report, show)
    container.late_micro_batch().set(minutes.decide(container.budget(), rows, container.state_store()))
    probe_loss(parts, report=report)
    return adapt
