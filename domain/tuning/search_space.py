"""The space of a hyperparameter search: the settings to vary, and the values that each may take."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

Value: TypeAlias = int | float | str
"""The value of a setting in a trial; a text is YAML, as it is written on the command line."""


@final
@dataclass(frozen=True, slots=True)
class FloatRange:
    """Numbers from ``low`` to ``high``, evenly spread, or with ``is_log`` evenly in their logarithm.

    With ``step`` only ``low`` and whole multiples of ``step`` above it.
    """

    low: float
    high: float
    is_log: bool = False
    step: float | None = None

    @property
    def values(self) -> tuple[Value, ...] | None:
        """Return all values, None if they cannot be counted."""
        if self.low == self.high:
            return (self.low,)
        if self.step is None:
            return None
        low, high, step = (Decimal(str(number)) for number in (self.low, self.high, self.step))
        return tuple(float(low + step * count) for count in range(int((high - low) // step) + 1))

    def draw(self, chance: Random) -> Value:
        """Return a value at random."""
        if (values := self.values) is not None:
            return chance.choice(values)
        if self.is_log:
            return min(self.high, max(self.low, math.exp(chance.uniform(math.log(self.low), math.log(self.high)))))
        return chance.uniform(self.low, self.high)


@final
@dataclass(frozen=True, slots=True)
class IntRange:
    """Whole numbers from ``low`` to ``high``, every ``step``, or with ``is_log`` spread evenly in their logarithm."""

    low: int
    high: int
    is_log: bool = False
    step: int = 1

    @property
    def values(self) -> tuple[Value, ...]:
        """Return all values."""
        return tuple(range(self.low, self.high + 1, self.step))

    def draw(self, chance: Random) -> int:
        """Return a value at random."""
        if self.is_log:
            exact = math.exp(chance.uniform(math.log(self.low - 0.5), math.log(self.high + 0.5)))
            return min(self.high, max(self.low, round(exact)))
        return chance.randrange(self.low, self.high + 1, self.step)


@final
@dataclass(frozen=True, slots=True)
class Choices:
    """The values ``options``, each as YAML text."""

    options: tuple[str, ...]

    @property
    def values(self) -> tuple[Value, ...]:
        """Return all values."""
        return self.options

    def draw(self, chance: Random) -> str:
        """Return a value at random."""
        return chance.choice(self.options)


Dimension: TypeAlias = FloatRange | IntRange | Choices
_KINDS: Mapping[type[Dimension], str] = MappingProxyType({FloatRange: "float", IntRange: "int", Choices: "choices"})


@final
@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The settings that a study varies, by their dotted names, in the order of the names.

    So the order in which they were written has no effect on a search.
    """

    dimensions: Mapping[str, Dimension]

    def __post_init__(self) -> None:
        """Sort the settings by their names."""
        object.__setattr__(self, "dimensions", dict(sorted(self.dimensions.items())))

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Return the names of the settings whose values cannot be counted, so that no grid has them all."""
        return tuple(name for name, dimension in self.dimensions.items() if dimension.values is None)

    @property
    def num_points(self) -> int:
        """Return the number of combinations of all values; each setting's values must be countable."""
        return math.prod(len(dimension.values or ()) for dimension in self.dimensions.values())

    def point(self, number: int) -> dict[str, Value]:
        """Return combination ``number`` of the grid, from 0; the last setting varies fastest.

        The grid begins anew at its end. Each setting's values must be countable.
        """
        drawn: dict[str, Value] = {}
        for name, dimension in reversed([*self.dimensions.items()]):
            values = dimension.values or ()
            number, place = divmod(number, len(values))
            drawn[name] = values[place]
        return dict(sorted(drawn.items()))

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return the space as JSON."""
        return {name: {"kind": _KINDS[type(each)], **asdict(each)} for name, each in self.dimensions.items()}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Return the space that ``to_json`` described; raises ``KeyError`` or ``TypeError`` for other data."""
        dimensions: dict[str, Dimension] = {}
        for name, fields in record.items():
            match fields["kind"]:
                case "float":
                    dimensions[name] = FloatRange(fields["low"], fields["high"], fields["is_log"], fields["step"])
                case "int":
                    dimensions[name] = IntRange(fields["low"], fields["high"], fields["is_log"], fields["step"])
                case _:
                    dimensions[name] = Choices(tuple(fields["options"]))
        return cls(dimensions)

    def draw(self, chance: Random) -> dict[str, Value]:
        """Return a value at random for each setting."""
        return {name: dimension.draw(chance) for name, dimension in self.dimensions.items()}
