"""The reference model of preferences: the model before its first step, whose log-probabilities are kept."""

from __future__ import annotations

import json
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from holdfast.application.data.reference_column import ReferenceColumn
from holdfast.application.training.reference_pass import ReferencePass
from holdfast.application.training.step_engine import DataRanks
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.adapter_choice.process_group import mesh_of
from holdfast.bootstrap.run_folder.shared import in_turns
from holdfast.domain.errors import StateError
from holdfast.domain.phase import show_nothing
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.application.data.holdout_batches import HoldoutBatches
    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.bootstrap.stages.build.built import Built
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.token_source import TokenSource

_FACT = "reference model"  # the name of what identifies the reference model of a run in its record
_REMEDY = "keep the weights and config.json of model.path, and optimizer.precision, as they were, or begin a new run"

_FORMAT = 2
_WITHOUT_EFFECT = frozenset(
    ("_name_or_path", "architectures", "auto_map", "dtype", "quantization_config", "transformers_version", "use_cache")
)  # fields of config.json that change no log-probability, and differ with the place of a model or a library's version


def reference_column(model: Any, settings: TrainSettings, hardware: Mapping[str, str]) -> ReferenceColumn:
    """Return the column of the reference model of a run on preferences.

    Call this before the optimizer wraps ``model``, which may leave each rank a shard of it, and before it is restored.
    """
    adapters = model.adapters  # they change nothing before the first step
    config: Mapping[str, Any] = json.loads(model.network.config.to_json_string())
    weights = lazy("holdfast.adapters.shared.modeling.lora:fingerprint")(model.network) if adapters is None else None
    facts: Mapping[str, Any] = {
        "format": _FORMAT,
        "weights": weights if adapters is None else adapters.base,
        "config": {name: value for name, value in config.items() if name not in _WITHOUT_EFFECT},
        "quantize": None if settings.model.lora is None else settings.model.lora.quantize,
        "precision": hardware["optimizer.precision"],
        "length": settings.data.row_length,
    }
    content = json.dumps(facts, sort_keys=True).encode()
    return ReferenceColumn(blake2b(content, digest_size=16).hexdigest())


def reference_of_run(
    model: Any, settings: TrainSettings, hardware: Mapping[str, str], folder: SharedRunFolder
) -> ReferenceColumn | None:
    """Return the column of ``reference_column``, None if the data are no preferences.

    Raises ``StateError`` if the run in ``folder`` began with another reference model.
    """
    if not settings.data.holds_pairs:
        return None
    column = reference_column(model, settings, hardware)
    folder.hold_to(_FACT, column.key, _REMEDY)
    return column


def hold_to_reference(column: ReferenceColumn, record: Mapping[str, Any], folder: Path) -> None:
    """Raise ``StateError`` if the run of ``record`` in ``folder`` began with another reference model."""
    if record and record["facts"].get(_FACT, column.key) != column.key:
        msg = f"the {_FACT} is not the one that the run in {folder} began with: {_REMEDY}"
        raise StateError(msg)


def add_reference(
    settings: TrainSettings,
    record: Mapping[str, Any],
    build: Callable[[], tuple[object, Mapping[str, str], Callable[[], Built]]],
    report: Callable[[str], object],
    sources: Sequence[TokenSource],
    show: ShowPhase,
) -> None:
    """Compute the reference model's log-probabilities that ``sources`` lack, if the data are preferences.

    ``build`` returns the bare model, its hardware and the function that wraps it. Raises ``StateError`` if the run of
    ``record`` began with another reference model.
    """
    if not settings.data.holds_pairs:
        return
    model, hardware, wrap = build()
    column = reference_column(model, settings, hardware)
    hold_to_reference(column, record, settings.run.directory)
    compute_reference(wrap(), column, sources, None, report, show)


def known_reference(record: Mapping[str, Any]) -> ReferenceColumn | None:
    """Return the column of the run of ``record``, None if it has none."""
    key = record["facts"].get(_FACT)
    return None if key is None else ReferenceColumn(key)


def compute_reference(
    parts: Built,
    column: ReferenceColumn | None,
    sources: Sequence[TokenSource],
    held_out: HoldoutBatches | None,
    report: Callable[[str], object],
    show: ShowPhase = show_nothing,
    look: Callable[[], object] = lambda: None,
) -> None:
    """Compute what is missing in ``column``, if there is one, for the preferences of ``sources``.

    ``held_out`` are the pairs that a run evaluates. All ranks call this, and ``look`` before each batch. Raises the
    errors of ``ReferencePass.run``, and ``DataError`` if all pairs to evaluate are too long.
    """
    if column is None:
        return
    work = ReferencePass(
        parts.trainable,
        DataRanks(parts.process_group, mesh_of(parts.settings.distributed, parts.process_group.size)),
        column,
        length=parts.settings.data.row_length,
        rows=parts.settings.evaluation.batch_size,
        in_turns=partial(in_turns, parts.process_group),
        show=show,
        look=look,
    )
    done = work.run(sources)
    left_out = f"; {counted(done.num_too_long, 'longer pair')} left out" if done.num_too_long else ""
    if done.num_pairs or left_out:
        rate = done.num_pairs / max(done.seconds, 1e-3)
        report(
            f"computed the reference log-probabilities of {counted(done.num_pairs, 'pair')} in {done.seconds:.1f} s, "
            f"{rate:,.1f} pairs/s{left_out}"
        )
    evaluation = parts.settings.evaluation
    if held_out is not None and (evaluation.every or evaluation.at_start) and not held_out.is_empty:
        _ = held_out.batches  # what is wrong with them ends the run now, not at its first evaluation
