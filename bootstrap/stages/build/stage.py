"""Builds the model of a run with its optimizer, and what evaluates it."""

from __future__ import annotations

from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING

from holdfast.application.data.holdout_batches import HoldoutBatches, PairGroups, ShardGroups, TextGroups
from holdfast.application.training.evaluator import Evaluator
from holdfast.bootstrap.stages.build.built import Built, EvaluationParts
from holdfast.bootstrap.stages.build.compilation import compile_model
from holdfast.bootstrap.stages.build.evaluation_sets import counts_text, evaluation_sets, source_numbers
from holdfast.bootstrap.stages.build.model import balance_experts, build_model, held_out_packing, preference_rule
from holdfast.bootstrap.stages.build.reference_model import compute_reference, reference_of_run
from holdfast.bootstrap.stages.identify.score_ranges import distinct_readers
from holdfast.bootstrap.stages.prepare.data_streams import choose_packing
from holdfast.configs.sections.optimizer import AccelerateOptimizerSettings
from holdfast.domain.events import CompilationStarted
from holdfast.domain.phase import PreparationPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import ExitStack

    from holdfast.adapters.shared.modeling.torch_compile import CompiledLayers
    from holdfast.application.data.reference_column import ReferenceColumn
    from holdfast.application.preparation import Preparation
    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.bootstrap.stages.choose.stage import Chosen
    from holdfast.bootstrap.stages.prepare.stage import PreparedRows, Readers
    from holdfast.domain.training.budget import Budget
    from holdfast.ports.event_bus import EventBus
    from holdfast.ports.optimizer import Optimizer
    from holdfast.ports.token_source import TokenSource
    from holdfast.ports.tokenizer import Tokenizer


def bare_model(chosen: Chosen, tokenizer: Tokenizer, optimizer: Optimizer[object]) -> object:
    """Return the model of the settings, before ``optimizer`` wraps it."""
    request = chosen.request
    packing = choose_packing(chosen.settings.data)
    return build_model(
        chosen.model_factory,
        tokenizer,
        chosen.settings,
        packing,
        optimizer,
        report=request.report,
        show=request.show,
    )


def build(
    chosen: Chosen,
    rows: PreparedRows,
    budget: Budget,
    folder: SharedRunFolder,
    bus: EventBus,
    preparation: Preparation,
    stack: ExitStack,
) -> Built:
    """Return the model of a run with its optimizer; its compilations are counted until ``stack`` ends.

    ``budget`` has the steps of epochs. Raises the errors of ``build_model``, ``reference_of_run`` and
    ``compile_model``.
    """
    settings, request = chosen.settings, chosen.request
    with preparation.phase(PreparationPhase.MODEL):
        request.show("building the model")
        optimizer = request.ports.optimizer(chosen.torch)  # in this thread, as it may choose the device of the thread
        make = partial(bare_model, chosen, rows.data.tokenizer, optimizer)
        is_plain = isinstance(settings.optimizer, AccelerateOptimizerSettings)
        model = preparation.awaited(make, is_exclusive=True) if is_plain else make()
        column = preparation.awaited(partial(reference_of_run, model, settings, chosen.hardware, folder))
        balance_experts(model, settings, report=request.report)
        compilations = compile_model(
            model, settings, budget, chosen.hardware, stack, keep_choice=folder.decide, report=request.report
        )
        if compilations is not None:
            compilations.on_start = partial(_publish_compilation, bus, get_ident())
        preparation.agree()
        return wrap_model(chosen, optimizer, model, column, compilations)


def wrap_model(
    chosen: Chosen,
    optimizer: Optimizer[object],
    model: object,
    column: ReferenceColumn | None = None,
    compilations: CompiledLayers | None = None,
) -> Built:
    """Return ``model`` as ``optimizer`` wraps it."""
    trainable = chosen.request.ports.part("trainable", partial(optimizer.prepare, model))
    return Built(chosen.settings, chosen.hardware, chosen.process_group, model, trainable, column, compilations)


def _publish_compilation(bus: EventBus, thread: int, graph: int, seconds: float) -> None:
    if get_ident() == thread:  # where handlers are called
        bus.publish(CompilationStarted(graph, seconds))


def open_evaluation(
    chosen: Chosen, built: Built, readers: Readers, open_tokens: Callable[[], Sequence[TokenSource]]
) -> EvaluationParts:
    """Return what measures the model of ``built`` on the documents that the run of ``readers`` holds out.

    ``open_tokens`` returns the tokens of preferences.
    """
    data, found, settings = readers.data, readers.data.found, chosen.settings
    rules, evaluation = found.request.begun.rules, settings.evaluation
    packing = held_out_packing(built.model, settings.data)
    held_out = HoldoutBatches(
        _groups(readers, built, settings.run.seed, open_tokens),
        data.holdout,
        packing,
        holds_pairs=settings.data.holds_pairs,
        rows=evaluation.batch_size,
        max_tokens=evaluation.max_tokens,
        excluded=found.excluded,
        sources=found.mixture.names,
    )
    encoding = (data.encoder, found.records.rejections, data.pipeline, packing)
    evaluator = Evaluator(
        built.trainable,
        held_out,
        data.tokenizer,
        chosen.data_ranks,
        sets=evaluation_sets(settings, rules, found.records.fields, *encoding),
        rule=preference_rule(settings),
        report=found.report,
        show=found.show,
    )
    return EvaluationParts(held_out, evaluator)


def _groups(
    readers: Readers, built: Built, seed: int, open_tokens: Callable[[], Sequence[TokenSource]]
) -> ShardGroups | PairGroups | TextGroups:
    """Return the documents among which those that are held out are."""
    data, section = readers.data, built.settings.data
    if data.run.token_files is not None:
        return ShardGroups(data.run.token_files)
    if section.holds_pairs:
        return PairGroups(open_tokens, lambda: built.column, seed)
    numbers, distinct = source_numbers(readers.first, section), distinct_readers(readers.first)
    rules = data.found.request.begun.rules
    return TextGroups(distinct, data.holdout, seed, numbers, counts_text=counts_text(rules))


def fill_reference(built: Built, rows: PreparedRows, evaluation: EvaluationParts, preparation: Preparation) -> None:
    """Compute the log-probabilities of the reference model that are missing, if there is one, in a phase of its own."""
    found = rows.data.found
    if built.column is None:
        return
    with preparation.phase(PreparationPhase.REFERENCE):
        compute_reference(
            built, built.column, rows.tokens, evaluation.held_out, found.report, found.show, preparation.agree
        )
