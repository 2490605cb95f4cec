"""One of several parts of some work, which processes do without knowing of each other."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeVar

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

_WRITTEN = re.compile(r"(\d{1,19})/(\d{1,19})", re.ASCII)


@dataclass(frozen=True, slots=True)
class WorkPart:
    """The part ``number`` of ``count``, counted from 0: every ``count``-th piece of the work."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the part that is written as ``3/8``; raises ``ConfigurationError`` if there is none."""
        written = _WRITTEN.fullmatch(text)
        if written is None or not int(written[1]) < int(written[2]):
            msg = f"{text!r} is no part: write a number from 0 and the number of parts, such as 0/4 to 3/4"
            raise ConfigurationError(msg)
        return cls(int(written[1]), int(written[2]))

    def __str__(self) -> str:
        """Return the part as ``parse`` reads it."""
        return f"{self.number}/{self.count}"

    def of(self, pieces: Sequence[T]) -> Sequence[T]:
        """Return the pieces of this part, in their order."""
        return pieces[self.number :: self.count]


WHOLE = WorkPart(0, 1)
"""All of the work."""
NO_WORK = WorkPart(sys.maxsize - 1, sys.maxsize)
"""A part without any piece."""
