"""Rules for a field of records, checked on the values of many records at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import compress
from math import inf, isfinite
from reprlib import Repr
from typing import TYPE_CHECKING, Any, Final, Literal, final, get_args

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Values = Sequence[Any]
    Types = set[type]

Action = Literal["reject", "warn", "stop"]
RULES = ("missing", "type", "one_of", "min", "max", "min_length", "max_length", "pattern")
"""The names of the rules, in the order of the checks."""

_TYPES: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "number": (int, float),
    "integer": (int, float),
    "boolean": (bool,),
    "list": (list,),
    "object": (dict,),
}
_NAMES = {str: "text", bool: "true or false", list: "a list", dict: "an object", int: "a number", float: "a number"}
_WANTED = {"number": "a finite number", "integer": "a whole number", "boolean": "true or false"}
_NUMBERS = {int, float}
_SIZED = {str, list, dict}
_SHOWN_CHARACTERS = 80
_SPELLED_INTEGER = re.compile(r"\s*[-+]?\d+\s*", re.ASCII)
_SPELLED = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)


@final
class _Absent:
    pass


ABSENT: Final = _Absent()
"""The value of a field that a record lacks."""
_MISSING = {_Absent, type(None)}


@dataclass(frozen=True, slots=True)
class FieldRule:
    """A rule by its ``name`` in the settings, the ``operand`` that values are compared with, and the ``action``.

    The operand is a type name for ``type``, a sequence for ``one_of``, a number for bounds, a regular expression for
    ``pattern``, and None for ``missing``.
    """

    name: str
    operand: Any
    action: Action


@dataclass(frozen=True, slots=True)
class FieldRules:
    """The rules for one field, at most one of each name.

    ``is_nullable`` allows null; otherwise null is a missing value. ``is_from_text`` reads the values of the type from
    their spelling, and blank text as a missing value.
    """

    field: str
    rules: tuple[FieldRule, ...]
    is_nullable: bool = False
    is_from_text: bool = False


@final
class FieldCheck:
    """Finds the values of a field that violate its rules.

    Raises ``ConfigurationError`` for an unknown rule, type or action, or a pattern that does not compile.
    """

    def __init__(self, rules: FieldRules) -> None:
        self.field = rules.field
        ordered = sorted(rules.rules, key=_order)
        self._missing = next((rule for rule in ordered if rule.name == "missing"), None)
        self._tests = [(rule, *_tests(rules.field, rule)) for rule in ordered if rule.name != "missing"]
        self._is_nullable = rules.is_nullable
        kind = next((rule.operand for rule in ordered if rule.name == "type"), None)
        self._parse = _PARSERS.get(kind) if rules.is_from_text else None

    @property
    def is_required(self) -> bool:
        """Return whether a missing value violates a rule."""
        return self._missing is not None

    @property
    def is_empty(self) -> bool:
        """Return whether every value is accepted."""
        return self._missing is None and not self._tests

    def violations(self, values: Values) -> Iterator[tuple[int, FieldRule, object]]:
        """Yield position, rule and value of each violation; a value of a wrong type violates no further rule."""
        positions: Sequence[int] = range(len(values))
        if self._parse is not None:
            values = [self._parse(value) if type(value) is str else value for value in values]
        types = set(map(type, values))
        if types & _MISSING:
            yield from self._missing_values(values)
            positions, values, types = _where(positions, values, [v is not ABSENT and v is not None for v in values])
        for rule, fit_all, fits in self._tests:
            if fit_all(values, types):
                continue
            fitting = [fits(value) for value in values]
            for position, value, is_fit in zip(positions, values, fitting, strict=True):
                if not is_fit:
                    yield position, rule, value
            if rule.name == "type":
                positions, values, types = _where(positions, values, fitting)

    def _missing_values(self, values: Values) -> Iterator[tuple[int, FieldRule, object]]:
        rule = self._missing
        if rule is not None:
            for position, value in enumerate(values):
                if value is ABSENT or (value is None and not self._is_nullable):
                    yield position, rule, value


def describe_violation(field: str, rule: FieldRule, value: object) -> str:
    """Return a clause that names the field, its value, cut to 80 characters, and the rule that it violates."""
    if rule.name == "missing":
        return f"the field {field!r} is {'null' if value is None else 'missing'}"
    return f"the field {field!r} holds {shown(value)}, which {_fault(rule, value)}"


def shown(value: object) -> str:
    """Return ``value`` as Python writes it, cut to 80 characters."""
    writer = Repr()
    writer.maxstring = writer.maxother = writer.maxlong = _SHOWN_CHARACTERS
    text = writer.repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."


def _fault(rule: FieldRule, value: object) -> str:
    match rule.name:
        case "type":
            type_name = _NAMES.get(type(value), f"of type {type(value).__name__}")
            return f"is {type_name}, not {_WANTED.get(rule.operand) or _NAMES[_TYPES[rule.operand][0]]}"
        case "one_of":
            return f"is not one of {shown(list(rule.operand))}"
        case "pattern":
            return f"does not match the pattern {shown(rule.operand)}"
        case "min" | "max":
            return f"is {'below' if rule.name == 'min' else 'above'} {rule.name}, {rule.operand:.12g}"
    size = len(value) if isinstance(value, str | list | dict) else 0
    return f"has the length {size:,}, {'below' if rule.name == 'min_length' else 'above'} {rule.name}, {rule.operand:,}"


def _order(rule: FieldRule) -> int:
    if rule.name not in RULES:
        msg = f"there is no validation rule {rule.name!r}: the rules are {', '.join(RULES)}"
        raise ConfigurationError(msg)
    if rule.action not in get_args(Action):
        msg = f"the action of the validation rule {rule.name!r} is {rule.action!r}: choose reject, warn or stop"
        raise ConfigurationError(msg)
    return RULES.index(rule.name)


def _where(positions: Sequence[int], values: Values, chosen: Sequence[bool]) -> tuple[list[int], list[Any], Types]:
    left = list(compress(values, chosen))
    return list(compress(positions, chosen)), left, set(map(type, left))


def _tests(field: str, rule: FieldRule) -> tuple[Callable[[Values, Types], bool], Callable[[Any], bool]]:
    """Return two tests: a fast one that is true only if all values fit, and one for a value of any type."""
    match rule.name:
        case "type":
            return _type_tests(field, rule.operand)
        case "one_of":
            allowed = frozenset((type(value) is bool, value) for value in rule.operand)
            texts = frozenset(value for value in rule.operand if type(value) is str)
            return (
                lambda values, types: types <= {str} and texts.issuperset(values),
                lambda value: type(value) in (str, bool, int, float) and (type(value) is bool, value) in allowed,
            )
        case "min" | "max":
            bound = float(rule.operand)
            fits = bound.__le__ if rule.name == "min" else bound.__ge__
            return (
                lambda values, types: types <= _NUMBERS and all(map(fits, values)),
                lambda value: type(value) in _NUMBERS and fits(value),
            )
        case "pattern":
            search = _compiled(field, rule.operand).search
            return (
                lambda values, types: types <= {str} and all(map(search, values)),
                lambda value: type(value) is str and search(value) is not None,
            )
    size = int(rule.operand)
    allows = size.__le__ if rule.name == "min_length" else size.__ge__
    return (
        lambda values, types: types <= _SIZED and all(map(allows, map(len, values))),
        lambda value: type(value) in _SIZED and allows(len(value)),
    )


def _type_tests(field: str, kind: str) -> tuple[Callable[[Values, Types], bool], Callable[[Any], bool]]:
    if kind not in _TYPES:
        msg = f"the type of the field {field!r} is {kind!r}: choose one of {', '.join(_TYPES)}"
        raise ConfigurationError(msg)
    types_of_kind = _TYPES[kind]
    only = {types_of_kind[0]}
    if float not in types_of_kind:
        return lambda _, types: types <= only, lambda value: type(value) in only
    is_allowed = float.is_integer if kind == "integer" else isfinite
    return (
        lambda values, types: (
            types <= only or (kind == "number" and types <= _NUMBERS and all(map(inf.__gt__, map(abs, values))))
        ),
        lambda value: type(value) is int or (type(value) is float and is_allowed(value)),
    )


def _compiled(field: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError, TypeError) as error:
        msg = f"the pattern of the field {field!r} is not a regular expression that Python accepts: {error}"
        raise ConfigurationError(msg) from error


def _number(text: str) -> object:
    return float(text) if _SPELLED.fullmatch(text) else text if text.strip() else ABSENT


def _integer(text: str) -> object:
    try:
        return int(text) if _SPELLED_INTEGER.fullmatch(text) else _number(text)
    except ValueError:  # more digits than Python reads
        return text


def _boolean(text: str) -> object:
    return {"true": True, "false": False, "": ABSENT}.get(text.strip().lower(), text)


_PARSERS: dict[Any, Callable[[str], object]] = {"number": _number, "integer": _integer, "boolean": _boolean}
