"""The recipe of the quickstart: the defaults of a run on the Python standard library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.configs.sections.data import PythonLibraryDataSettings
from holdfast.configs.sections.distributed import MeshSettings, mesh_settings
from holdfast.configs.sections.optimizer import AccelerateOptimizerSettings

if TYPE_CHECKING:
    from holdfast.configs.sections.base import Section
    from holdfast.configs.settings import TrainSettings

STEPS = 150
SEQUENCE_LENGTH = 256
ALGORITHM, LEARNING_RATE = "muon", 1e-2
_OTHER_OPTIMIZERS = frozenset({"algorithm", "sharding", "offload"})


def quickstart_recipe(settings: TrainSettings) -> dict[str, Section]:
    """Return the sections that differ on the Python standard library from the defaults on other data.

    Short rows, few steps and Muon reach a lower loss than AdamW in half of the time (docs/benchmarks.md#quickstart). A
    setting that was given stays as it is, and Muon is chosen for a new model on the usual optimizer only. On other data
    nothing is returned.
    """
    if not isinstance(settings.data, PythonLibraryDataSettings):
        return {}
    sections: dict[str, Section] = {}
    if "sequence_length" not in settings.data.model_fields_set:
        sections["data"] = settings.data.model_copy(update={"sequence_length": SEQUENCE_LENGTH})
    if "budget" not in settings.run.model_fields_set:
        budget = settings.run.budget.model_copy(update={"steps": STEPS})
        sections["run"] = settings.run.model_copy(update={"budget": budget})
    if _takes_muon(settings):
        is_rate_given = "learning_rate" in settings.optimizer.model_fields_set
        rate = settings.optimizer.learning_rate if is_rate_given else LEARNING_RATE
        update = {"algorithm": ALGORITHM, "learning_rate": rate}
        sections["optimizer"] = settings.optimizer.model_copy(update=update)
    return sections


def _takes_muon(settings: TrainSettings) -> bool:
    optimizer, model = settings.optimizer, settings.model
    is_usual = (
        isinstance(optimizer, AccelerateOptimizerSettings) and mesh_settings(settings.distributed) == MeshSettings()
    )
    is_new = not any(getattr(model, name, None) for name in ("path", "size", "lora"))
    return is_usual and is_new and not _OTHER_OPTIMIZERS & optimizer.model_fields_set
