"""The quickstart: the defaults of a run on the Python standard library."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from holdfast.configs.sections.data import PythonLibraryDataSettings
from holdfast.configs.sections.distributed import MeshSettings, mesh_settings
from holdfast.configs.sections.optimizer import AccelerateOptimizerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.configs.sections.base import Section
    from holdfast.configs.sections.data import DataSettings
    from holdfast.configs.sections.distributed import DistributedSettings
    from holdfast.configs.sections.model import ModelSettings
    from holdfast.configs.sections.optimizer import OptimizerSettings
    from holdfast.configs.sections.run import RunSettings

STEPS = 150
SEQUENCE_LENGTH = 256
ALGORITHM, LEARNING_RATE = "muon", 1e-2
HOLDOUT: Mapping[str, object] = MappingProxyType({"holdout": 0.05, "holdout_by": "similar_documents"})
FORMER_HOLDOUT: Mapping[str, object] = MappingProxyType({"holdout": 0.02, "holdout_by": "document"})
"""The hold-out of runs that earlier versions began; their records do not have ``holdout_by``."""


def quickstart_defaults(
    run: RunSettings,
    data: DataSettings,
    model: ModelSettings,
    optimizer: OptimizerSettings,
    distributed: DistributedSettings,
) -> dict[str, Section]:
    """Return the sections that differ on the Python standard library from the defaults on other data.

    Short rows, few steps and Muon reach a lower loss than AdamW in half of the time (docs/benchmarks.md#quickstart). A
    setting that was given stays as it is, and Muon is chosen for a new model on the usual optimizer only. On other data
    nothing is returned.
    """
    if not isinstance(data, PythonLibraryDataSettings):
        return {}
    sections: dict[str, Section] = {}
    length = {} if "sequence_length" in data.model_fields_set else {"sequence_length": SEQUENCE_LENGTH}
    sections["data"] = with_holdout(data.model_copy(update=length), HOLDOUT)
    if "budget" not in run.model_fields_set:
        budget = run.budget.model_copy(update={"steps": STEPS})
        sections["run"] = run.model_copy(update={"budget": budget})
    if _is_usual(optimizer, distributed) and not any(getattr(model, name, None) for name in ("path", "size", "lora")):
        is_rate_given = "learning_rate" in optimizer.model_fields_set
        rate = optimizer.learning_rate if is_rate_given else LEARNING_RATE
        sections["optimizer"] = optimizer.model_copy(update={"algorithm": ALGORITHM, "learning_rate": rate})
    return sections


def with_holdout(data: DataSettings, values: Mapping[str, object]) -> DataSettings:
    """Return ``data`` with these ``values`` of the hold-out where no others were given; they still count as not given.

    Data of another kind than the Python standard library stay as they are.
    """
    if not isinstance(data, PythonLibraryDataSettings):
        return data
    chosen = data.model_copy(update={name: values[name] for name in HOLDOUT.keys() - data.model_fields_set})
    chosen.model_fields_set.difference_update(HOLDOUT.keys() - data.model_fields_set)
    return chosen


def _is_usual(optimizer: OptimizerSettings, distributed: DistributedSettings) -> bool:
    if not isinstance(optimizer, AccelerateOptimizerSettings) or "algorithm" in optimizer.model_fields_set:
        return False
    is_divided = optimizer.sharding == "fsdp2" or optimizer.offload or mesh_settings(distributed) != MeshSettings()
    return not is_divided
