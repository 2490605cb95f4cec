"""Files that were added to the data of a run after it began, and the epochs that read them first."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, final

from holdfast.domain.data.sample_order import EarlierSize, SampleOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.domain.data.mixture import Mixture


@final
@dataclass(frozen=True, slots=True)
class Growth:
    """The first epoch of each part of the data that was added, in the order of addition.

    None as the last of ``epochs`` means the first epoch that begins after the ``samples`` samples read so far.
    """

    epochs: tuple[int | None, ...] = ()
    samples: int = 0

    def resolve(self, rows: Sequence[int], mixture: Mixture) -> tuple[EarlierSize, ...]:
        """Return the number of rows before each part was added; ``rows`` are the numbers of rows of the parts.

        The first of ``rows`` is the number of rows with which the run began.
        """
        sizes = list(accumulate(rows))
        grown: tuple[EarlierSize, ...] = ()
        for size, known in zip(sizes, self.epochs, strict=False):
            last = grown[-1].until if grown else 0
            until = SampleOrder((size,), mixture, grown).next_epoch(self.samples) if known is None else known
            grown = (*grown, EarlierSize(max(last, until), size))
        return grown
