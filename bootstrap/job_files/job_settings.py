"""The settings of a run as words of a command, and the environment variables that keep its secrets."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from holdfast.bootstrap.operations.repeat_command import with_defaults
from holdfast.bootstrap.run_folder.record_file import flatten
from holdfast.configs.plain import to_plain
from holdfast.configs.rendering import dump_settings
from holdfast.configs.run_names import names_itself
from holdfast.configs.secret_masking import MASK
from holdfast.configs.settings_layers import DELIMITER, PREFIX, load_settings
from holdfast.configs.strict_yaml import write_yaml
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.configs.settings import TrainSettings

_NAMED = re.compile(r"env:([A-Za-z_]\w*)")
_READ_BY_LIBRARIES = {
    "s3://": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"),
    "hf://": ("HF_TOKEN",),
    '"huggingface"': ("HF_TOKEN",),
    '"model.path"': ("HF_TOKEN",),
    '"wandb"': ("WANDB_API_KEY",),
}
"""Variables that libraries read for settings whose JSON has such a text."""


@final
@dataclass(frozen=True, slots=True)
class JobSettings:
    """The ``words`` that set what differs from the defaults, and the names of the ``variables`` with the secrets."""

    words: tuple[str, ...]
    variables: tuple[str, ...]


def job_settings(settings: TrainSettings, environ: Mapping[str, str]) -> JobSettings:
    """Return ``settings`` for a command on another machine.

    A setting with a secret is left to the environment variable of its name. Other variables are those that settings
    name as ``env:NAME``, and those of libraries that are set in ``environ``. Raises ``ConfigurationError`` if words and
    variables do not give the same settings again.
    """
    recorded, plain = dump_settings(settings), flatten(to_plain(settings))
    changed = {each.name: each.value for each in with_defaults(recorded) if each.is_changed}
    secret = {_variable_of(name): write_yaml(plain[name]) for name, value in changed.items() if _is_masked(value)}
    words = [f"{name}={write_yaml(value)}" for name, value in changed.items() if not _is_masked(value)]
    if "run.name" not in changed and names_itself(settings):
        words.insert(0, f"run.name={settings.run.name}")  # else the other machine would choose a name
    again = flatten(dump_settings(load_settings([], words, secret).settings))
    if others := [name for name, value in flatten(recorded).items() if again.get(name) != value]:
        msg = f"a job file cannot set {others[0]} as it is set here: keep secrets out of it, in variables of libraries"
        raise ConfigurationError(msg)
    found = [*secret, *_named(changed), *_of_libraries(json.dumps(changed), environ)]
    return JobSettings(tuple(words), tuple(dict.fromkeys(found)))


def _is_masked(value: object) -> bool:
    return MASK in json.dumps(value)


def _variable_of(name: str) -> str:
    return PREFIX + name.replace(".", DELIMITER).upper()


def _named(value: Any) -> Iterator[str]:
    """Yield the names of variables that settings name as ``env:NAME``."""
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list):
        for item in value:
            yield from _named(item)
    elif isinstance(value, str) and (named := _NAMED.fullmatch(value)):
        yield named[1]


def _of_libraries(changed: str, environ: Mapping[str, str]) -> Sequence[str]:
    """Return the variables in ``environ`` that libraries read for the ``changed`` settings, given as JSON."""
    wanted = (name for text, names in _READ_BY_LIBRARIES.items() if text in changed for name in names)
    return [name for name in wanted if environ.get(name)]
