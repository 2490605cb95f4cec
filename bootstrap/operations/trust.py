"""The code that a run folder asks to be trusted, and the code that the user trusts."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from holdfast.bootstrap.run_folder.folder import read_record
from holdfast.bootstrap.wiring.encryption_keys import KEY_KINDS
from holdfast.bootstrap.wiring.eviction_policy import EVICTIONS
from holdfast.bootstrap.wiring.text_transforms import TRANSFORMS
from holdfast.configs.sections.schedule import SCHEDULES
from holdfast.configs.settings_layers import load_settings, restore_settings
from holdfast.domain.built_in import ATTENTION, LOSSES
from holdfast.domain.errors import ConfigurationError, TrainingError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from holdfast.configs.sections.base import Section
    from holdfast.configs.settings import TrainSettings

_SECTIONS = ("data", "tokenizer", "model", "optimizer", "state_store", "event_bus")


def asked_trust(settings: TrainSettings) -> Mapping[str, str]:
    """Return each setting by which a model that is only used would have code run that is not Holdfast's own.

    That is code or pickles beside a base model, and whatever an entry point of an installed package names.
    """
    return dict(_asked(settings))


def stated_trust(options: argparse.Namespace) -> Mapping[str, str]:
    """Return what the person who gives a command trusts: by ``--trust``, and in files of their own by ``--config``."""
    own = asked_trust(load_settings(options.config, [], {}).settings) if options.config else {}
    given = {key: value for key, _, value in (each.partition("=") for each in options.trust)}
    return {**own, **given}


def refuse_untrusted(run: Path, settings: TrainSettings, trusted: Mapping[str, str]) -> None:
    """Raise ``ConfigurationError`` unless ``trusted`` repeats all that the settings of the folder ``run`` ask for."""
    if missing := {key: value for key, value in asked_trust(settings).items() if trusted.get(key) != value}:
        raise ConfigurationError(_sentence(run, missing))


def note_trust(run: Path) -> str | None:
    """Return a sentence on what the folder ``run`` asks for, None if it asks for nothing or cannot be understood."""
    try:
        asked = asked_trust(restore_settings(read_record(run)["settings"]))
    except TrainingError:
        return None
    return _sentence(run, asked) if asked else None


def _sentence(run: Path, asked: Mapping[str, str]) -> str:
    told = [f"{key}={value}" for key, value in asked.items()]
    options = " ".join(f"--trust {shlex.quote(each)}" for each in told)
    return (
        f"the settings in {run} ask for {', '.join(told)}, which runs code that is not Holdfast's (an entry point of "
        "another package, or code or a pickle beside the base model): to allow it "
        f"add {options}, or name a file of yours that has it by --config"
    )


def _asked(settings: TrainSettings) -> Iterator[tuple[str, str]]:
    model, data = settings.model, settings.data
    has_base = model.lora is not None  # else the base model is not opened
    names = {f"{name}.kind": section.kind for name, section in settings if name in _SECTIONS and _is_outside(section)}
    if has_base:
        names |= {"model.trust_remote_code": model.trust_remote_code, "model.trust_pickle": model.trust_pickle}
    names["model.attention"] = _outside(model.attention, ("auto", *ATTENTION))
    names["model.loss"] = _outside(model.loss, LOSSES) if has_base else None
    names["data.transforms"] = ",".join(each.kind for each in data.transforms if each.kind not in TRANSFORMS) or None
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
