"""Counts of the tokens in packed rows that a model is trained on."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Self

import numpy as np

from holdfast.domain.errors import DataError
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

    from holdfast.domain.data.batch import Batch
    from holdfast.domain.data.row_index import RowIndex

    Flags = Callable[[int, int], NDArray[np.bool_]]
    """A function from a range of tokens to a flag for each, bool (tokens,)."""

_AT_ONCE = 1 << 22  # tokens, so that memory does not grow with a shard


@dataclass(frozen=True, slots=True)
class Supervision:
    """The numbers of ``tokens`` in some ``rows``, and of those that are ``supervised``: targets of the model.

    ``pieces`` counts the documents in the rows, whose first token is never a target. ``rows_without_target`` have no
    target. ``replies`` are runs of targets in a document; ``replies_without_end`` have a last one that ends no reply.
    ``too_long`` counts the documents that are longer than a row.
    """

    tokens: int = 0
    supervised: int = 0
    pieces: int = 0
    rows: int = 0
    rows_without_target: int = 0
    replies: int = 0
    replies_without_end: int = 0
    too_long: int = 0

    def __add__(self, other: Supervision) -> Supervision:
        """Return the numbers of both together."""
        return Supervision(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    @classmethod
    def of_rows(cls, index: RowIndex, targets: Flags, ends: Flags, *, too_long: int = 0) -> Self:
        """Return the numbers of the rows of ``index``.

        ``targets`` and ``ends`` give, for the flat tokens from a position to before another one, which of them are
        trained on, and which of these end a reply. The first token of a piece is no target.
        """
        after = _sums(targets, index.starts + 1, index.lengths - 1)
        is_used = np.diff(index.rows) > 0
        replies, ended = (_runs(flags, targets, index.starts + 1, index.lengths - 1) for flags in (targets, ends))
        return cls(
            index.num_tokens,
            int(after.sum()),
            len(index.starts),
            int(is_used.sum()),
            rows_without_target=int(np.count_nonzero(_by_row(after, index.rows)[is_used] == 0)),
            replies=replies,
            replies_without_end=replies - ended,
            too_long=too_long,
        )

    @classmethod
    def of_batch(cls, batch: Batch, ends: Collection[int]) -> Self:
        """Return the numbers of the rows of ``batch``; ``ends`` are the ids that end a reply."""
        targets = batch.loss_mask
        is_used = batch.row_lengths > 0
        last = targets.copy()
        last[:, :-1] &= ~targets[:, 1:]  # the first token of a document is no target, so a reply ends before it
        is_end = last & np.isin(batch.input_ids, list(ends))
        return cls(
            batch.num_tokens,
            batch.num_targets,
            len(batch.starts),
            int(is_used.sum()),
            rows_without_target=int(np.count_nonzero(is_used & ~targets.any(axis=1))),
            replies=int(last.sum()),
            replies_without_end=int(last.sum() - is_end.sum()),
        )

    def check(self, source: str) -> None:
        """Raise ``DataError`` if the mask trains on no token of ``source`` or on all of them."""
        if not self.tokens:
            return
        if not self.supervised:
            msg = (
                f"no token{source} is trained on: the loss mask is false everywhere, so the model would learn nothing; "
                "look at the rows by the command data show, and check the chat template and data.chat.train_on"
            )
            raise DataError(msg)
        if self.supervised >= self.tokens - self.pieces:
            msg = (
                f"every token{source} is trained on, those of the prompts too: the loss mask is true everywhere; look "
                "at the rows by the command data show, and set data.task=text if this is what you want"
            )
            raise DataError(msg)

    def sentences(self, overflow: str, scope: str = "", *, has_replies: bool = True) -> Sequence[str]:
        """Return lines for a person; ``overflow`` is the treatment of documents that are ``too_long``.

        Without ``has_replies`` the tokens that are trained on are any, so that none of them need end anything.
        """
        part = f"{self.supervised:,} of {counted(self.tokens, 'token')} ({_share(self.supervised, self.tokens)})"
        lines = [f"trained on {part} in {counted(self.rows, 'row')}{scope}"]
        if has_replies and self.replies_without_end:
            share = _share(self.replies_without_end, self.replies)
            lines.append(
                f"warning: {self.replies_without_end:,} of {counted(self.replies, 'reply', 'replies')} ({share})"
                f"{scope} train no end; if many have none, the model does not learn to stop"
            )
        if self.rows_without_target:
            lines.append(f"warning: {counted(self.rows_without_target, 'row')} of {self.rows:,}{scope} train nothing")
        if self.too_long and overflow != "split":
            done = "left out" if overflow == "drop" else "cut after the tokens of a row"
            lines.append(
                f"warning: {counted(self.too_long, 'document')} {'is' if self.too_long == 1 else 'are'} longer than "
                f"data.sequence_length and {done}: raise it to train on all of them"
            )
        return lines


def _runs(flags: Flags, targets: Flags, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> int:
    """Return how many runs of ``targets``, in pieces of ``lengths`` tokens from ``starts`` on, end in ``flags``."""

    def last(begin: int, end: int) -> NDArray[np.bool_]:
        goes_on = np.append(targets(begin + 1, end), True)  # the pieces are counted without their last token
        goes_on[-1] = bool(targets(end, end + 1).any())
        ends: NDArray[np.bool_] = flags(begin, end) & ~goes_on
        return ends

    some = lengths > 0
    starts, lengths = starts[some], lengths[some]
    inner = _sums(last, starts, lengths - 1).sum()
    return int(inner + _sums(flags, starts + lengths - 1, np.ones_like(lengths)).sum())


def _share(part: int, whole: int) -> str:
    return f"{part / max(whole, 1):.1%}"


def _by_row(values: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    sums = np.append(0, np.cumsum(values))
    totals: NDArray[np.int64] = sums[rows[1:]] - sums[rows[:-1]]
    return totals


def _sums(flags: Flags, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of flags in each piece of ``lengths`` tokens from ``starts`` on."""
    places = np.unique(np.concatenate([starts, starts + lengths]))
    before = np.zeros(len(places), np.int64)
    total, end = 0, int(places[-1]) if len(places) else 0
    for begin in range(0, end, _AT_ONCE):
        stop = min(begin + _AT_ONCE, end)
        sums = np.append(0, np.cumsum(flags(begin, stop)))
        first, last = np.searchsorted(places, [begin, stop])
        before[first:last] = total + sums[places[first:last] - begin]
        total += int(sums[-1])
    before[places == end] = total
    found: NDArray[np.int64] = (
        before[np.searchsorted(places, starts + lengths)] - before[np.searchsorted(places, starts)]
    )
    return found
