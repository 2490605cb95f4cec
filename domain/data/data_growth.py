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
    """The ``epochs`` from which on each part that was added is read, in the order in which the parts were added.

    None, at the end, means the first epoch that begins after the ``samples`` samples read so far.
    """

    epochs: tuple[int | None, ...] = ()
    samples: int = 0

    def resolve(self, rows: Sequence[int], mixture: Mixture) -> tuple[EarlierSize, ...]:
        """Return the number of rows before each part was added, ``rows`` being those of each part.

        The first of ``rows`` are those that the run began with.
        """
        sizes = list(accumulate(rows))
        grown: tuple[EarlierSize, ...] = ()
        for size, known in zip(sizes, self.epochs, strict=False):
            last = grown[-1].until if grown else 0
            until = SampleOrder((size,), mixture, grown).next_epoch(self.samples) if known is None else known
            grown = (*grown, EarlierSize(max(last, until), size))
        return grown
