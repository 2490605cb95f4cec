"""The settings of a recorded run that differ from the defaults, and the command that repeats the run with them."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from holdfast.bootstrap.process.program import called_as
from holdfast.bootstrap.run_folder.record_file import flatten
from holdfast.configs.plain import to_plain
from holdfast.configs.rendering import dump_settings
from holdfast.configs.secret_masking import MASK
from holdfast.configs.settings import usual_settings
from holdfast.configs.settings_catalog import field_of_entry, settings_by_name
from holdfast.configs.settings_layers import load_settings
from holdfast.configs.strict_yaml import write_yaml
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST_NAMED = 5


@final
@dataclass(frozen=True, slots=True)
class Setting:
    """A setting with its value in a run; ``is_changed`` if that is not ``default`` (None if there is no default)."""

    name: str
    value: Any
    default: Any
    is_changed: bool


@final
@dataclass(frozen=True, slots=True)
class RepeatCommand:
    """A command that trains with the settings of a run, and a sentence on what it lacks, None if it lacks nothing."""

    command: str
    lack: str | None


def with_defaults(settings: Mapping[str, Any]) -> list[Setting]:
    """Return the recorded ``settings`` (nested) in their order, each with its default for the kind of its section."""
    data = settings.get("data")
    task, epochs = (data.get("task", "text"), data.get("epochs")) if isinstance(data, dict) else ("text", None)
    usual = to_plain(usual_settings(_kind_of(data), task=task, epochs=epochs))
    flat, catalog, recorded = flatten(usual), settings_by_name(), flatten(settings)

    def default_of(name: str) -> tuple[bool, Any]:
        section = name.partition(".")[0]
        kind = _kind_of(settings.get(section))
        is_usual = kind == _kind_of(usual.get(section)) or name == f"{section}.kind"
        if name in flat and is_usual:
            return True, flat[name]
        field = catalog.get(name, {}).get(kind, catalog.get(name, {}).get(""))
        if field is None:
            field = field_of_entry(name, str(recorded.get(f"{'.'.join(name.split('.')[:3])}.kind")))
        if field is None or field.is_required():
            return False, None
        return True, to_plain(field.get_default(call_default_factory=True))

    found = []
    for name, value in recorded.items():
        has_default, default = default_of(name)
        found.append(Setting(name, value, default, not has_default or value != default))
    return found


def repeat_command(settings: Mapping[str, Any]) -> RepeatCommand:
    """Return the command that trains with the recorded ``settings`` (nested), secrets masked."""
    changed = {each.name: each.value for each in with_defaults(settings) if each.is_changed}
    words = [f"{name}={write_yaml(value)}" for name, value in changed.items()]
    command = shlex.join([*called_as(), "train", *words])
    masked = [name for name, value in changed.items() if MASK in json.dumps(value)]
    if masked:
        return RepeatCommand(command, f"put the secrets in the place of {MASK} in {_listed(masked)}")
    try:
        repeated = flatten(dump_settings(load_settings([], words, {}).settings))
    except ConfigurationError as error:
        return RepeatCommand(command, f"this version of Holdfast does not accept all of these settings: {error}")
    recorded = flatten(settings)
    others = [name for name, value in recorded.items() if name in repeated and repeated[name] != value]
    return RepeatCommand(command, f"the command does not set {_listed(others)} as the run did" if others else None)


def _kind_of(section: object) -> str:
    return str(section.get("kind", "")) if isinstance(section, dict) else ""


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
