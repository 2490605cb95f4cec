"""In which ranges a file on another machine is fetched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

_BEYOND_BYTES = 1 << 18  # enough for the rest of most lines


@final
@dataclass(frozen=True, slots=True)
class RangeSteps:
    """Ranges of ``range_bytes`` of a file of ``size`` bytes, ``ahead`` of them beside the one that is read.

    From ``until`` on, where a part of the file ends but for its last line, nothing is fetched ahead, and ranges grow
    with the line.
    """

    size: int
    until: int
    range_bytes: int
    ahead: int

    def following(self, begin: int, pending: int) -> int | None:
        """Return where the range that begins at ``begin`` ends, None if it is not to be fetched behind ``pending``."""
        if begin >= self.size or pending > self.ahead:
            return None
        beyond = min(max(_BEYOND_BYTES, begin - self.until), self.range_bytes)
        if begin >= self.until:
            return None if pending else min(begin + beyond, self.size)
        end = min(begin + self.range_bytes, self.until)
        return end if end < self.until else min(end + beyond, self.size)
