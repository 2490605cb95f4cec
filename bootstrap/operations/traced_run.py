"""Opens the data of a run, as it has read them, to find the documents in its steps."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.application.inbox import Inbox
from holdfast.bootstrap.adapter_choice.encryption_keys import require_to_read
from holdfast.bootstrap.adapter_choice.ports import Ports
from holdfast.bootstrap.operations.other_data import OtherData
from holdfast.bootstrap.operations.trained_model import as_begun
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.metrics_record import read_metrics
from holdfast.bootstrap.run_folder.record_file import read_record, rules_of
from holdfast.bootstrap.run_folder.run_audit import audit_of
from holdfast.bootstrap.stages.identify.data_growth import as_recorded
from holdfast.bootstrap.stages.identify.data_identity import begun_with, changed_data, kept_tokenizer, known_data
from holdfast.bootstrap.stages.identify.document_encoder import with_chat_template
from holdfast.bootstrap.stages.identify.hold_out import exclusion_now, recorded_exclusions
from holdfast.bootstrap.stages.identify.stage import find_data, identify
from holdfast.bootstrap.stages.open_run.stage import open_run
from holdfast.bootstrap.stages.prepare.data_tracing import source_names, tracer_of
from holdfast.bootstrap.stages.prepare.stage import open_readers, prepare
from holdfast.bootstrap.stages.request import Request
from holdfast.configs.secret_masking import mask_text
from holdfast.configs.sections.tokenizer import TrainTokenizerSettings
from holdfast.domain.data.exclusion import NO_EXCLUSION, Exclusion
from holdfast.domain.data.sample_order import RankShard
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.phase import Amount
from holdfast.domain.training.step_outcome import StepSamples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from holdfast.application.data.record_pipeline import RecordPipeline
    from holdfast.application.data.trace_samples import Tracer
    from holdfast.bootstrap.stages.identify.data import Data
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.data.cursor import Cursor
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.tokenizer import Tokenizer


@final
@dataclass(frozen=True)
class TracedRun:
    """A run whose steps can be traced: ``losses`` by step, ``exclusions`` by digest, ``notes`` for a person.

    ``path`` is its folder, ``samples`` are those of its steps.
    """

    path: Path
    samples: StepSamples
    losses: Mapping[int, float]
    exclusions: Mapping[str, Exclusion]
    notes: Sequence[str]
    _data: Data = field(repr=False)
    _cursors: Sequence[Cursor] = field(repr=False)
    _show: ShowPhase = field(repr=False)

    @cached_property
    def tracer(self) -> Tracer:
        """Return the documents in the samples of the run; missing tokens are made again, as training would do."""
        found = self._data.found
        names = source_names(found.settings.data, found.mixture)
        rows = prepare(open_readers(self._data), RankShard(found.settings.optimizer.num_rows, 0, 1))
        return tracer_of(rows.stream, names, self._cursors, self._show_reading)

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the run."""
        return self._data.tokenizer

    def is_held_out(self, document: int) -> bool:
        """Return whether the document with this id is for evaluation only."""
        import numpy as np

        return bool(self._data.holdout.holds(np.array([document], np.uint64))[0])

    def excluded_in(self, step: int) -> Exclusion:
        """Return the documents that ``step`` was trained without; raises ``StateError`` if they are not recorded."""
        digest = self.samples.stretch_of(step).excluded
        if digest not in self.exclusions:
            msg = f"{self.path} does not record the documents that step {step} was trained without"
            raise StateError(msg)
        return self.exclusions[digest]

    def check_step(self, step: int) -> None:
        """Raise ``ConfigurationError`` if the run has not taken ``step``."""
        if step > self.samples.last:
            msg = f"{self.path} has no step {step}: its last one is {self.samples.last}"
            raise ConfigurationError(msg)

    def _show_reading(self, done: int, total: int) -> None:
        self._show("reading the data again", Amount(done, total, "samples"))


def open_traced(path: Path, *, trusted: Mapping[str, str], show: ShowPhase) -> TracedRun:
    """Return the run in the folder ``path`` with its data.

    Raises ``ConfigurationError`` without the role to read, or to use the key of encrypted tokens.

    Code that the folder names runs only if ``trusted`` repeats its setting and value, else ``ConfigurationError`` is
    raised. Raises ``StateError`` if the data, the transforms or the tokenizer have changed since the run read them, or
    if its record and its checkpoints disagree.
    """
    show("looking at the data")
    record = read_record(path)
    settings = as_begun(path, record, "cpu", trusted, OtherData())
    audit = audit_of(path, settings.state_store)
    require_to_read(path, is_encrypted=settings.data.is_encrypted, record=audit.record)
    known = known_data(record)
    ports, begun = Ports(settings, {}), begun_with(record, rules_of(record))
    request = Request(settings, path, ports, _report, show, begun)
    found = replace(find_data(request), excluded=NO_EXCLUSION)
    data = found.data if known is None else as_recorded(record, known, found.data)
    if (clause := changed_data(record, data)) is not None:
        msg = f"the data have changed since {path} read them: {clause}; put them back to trace its steps"
        raise StateError(msg)
    store = open_run(request, SingleProcessGroup(), Inbox()).state_store
    show("opening the tokenizer")
    is_trained = isinstance(settings.tokenizer, TrainTokenizerSettings)
    kept = kept_tokenizer(settings, store, _report) if is_trained else None
    if kept is not None:
        kept = with_chat_template(kept, settings.data, begun.rules["files"])
    identified = identify(found, data, tokenizer=kept)
    _refuse_other(path, record, identified.pipeline, identified.tokenizer)
    saved = [info.progress for info in store.list()]
    losses = _losses(path)
    samples = _samples_of(path, record, settings, losses, [progress.step for progress in saved])
    odd = samples.disagreeing([(progress.step, progress.cursor.samples) for progress in saved])
    if odd is not None:
        msg = f"events.jsonl of {path} does not say which samples step {odd} had, as its checkpoint has others"
        raise StateError(msg)
    cursors = [progress.cursor for progress in saved]
    exclusions = recorded_exclusions(record)
    return TracedRun(path, samples, losses, exclusions, _notes(record), identified, cursors, show)


def _refuse_other(path: Path, record: Mapping[str, Any], pipeline: RecordPipeline, tokenizer: Tokenizer) -> None:
    """Raise ``StateError`` if validation, transforms or tokenizer are not those that the run began with."""
    now = {"list of transforms": json.dumps(pipeline.fingerprints), "tokenizer": tokenizer.fingerprint()}
    for name, fingerprint in now.items():
        if record["facts"].get(name, fingerprint) != fingerprint:
            msg = f"the {name} is not the one that the run in {path} began with: put it back to trace its steps"
            raise StateError(msg)


def _losses(path: Path) -> Mapping[int, float]:
    """Return the loss of each step, which may be NaN or infinite, in the order of the steps."""
    losses = {step: metrics["loss"] for step, metrics in read_metrics(RunLayout(path).metrics) if "loss" in metrics}
    return dict(sorted(losses.items()))


def _samples_of(
    path: Path,
    record: Mapping[str, Any],
    settings: TrainSettings,
    losses: Mapping[int, float],
    saved: Sequence[int],
) -> StepSamples:
    try:
        events = [event for event in JsonLines(RunLayout(path).events).read() if type(event.get("step")) is int]
        since: list[int] = []
        for event in events:
            since = [*([] if event.get("event") in ("RunStarted", "RolledBack") else since), event["step"]]
        last = max([*losses, *since], default=0) or max(saved, default=0)
        return StepSamples.of(events, last, settings.optimizer.num_rows, exclusion_now(record))
    except (KeyError, TypeError, ValueError) as error:
        msg = f"events.jsonl of {path} is damaged ({type(error).__name__}: {error}): restore it from a copy"
        raise StateError(msg) from error


def _notes(record: Mapping[str, Any]) -> Sequence[str]:
    changes = [entry for entry in record["history"] if "data" in entry and "excluded" not in entry]
    return [
        f"on {entry['time']} the run continued with other data on purpose ({entry['data']}): the documents of earlier "
        "steps are those of the data as they are now"
        for entry in changes
    ]


def _report(line: str) -> None:
    sys.stderr.write(f"{mask_text(line)}\n")
