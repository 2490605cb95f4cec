"""Data that a command names to measure a model on, in place of those that its run held out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.configs.settings import TrainSettings

_SECTIONS = ("data.", "evaluation.")
_OF_A_SPLIT = ("holdout", "folds", "fold")
_OF_THE_RUN = ("sequence_length", "transforms", "text_field")


@dataclass(frozen=True, slots=True)
class OtherData:
    """``paths`` of files, and settings (``key=value``) of ``data`` and ``evaluation``."""

    paths: Sequence[str] = ()
    settings: Sequence[str] = ()

    @property
    def is_named(self) -> bool:
        """Return whether data are named at all, and not only how to evaluate."""
        return bool(self.paths) or any(setting.startswith("data.") for setting in self.settings)

    def within(self, settings: TrainSettings) -> TrainSettings:
        """Return ``settings`` with these data in place of the run's; raises ``ConfigurationError`` for others.

        Row length, transforms and the name of the text field are the run's, unless they are named.
        """
        if strange := [setting for setting in self.settings if not setting.startswith(_SECTIONS)]:
            msg = f"evaluate cannot change {strange[0]}: it takes settings of data and evaluation only"
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
        evaluation = chosen.evaluation.model_dump(exclude_unset=True)
        changes["evaluation"] = settings.evaluation.model_copy(update=evaluation)
        return settings.model_copy(update=changes)
