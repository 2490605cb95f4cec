"""Lists, for a person, the settings that have changed since the last start of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.run_folder.folder import changed_settings, flatten
from holdfast.configs.error_messages import one_line
from holdfast.configs.strict_yaml import write_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MOST = 10
_LONGEST_VALUE = 30


def told_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each setting that a person has changed, for the first ten of them.

    A setting that another version has added does not count as changed, unless its section was not set before.
    """
    known = flatten(before)
    changes = [
        (key, old, new)
        for key, (old, new) in changed_settings(before, now).items()
        if key in known or any(known.get(above, 0) is None for above in _above(key))
    ]
    for key, old, new in changes[:_MOST]:
        yield f"changed: {key}: {_word(old)} -> {_word(new)}"
    if (more := len(changes) - _MOST) > 0:
        yield f"changed: {more} more (all are in run.json)"


def _above(key: str) -> Iterator[str]:
    while "." in key:
        key = key.rpartition(".")[0]
        yield key


def _word(value: object) -> str:
    return one_line(value if isinstance(value, str) else write_yaml(value), _LONGEST_VALUE)
