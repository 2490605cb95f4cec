"""The settings of a run that would run code from outside Holdfast when its model is only used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.bootstrap.wiring.encryption_keys import KEY_KINDS
from holdfast.bootstrap.wiring.eviction_policy import EVICTIONS
from holdfast.bootstrap.wiring.text_transforms import TRANSFORMS
from holdfast.configs.sections.schedule import SCHEDULES
from holdfast.domain.built_in import ATTENTION, LOSSES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from holdfast.configs.sections.base import Section
    from holdfast.configs.settings import TrainSettings

TASKS = "evaluation.harness.tasks"
"""The setting with a folder of tasks of suites, which may contain code."""

_SECTIONS = ("data", "tokenizer", "model", "optimizer", "state_store", "event_bus")


def asked_trust(settings: TrainSettings) -> Mapping[str, str]:
    """Return each setting that would run code from outside Holdfast when the model is only used.

    This code is code or pickles beside a base model, and the entry points of installed packages.
    """
    return dict(_asked(settings))


def trust_of_suites(settings: TrainSettings) -> Mapping[str, str]:
    """Return the setting that would run code from outside Holdfast only when the model is evaluated by suites."""
    tasks = settings.evaluation.harness.tasks
    return {} if tasks is None else {TASKS: str(tasks)}


def _asked(settings: TrainSettings) -> Iterator[tuple[str, str]]:
    model, data = settings.model, settings.data
    has_base = model.lora is not None  # else the base model is not opened
    names = {f"{name}.kind": section.kind for name, section in settings if name in _SECTIONS and _is_outside(section)}
    if has_base:
        names |= {"model.trust_remote_code": model.trust_remote_code, "model.trust_pickle": model.trust_pickle}
    names["model.attention"] = _outside(model.attention, ("auto", *ATTENTION))
    names["model.loss"] = _outside(model.loss, LOSSES) if has_base else None
    names["data.transforms"] = ",".join(each.kind for each in data.transforms if each.kind not in TRANSFORMS) or None
    names["wrappers"] = ",".join(each.kind for each in settings.wrappers) or None
    names["optimizer.schedule.kind"] = _outside(settings.optimizer.schedule.kind, SCHEDULES)
    names["data.cache.eviction"] = _outside(data.cache.eviction, EVICTIONS)
    sections = {"state_store": settings.state_store.encryption, "data.cache": data.cache.encryption}
    for place, encryption in sections.items():
        if encryption is not None and encryption.key_from.partition(":")[0] not in KEY_KINDS:
            names[f"{place}.encryption.key_from"] = encryption.key_from
    yield from ((key, value) for key, value in names.items() if value is not None)


def _is_outside(section: Section) -> bool:
    return "options" in type(section).model_fields  # what an outside adapter is given, and no other


def _outside(name: str, built_in: Collection[str]) -> str | None:
    return None if name in built_in else name
