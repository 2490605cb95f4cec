"""Reads the space of a hyperparameter search from a YAML file, and checks it against the settings."""

from __future__ import annotations

import math
from itertools import islice, product
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.configs.error_messages import one_line, refuse, refuse_all
from holdfast.configs.run_names import is_below
from holdfast.configs.sections.base import problem_of_metric
from holdfast.configs.settings_catalog import takes_whole_numbers_only
from holdfast.configs.settings_layers import MAX_FILE_BYTES, load_settings
from holdfast.configs.strict_yaml import StrictYamlError, read_yaml, write_yaml
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.sizes import size_in_bytes
from holdfast.domain.tuning.search_space import Choices, FloatRange, IntRange, SearchSpace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.domain.tuning.search_space import Dimension, Value

    Words = Sequence[str]

T = TypeVar("T")

_RANGE = ("low", "high", "log", "step", "int")
_EXAMPLE = "{low: 1e-4, high: 1e-2, log: true}"
_FORMS = f"{_EXAMPLE} or {{choices: [1, 2]}}"
_MOST_COMBINATIONS = 64
_FIXED = {
    ("run.name", "run.dir", "run.cache_dir"): "each trial has a folder of its own",
    ("tune",): "these settings describe the search itself",
    (
        "evaluation",
        "data.holdout",
        "data.holdout_by",
        "data.folds",
        "data.fold",
    ): "then trials would not be measured alike",
}
_TOKENIZERS = ("tokenizer",)
_LOSSES = ("optimizer.dpo",)


def word_of(name: str, value: Value) -> str:
    """Return the setting ``name`` with a ``value`` of a trial as an argument of the command line."""
    return f"{name}={value if isinstance(value, str) else write_yaml(value)}"


def words_of(parameters: Mapping[str, Value]) -> list[str]:
    """Return the parameters of a trial as arguments of the command line."""
    return [word_of(name, value) for name, value in parameters.items()]


def read_space(path: Path, files: Sequence[str | Path], overrides: Words, environ: Mapping[str, str]) -> SearchSpace:
    """Return the space in the file ``path``; its settings vary those of the other arguments, which are valid.

    A setting is ``key.path: {low, high}``, with ``log``, ``step`` and ``int`` if wanted, or ``key.path: {choices}``;
    sections may be nested. Raises one ``ConfigurationError`` for all mistakes: each end of a range and each choice is
    checked as a setting, then combinations of them.
    """
    problems: list[str] = []
    entries = dict(_entries(_contents(path), path, problems))
    dimensions = {name: _attempt(problems, _dimension, name, entry, path) for name, entry in entries.items()}
    known = {name: dimension for name, dimension in dimensions.items() if dimension is not None}
    probe = _Probe(path, files, overrides, environ)
    for name, dimension in known.items():
        for value in _extremes(dimension):
            problems += [problem for problem in probe([word_of(name, value)]) if problem not in problems]
    if problems:
        refuse_all(problems)
    space = SearchSpace(known)
    _check_combinations(space, probe, path)
    return space


def check_metric(space: SearchSpace, metric: str, task: str = "text") -> None:
    """Raise ``ConfigurationError`` if ``metric`` cannot compare the trials of ``space`` on data of ``task``."""
    if problem := problem_of_metric(metric, task):
        are_losses = task == "preference" and any(is_below(name, _LOSSES) for name in space.dimensions)
        refuse(
            f"tune.metric is {metric}, but {problem}: set tune.metric="
            + ("eval_reward_accuracy" if are_losses else "eval_loss")
        )
    if not metric.startswith("eval_loss"):
        return
    if task == "preference" and (names := [name for name in space.dimensions if is_below(name, _LOSSES)]):
        refuse(
            f"{names[0]} is in the space, but tune.metric is {metric}, the loss that it changes, so the trials do not "
            "compare: set tune.metric=eval_reward_accuracy"
        )
    if task != "preference" and (names := [name for name in space.dimensions if is_below(name, _TOKENIZERS)]):
        refuse(
            f"{names[0]} is in the space, but tune.metric is {metric}, which is not comparable between tokenizers: set "
            "tune.metric=eval_bits_per_byte"
        )


class _Probe:
    """Returns the sentences on what is wrong with the settings together with further words."""

    def __init__(self, path: Path, files: Sequence[str | Path], overrides: Words, environ: Mapping[str, str]) -> None:
        self._path = path
        self._files = files
        self._overrides = overrides
        self._environ = environ

    def __call__(self, words: Words) -> list[str]:
        """Return the problems, each on one line."""
        try:
            load_settings(self._files, self._overrides, self._environ, chosen=words, chosen_by=str(self._path))
        except ConfigurationError as error:
            lines = str(error).splitlines()
            return [line.strip() for line in (lines[1:] or lines)]
        return []


def _contents(path: Path) -> dict[str, Any]:
    place = f"--space {path}"
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        values = read_yaml(content.decode("utf-8-sig"))
    except FileNotFoundError:
        refuse(f"{place}: no such file")
    except UnicodeDecodeError:
        refuse(f"{place}: it is not UTF-8 text")
    except OSError as error:
        refuse(f"{place}: it cannot be read ({error.strerror})")
    except StrictYamlError as error:
        refuse(f"{place}, line {error.line}: {error}")
    if len(content) > MAX_FILE_BYTES:
        refuse(f"{place}: it is larger than {MAX_FILE_BYTES} bytes, too large for a space")
    if not isinstance(values, dict) or not values:
        refuse(f"{place}: it must hold settings to vary, such as optimizer.learning_rate: {_EXAMPLE}")
    return values


def _entries(
    values: Mapping[str, Any], path: Path, problems: list[str], above: str = ""
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the dotted name and the form of each setting."""
    for key, value in values.items():
        name = f"{above}{key}"
        if not isinstance(value, dict) or not value:
            problems.append(
                f"{one_line(name, 80)} ({path}) is {one_line(write_yaml(value), 80)}, which is one value: write "
                f"{_FORMS}, or set it with --config"
            )
        elif {"choices", *_RANGE} & value.keys():
            if (reason := _reason_to_refuse(name)) is not None:
                problems.append(f"{name} ({path}) cannot vary, as {reason}: leave it out")
            else:
                yield name, value
        else:
            yield from _entries(value, path, problems, f"{name}.")


def _reason_to_refuse(name: str) -> str | None:
    return next((reason for names, reason in _FIXED.items() if is_below(name, names)), None)


def _attempt(problems: list[str], step: Any, *arguments: Any) -> Any:
    try:
        return step(*arguments)
    except ConfigurationError as error:
        problems.append(str(error))
        return None


def _dimension(name: str, entry: Mapping[str, Any], path: Path) -> Dimension:
    place = f"{one_line(name, 80)} ({path})"
    if "choices" in entry:
        return _choices(place, entry)
    if strange := sorted(entry.keys() - {*_RANGE}):
        refuse(f"{place} has {one_line(strange[0], 80)}, which is no part of a range: there are {', '.join(_RANGE)}")
    if missing := [key for key in ("low", "high") if key not in entry]:
        refuse(f"{place} has no {missing[0]}: write {_FORMS}")
    for key in ("log", "int"):
        if not isinstance(entry.get(key, False), bool):
            refuse(f"{place} has {key}: {one_line(write_yaml(entry[key]), 80)}: it must be true or false")
    low, high = (_number(place, key, entry[key]) for key in ("low", "high"))
    step = None if entry.get("step") is None else _number(place, "step", entry["step"])
    _check_range(place, low, high, step, is_log=entry.get("log", False))
    return _range(name, place, low, high, step, entry)


def _choices(place: str, entry: Mapping[str, Any]) -> Choices:
    if others := sorted(entry.keys() - {"choices"}):
        refuse(f"{place} has both choices and {one_line(others[0], 80)}: write {_FORMS}")
    options = entry["choices"]
    if not isinstance(options, list) or not options:
        refuse(f"{place} has choices: {one_line(write_yaml(options), 80)}: it must be a list such as [1, 2]")
    texts = tuple(write_yaml(option) for option in options)
    if twice := [text for number, text in enumerate(texts) if text in texts[:number]]:
        refuse(f"{place} has the choice {one_line(twice[0], 80)} twice: leave one out")
    return Choices(texts)


def _number(place: str, key: str, value: Any) -> int | float:
    if isinstance(value, str):
        try:
            return size_in_bytes(value)
        except ValueError:
            pass
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        refuse(f"{place} has {key}: {one_line(write_yaml(value), 80)}: it must be a number; other values are choices")
    return value


def _check_range(place: str, low: float, high: float, step: float | None, *, is_log: bool) -> None:
    if low > high:
        refuse(f"{place} has low: {write_yaml(low)} above high: {write_yaml(high)}: exchange them")
    if step is not None and step <= 0:
        refuse(f"{place} has step: {write_yaml(step)}: it must be above 0")
    if is_log and low <= 0:
        refuse(f"{place} has low: {write_yaml(low)} with log: true: a logarithm needs numbers above 0")
    if is_log and step is not None:
        refuse(f"{place} has both log and step: leave one out")


def _range(
    name: str, place: str, low: float, high: float, step: float | None, entry: Mapping[str, Any]
) -> FloatRange | IntRange:
    parts = [part for part in (low, high, step) if part is not None]
    are_whole = all(float(part).is_integer() for part in parts)
    is_written_whole = all(isinstance(part, int) for part in parts)
    whole = takes_whole_numbers_only(name)
    if entry.get("int", is_written_whole if whole is None else whole):
        if not are_whole:
            refuse(f"{place} takes whole numbers, but has {', '.join(map(write_yaml, parts))}: round them")
        return IntRange(int(low), int(high), entry.get("log", False), int(step or 1))
    return FloatRange(float(low), float(high), entry.get("log", False), None if step is None else float(step))


def _extremes(dimension: Dimension) -> Sequence[Value]:
    match dimension:
        case Choices(options):
            return options
        case _:
            return tuple(dict.fromkeys((dimension.low, dimension.high)))


def _check_combinations(space: SearchSpace, probe: _Probe, path: Path) -> None:
    """Raise ``ConfigurationError`` for the first combination of ends and choices that is not valid.

    Of many combinations a sample is checked, always the same one.
    """
    names, sides = [*space.dimensions], [_extremes(dimension) for dimension in space.dimensions.values()]
    combinations: Iterator[tuple[Value, ...]] = product(*sides)
    if math.prod(map(len, sides)) > _MOST_COMBINATIONS:
        chance = Random(0)  # noqa: S311  no secret
        combinations = islice(iter(lambda: tuple(map(chance.choice, sides)), None), _MOST_COMBINATIONS)
    for values in combinations:
        words = words_of(dict(zip(names, values, strict=True)))
        if problems := probe(words):
            refuse(f"the combination {' '.join(words)} of {path} is not valid: {problems[0]}")
