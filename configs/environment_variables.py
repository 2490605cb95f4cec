"""Environment variables that set settings."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from holdfast.configs.settings import TrainSettings
from holdfast.configs.settings_catalog import settings_by_name

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = TrainSettings.model_config["env_prefix"]
DELIMITER = TrainSettings.model_config["env_nested_delimiter"] or "__"
_OTHER_SECTIONS = ("training", "pipeline", "optimization")  # of holdfast.configs.aliases


def variables_of(environ: Mapping[str, str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the names that have the form of a setting, with the path that each means.

    That is ``HOLDFAST_SECTION__KEY``, or ``HOLDFAST_SECTION`` for a whole section. A name without ``__`` counts too
    where it is a slip of one of these; any other, such as ``HOLDFAST_KEY`` with a key for encryption, is no setting.
    """
    # Shallow names first, so that HOLDFAST_MODEL__PATH refines HOLDFAST_MODEL.
    names = sorted(environ, key=lambda name: (name.count(DELIMITER), name))
    found = ((name, name.removeprefix(PREFIX).lower()) for name in names if name.startswith(PREFIX))
    return [(name, tuple(rest.split(DELIMITER))) for name, rest in found if _is_setting(rest)]


def _is_setting(rest: str) -> bool:
    if DELIMITER in rest:
        return True
    slips = {name.replace(".", "_") for name in settings_by_name()}
    return rest in slips or bool(
        get_close_matches(rest, [*TrainSettings.model_fields, *_OTHER_SECTIONS], n=1, cutoff=0.8)
    )
