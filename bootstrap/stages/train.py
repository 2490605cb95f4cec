"""The seven stages of a run that trains: what they make is compared with what the run began with, and recorded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, final

from holdfast.application.data.cached_batches import CachedBatches
from holdfast.bootstrap.adapter_choice.part_overrides import brings_model
from holdfast.bootstrap.adapter_choice.state_stores import follow_schedule
from holdfast.bootstrap.run_folder.shared import in_turns
from holdfast.bootstrap.stages.attach.ledger import open_ledger
from holdfast.bootstrap.stages.attach.stage import attach
from holdfast.bootstrap.stages.build.evaluation_sets import check_files
from holdfast.bootstrap.stages.build.stage import build, fill_reference, open_evaluation
from holdfast.bootstrap.stages.choose.former_settings import check_description
from holdfast.bootstrap.stages.choose.memory_check import refuse_counted
from holdfast.bootstrap.stages.choose.stage import choose, choose_sizes
from holdfast.bootstrap.stages.fit.run_length import decide_epochs
from holdfast.bootstrap.stages.fit.stage import fit
from holdfast.bootstrap.stages.identify.data_identity import (
    check_data,
    former_tokenizer,
    hold_to_encoder,
    hold_to_tokenizer,
    hold_to_transforms,
    record_data,
)
from holdfast.bootstrap.stages.identify.document_encoder import is_masked, with_chat_template
from holdfast.bootstrap.stages.identify.hold_out import record_exclusion
from holdfast.bootstrap.stages.identify.stage import find_data, identify
from holdfast.bootstrap.stages.prepare.data_streams import check_dedup, pack_rows
from holdfast.bootstrap.stages.prepare.dataset_versions import note_versions
from holdfast.bootstrap.stages.prepare.drift import build_drift_monitor, check_cached_data
from holdfast.bootstrap.stages.prepare.stage import open_readers, prepare
from holdfast.bootstrap.stages.prepare.supervision_proof import prove_run
from holdfast.domain.phase import PreparationPhase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack

    from holdfast.application.data.drift_monitor import DriftMonitor
    from holdfast.application.data.rejected_records import RejectedRecords
    from holdfast.application.preparation import Preparation
    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.bootstrap.stages.attach.stage import Ready
    from holdfast.bootstrap.stages.build.built import Built, EvaluationParts
    from holdfast.bootstrap.stages.choose.stage import Chosen
    from holdfast.bootstrap.stages.fit.stage import Fitted
    from holdfast.bootstrap.stages.identify.data import Data, Found, RunData
    from holdfast.bootstrap.stages.open_run.screen import Screen
    from holdfast.bootstrap.stages.open_run.stage import Opened
    from holdfast.bootstrap.stages.prepare.stage import PreparedRows
    from holdfast.bootstrap.stages.request import Request
    from holdfast.domain.training.budget import Budget
    from holdfast.ports.event_bus import EventBus, Subscription
    from holdfast.ports.ledger import Ledger


@final
@dataclass(frozen=True, slots=True)
class PreparedRun:
    """The rows of a run, and its ``budget``, which ``budget_subscriptions`` decide anew if it counts epochs."""

    rows: PreparedRows
    drift: DriftMonitor | None
    budget: Budget
    budget_subscriptions: Sequence[Subscription]


@final
@dataclass(frozen=True, slots=True)
class TrainStages:
    """The stages of a run after it was ``opened``; all ranks go through them together.

    ``overrides`` are the parts of the host, and ``bus`` that of the run. Each phase is published by ``preparation``.
    """

    opened: Opened
    folder: SharedRunFolder
    overrides: Mapping[str, object]
    bus: EventBus
    preparation: Preparation
    screen: Screen
    accepts_changes: bool

    def identify(self, request: Request, rejections: RejectedRecords) -> tuple[Chosen, Data, Ledger | None]:
        """Choose what ``request`` leaves open, and return it with the data and the ledger of the first rank.

        Raises ``StateError`` if the run began with other data, another tokenizer or other transforms.
        """
        preparation, group = self.preparation, self.opened.process_group
        with preparation.phase(PreparationPhase.DATA):
            request.show("looking at the data")
            request = preparation.awaited(partial(choose_sizes, request, group.size))
            chosen = choose(request, group)  # decided together, so not within the turn of one rank
            found = preparation.awaited(partial(find_data, request, rejections))
            check_dedup(request.settings.data, found.mode)
            ledger = None if group.rank else self._ledger(request)  # one that refuses is told before any work is done
            data = preparation.awaited(partial(self._checked, chosen, found))
        with preparation.phase(PreparationPhase.TOKENIZER):
            request.show("preparing the tokenizer")
            return chosen, self._with_tokenizer(chosen, found, data), ledger

    def prepare(self, chosen: Chosen, data: Data, budget: Budget) -> PreparedRun:
        """Return the rows of ``data``, and ``budget`` with the steps of its epochs.

        Raises the errors of the data, and those of ``decide_epochs`` and ``prove_run``.
        """
        preparation, folder, group = self.preparation, self.folder, self.opened.process_group
        found, settings = data.found, chosen.settings
        drift = build_drift_monitor(settings.data, found.cache_folder, self.bus, lambda: data.encoder, found.report)
        with preparation.phase(PreparationPhase.TOKENS):
            readers = open_readers(data, drift=drift)
            turn = partial(in_turns, group)
            rows = preparation.in_turns(turn, partial(prepare, readers, chosen.share, group))
            preparation.awaited(partial(record_data, folder, data, rows.stream))
            note_versions(folder, readers.lineage.versions)
            check_cached_data(drift, found.mode, found.cache_folder, rows.tokens)
        if isinstance(rows.stream, CachedBatches):
            with preparation.phase(PreparationPhase.ROWS):
                preparation.in_turns(turn, partial(pack_rows, rows.stream, found.show))
        store = self.opened.state_store
        budget, subscriptions = decide_epochs(budget, rows.stream, settings, folder, store, found.report)
        if is_masked(data.encoder):
            proof = (folder, settings, rows.stream, data.tokenizer, found.mixture.names, self.screen)
            preparation.awaited(partial(prove_run, *proof))
        return PreparedRun(rows, drift, budget, subscriptions)

    def build(self, chosen: Chosen, prepared: PreparedRun, stack: ExitStack) -> tuple[Built, EvaluationParts]:
        """Return the model of the run, whose reference model has passed over the pairs, and what evaluates it."""
        rows = prepared.rows
        built = build(chosen, rows, prepared.budget, self.folder, self.bus, self.preparation, stack)
        evaluation = open_evaluation(chosen, built, rows.readers, lambda: rows.tokens)
        fill_reference(built, rows, evaluation, self.preparation)
        return built, evaluation

    def fit(self, prepared: PreparedRun, built: Built, started: float) -> Fitted:
        """Return what fits the run to its machine and its length; ``started`` is as in ``MinutesBudget``."""
        fitted = fit(self.opened, prepared.rows, built, prepared.budget, self.folder, self.preparation, started)
        follow_schedule(self.opened.inner_store, fitted.plan.schedule)
        return fitted

    def attach(
        self, chosen: Chosen, prepared: PreparedRun, built: Built, evaluation: EvaluationParts, fitted: Fitted
    ) -> Ready:
        """Return the loop of the run with its parts."""
        return attach(self.opened, chosen, prepared.rows, built, evaluation, fitted, self.bus, self.folder)

    def _ledger(self, request: Request) -> Ledger | None:
        section = request.settings.ledger
        return request.ports.part("ledger", partial(open_ledger, section, request.directory, request.report))

    def _checked(self, chosen: Chosen, found: Found) -> RunData:
        """Return the data of the run; raises ``StateError`` if the run began with others."""
        folder, settings = self.folder, chosen.settings
        is_new, replaces = not folder.knows("tokenizer"), "tokenizer" in self.overrides
        check_description(chosen.model_factory, settings, is_new=is_new, replaces_tokenizer=replaces)
        data = check_data(folder, found, self.opened.inner_store, accepts_changes=self.accepts_changes)
        check_files(settings, found.records.fields, found.request.begun.rules["files"], data, found.report)
        record_exclusion(folder, found.excluded, found.report)
        return data

    def _with_tokenizer(self, chosen: Chosen, found: Found, data: RunData) -> Data:
        folder, group = self.folder, self.opened.process_group
        former = former_tokenizer(folder, found, self.opened.state_store)
        if former is not None:
            former = with_chat_template(former, chosen.settings.data, found.request.begun.rules["files"])
        turn = partial(in_turns, group)
        identified = self.preparation.in_turns(turn, partial(identify, found, data, tokenizer=former))
        hold_to_transforms(folder, identified.pipeline)
        replaces = "tokenizer" in self.overrides
        tokenizer, factory = identified.tokenizer, chosen.model_factory
        hold_to_tokenizer(folder, tokenizer, factory, chosen.settings, replaces_tokenizer=replaces)
        hold_to_encoder(folder, identified.encoder)
        shortage = refuse_counted(
            chosen.settings,
            factory,
            tokenizer,
            num_ranks=group.size,
            device=chosen.hardware.get("optimizer.device"),
            is_from_outside=brings_model(self.overrides),
        )
        folder.note_shortage(shortage, found.report)
        return identified
