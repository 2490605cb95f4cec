"""In which ranges a file on another machine is fetched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

BEYOND_BYTES = 1 << 18  # enough for the rest of most lines

_FURTHER_BYTES = 1 << 20  # and of nearly all others, so that their reader waits once
_SMALL_REST = 32  # what is left of a part and is so many times smaller than a range needs no request of its own


@final
@dataclass(frozen=True, slots=True)
class RangeSteps:
    """Ranges of ``range_bytes`` of a file of ``size`` bytes, ``ahead`` of them beside the one that is read.

    From ``until`` on, where a part of the file ends but for its last line, nothing is fetched ahead but ``beyond``
    bytes with the part's end, and ranges grow with the line.
    """

    size: int
    until: int
    range_bytes: int
    ahead: int
    beyond: int = BEYOND_BYTES

    def following(self, begin: int, pending: int) -> int | None:
        """Return where the range that begins at ``begin`` ends, None if it is not to be fetched behind ``pending``."""
        if begin >= self.size or pending > self.ahead:
            return None
        if begin >= self.until:
            further = min(max(_FURTHER_BYTES, begin - self.until), self.range_bytes)
            return None if pending else min(begin + further, self.size)
        end = min(begin + self.range_bytes, self.until)
        if (self.until - end) * _SMALL_REST <= self.range_bytes:
            end = min(self.until + min(self.beyond, self.range_bytes), self.size)
        return end
