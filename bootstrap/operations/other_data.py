"""Data that a command names for an evaluation, in place of the documents that the run held out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.configs.sections.evaluation import EvaluationSettings
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.configs.settings import TrainSettings

_SECTIONS = ("data.", "evaluation.")
_OF_A_SPLIT = ("holdout", "holdout_by", "folds", "fold")
_OF_THE_RUN = ("sequence_length", "packing", "transforms", "text_field", "task", "chat", "epochs")


@dataclass(frozen=True, slots=True)
class OtherData:
    """``paths`` of files, and settings (``key=value``) of ``data`` and ``evaluation``."""

    paths: Sequence[str] = ()
    settings: Sequence[str] = ()

    @property
    def is_named(self) -> bool:
        """Return whether any data are named, and not only settings of the evaluation."""
        return bool(self.paths) or any(setting.startswith("data.") for setting in self.settings)

    def sets(self, name: str) -> bool:
        """Return whether the setting ``name`` is set here."""
        return any(setting.partition("=")[0] == name for setting in self.settings)

    def within(self, settings: TrainSettings) -> TrainSettings:
        """Return ``settings`` with these data in place of the run's.

        Row length, packing, transforms, task and the name of the text field are those of the run, unless they are set
        here. Raises ``ConfigurationError`` for settings of other sections and for settings that have no effect.
        """
        if strange := [setting for setting in self.settings if not setting.startswith(_SECTIONS)]:
            msg = f"this command cannot change {strange[0]}: it takes settings of data and evaluation only"
            raise ConfigurationError(msg)
        files = ["data.kind=files", f"data.path={json.dumps([*self.paths])}"] if self.paths else []
        chosen = load_settings([], [*files, *self.settings], {}).settings
        changes: dict[str, Any] = {}
        if self.is_named:
            if useless := sorted(chosen.data.model_fields_set.intersection(_OF_A_SPLIT)):
                msg = f"data.{useless[0]} has no effect here: all documents of the data that are named are measured"
                raise ConfigurationError(msg)
            inherited = [name for name in _OF_THE_RUN if name not in chosen.data.model_fields_set]
            own, other = dict(settings.data), dict(chosen.data)
            kept = {name: own[name] for name in inherited if name in own and name in other}
            changes["data"] = chosen.data.model_copy(update=kept)
        before = settings.evaluation.model_dump(exclude={"sets"} if self.is_named else None)  # sets are the run's data
        evaluation = _merged(before, chosen.evaluation.model_dump(exclude_unset=True))
        changes["evaluation"] = EvaluationSettings.model_validate(evaluation)
        return settings.model_copy(update=changes)


def _merged(lower: Mapping[str, Any], higher: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(lower)
    for key, value in higher.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
