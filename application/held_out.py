"""The documents that a run is evaluated on."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, final

from application.documents import NothingToReadError, stream_documents, tokenize
from domain.cursor import Cursor
from domain.errors import DataError
from domain.packing import ConcatPacker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from application.feed import FeedPlan
    from domain.batch import Batch
    from domain.holdout import Holdout
    from ports.data_source import DataSource
    from ports.tokenizer import Tokenizer


@final
class HeldOut:
    """Held-out documents as packed batches, the first ``max_tokens`` of them in the order of epoch 0; kept in memory.

    The set is a pure function of the data, the seed and the tokenizer, so evaluations of one run compare.
    """

    def __init__(
        self, source: DataSource, tokenizer: Tokenizer, holdout: Holdout, plan: FeedPlan, *, max_tokens: int
    ) -> None:
        self._source = source
        self._tokenizer = tokenizer
        self._holdout = holdout
        self._plan = plan
        self._max_tokens = max_tokens

    @cached_property
    def batches(self) -> Sequence[Batch]:
        """Return the batches; raises ``DataError`` if no document is held out."""
        documents = stream_documents(self._source, Cursor(), seed=self._plan.seed, epochs=1, wanted=self._holdout.holds)
        packer = ConcatPacker(self._plan.sequence_length)
        try:
            for tokens, document in tokenize(documents, self._tokenizer):
                packer.add(tokens[: self._max_tokens - packer.held], document.start, document.end)
                if packer.held >= self._max_tokens:
                    break
        except NothingToReadError as error:
            msg = f"no document was held out to evaluate on: raise data.holdout, now {self._holdout.fraction}"
            raise DataError(msg) from error
        rest = packer.take_rest()
        return list(rest.split(self._plan.rows)) if rest is not None else []
