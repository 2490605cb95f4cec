"""The model of a run with its optimizer, and what measures it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.adapters.shared.modeling.torch_compile import CompiledLayers
    from holdfast.application.data.holdout_batches import HoldoutBatches
    from holdfast.application.data.reference_column import ReferenceColumn
    from holdfast.application.training.evaluator import Evaluator
    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.optimizer import Trainable
    from holdfast.ports.process_group import ProcessGroup


@final
@dataclass(frozen=True, slots=True)
class Built:
    """A ``model`` as its optimizer wraps it, ``trainable``; ``column`` is that of its reference model, if it has one.

    ``compilations`` are those of its layers, None if they are not compiled.
    """

    settings: TrainSettings
    hardware: Mapping[str, str]
    process_group: ProcessGroup
    model: object
    trainable: Trainable
    column: ReferenceColumn | None = None
    compilations: CompiledLayers | None = None


@final
@dataclass(frozen=True, slots=True)
class EvaluationParts:
    """What measures a model: ``evaluator`` on the documents ``held_out``, and on the sets of the settings."""

    held_out: HoldoutBatches
    evaluator: Evaluator
