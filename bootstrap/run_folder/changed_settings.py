"""Lists, for a person, the settings that have changed since the last start of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.run_folder.record_file import changed_settings, flatten
from holdfast.configs.error_messages import one_line
from holdfast.configs.strict_yaml import write_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MOST = 10
_LONGEST_VALUE = 30
_SHARED = 8  # characters shown before a difference
_LENGTHS = ("run.budget.steps", "run.budget.tokens", "run.budget.minutes", "data.epochs")
_SCHEDULE = "optimizer.schedule"


def told_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each setting that a person has changed, for the first ten of them.

    A setting that another version has added does not count as changed, unless its section was not set before. A last
    line follows if the learning rate is another one from here on, as the run has another length.
    """
    known = flatten(before)
    changes = [
        (key, old, new)
        for key, (old, new) in changed_settings(before, now).items()
        if key in known or any(known.get(above, 0) is None for above in _above(key))
    ]
    for key, old, new in changes[:_MOST]:
        yield f"changed: {key}: {' -> '.join(_words(old, new))}"
    if (more := len(changes) - _MOST) > 0:
        yield f"changed: {more} more (all are in run.json)"
    if {key for key, _, _ in changes} & {*_LENGTHS} and (kind := _kind_by_length(flatten(now))) is not None:
        yield (
            f"the learning rate follows the curve of the new length from here on ({_SCHEDULE}.kind={kind}), so it may "
            "jump"
        )


def _kind_by_length(settings: Mapping[str, Any]) -> str | None:
    """Return the kind of a schedule whose learning rates depend on the length of the run, None for any other."""
    kind = settings.get(f"{_SCHEDULE}.kind")
    ends_before = any(settings.get(f"{_SCHEDULE}.{name}") is not None for name in ("decay_steps", "decay_tokens"))
    return None if kind == "constant" or (kind in ("cosine", "linear") and ends_before) else kind


def _above(key: str) -> Iterator[str]:
    while "." in key:
        key = key.rpartition(".")[0]
        yield key


def _words(old: object, new: object) -> tuple[str, str]:
    """Return both values as text that shows where they differ: a long beginning that they share is left out."""
    words = [one_line(value if isinstance(value, str) else write_yaml(value)) for value in (old, new)]
    pairs = enumerate(zip(*words, strict=False))
    shared = next((place for place, (one, other) in pairs if one != other), min(map(len, words)))
    first = shared - _SHARED if shared > _LONGEST_VALUE // 2 and max(map(len, words)) > _LONGEST_VALUE else 0
    before, after = (one_line(f"...{word[first:]}" if first else word, _LONGEST_VALUE) for word in words)
    return before, after
