"""The reference model of preferences: the model before its first step, whose log-probabilities are kept."""

from __future__ import annotations

import json
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from holdfast.application.data.reference_column import ReferenceColumn
from holdfast.application.training.reference_pass import ReferencePass
from holdfast.bootstrap.run_folder.shared import in_turns
from holdfast.bootstrap.wiring.data_streams import holds_pairs
from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.domain.counting import counted
from holdfast.domain.errors import StateError
from holdfast.domain.phase import show_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.bootstrap.wiring.run_parts import ModelParts
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.token_source import TokenSource

FACT = "reference model"
"""The name of the fact that identifies the reference model of a run."""
_REMEDY = "keep model.path, its weights and optimizer.precision as they were, or begin a new run"

_FORMAT = 1


def reference_column(model: Any, settings: TrainSettings, hardware: Mapping[str, str]) -> ReferenceColumn:
    """Return the column of the reference model of a run on preferences.

    Call this before the optimizer wraps ``model``, which may leave each rank a shard of it, and before it is restored.
    """
    adapters = model.adapters  # they change nothing before the first step
    weights = lazy("holdfast.adapters.shared.modeling.lora:fingerprint")(model.network) if adapters is None else None
    facts: Mapping[str, Any] = {
        "format": _FORMAT,
        "weights": weights if adapters is None else adapters.base,
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
    if not holds_pairs(settings.data):
        return None
    column = reference_column(model, settings, hardware)
    folder.hold_to(FACT, column.key, _REMEDY)
    return column


def hold_to_reference(column: ReferenceColumn, record: Mapping[str, Any], folder: Path) -> None:
    """Raise ``StateError`` if the run of ``record`` in ``folder`` began with another reference model."""
    if record and record["facts"].get(FACT, column.key) != column.key:
        msg = f"the {FACT} is not the one that the run in {folder} began with: {_REMEDY}"
        raise StateError(msg)


def known_reference(record: Mapping[str, Any]) -> ReferenceColumn | None:
    """Return the column of the run of ``record``, None if it has none."""
    key = record["facts"].get(FACT)
    return None if key is None else ReferenceColumn(key)


def compute_reference(
    parts: ModelParts,
    column: ReferenceColumn | None,
    open_sources: Callable[[], Sequence[TokenSource]],
    *,
    report: Callable[[str], object],
    show: ShowPhase = show_nothing,
) -> None:
    """Compute what is missing in ``column``, if there is one, for the preferences that ``open_sources`` returns.

    All ranks call this. Raises ``OutOfMemory`` if one row is too much, and ``StateError`` if the disk is full.
    """
    if column is None:
        return
    work = ReferencePass(
        parts.trainable,
        parts.process_group,
        column,
        length=parts.settings.data.row_length,
        rows=parts.settings.evaluation.batch_size,
        in_turns=partial(in_turns, parts.process_group),
        show=show,
    )
    num_pairs, seconds = work.run(open_sources())
    if num_pairs:
        rate = num_pairs / max(seconds, 1e-3)
        report(
            f"computed the reference log-probabilities of {counted(num_pairs, 'pair')} in {seconds:.1f} s, "
            f"{rate:,.1f} pairs/s"
        )
