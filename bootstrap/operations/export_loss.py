"""The held-out loss of a model before and after its export."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, final

from holdfast.bootstrap.operations.export_order import LossChange
from holdfast.domain.errors import ConfigurationError, DataError, StateError
from holdfast.domain.phase import Amount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
    from holdfast.bootstrap.operations.export_order import ExportOrder
    from holdfast.bootstrap.operations.trained_model import Trained
    from holdfast.domain.data.batch import Batch
    from holdfast.domain.phase import ShowPhase

_MOST_TEXTS = 50


@final
class LossComparison:
    """Compares the loss of ``trained`` with that of its export, on the documents that ``evaluate`` measures.

    The loss of the original is measured at once. Without any documents nothing is compared, and ``note`` says so.
    Raises ``ConfigurationError`` if there are none and the order limits the loss, and ``DataError`` or ``StateError``
    if they cannot be read.
    """

    def __init__(self, trained: Trained, model: CausalLanguageModel, order: ExportOrder, show: ShowPhase) -> None:
        self._order = order
        self._show = show
        self._batches = _batches_of(trained)
        self._decode = trained.tokenizer.decode
        self._before = self._measure(model, "of the original") if self._batches else math.nan
        self.note: str | None = None
        if not self._batches:
            self.note = "the run held out nothing to predict, so no loss was compared: --data FILE measures on others"
            if order.max_loss_increase is not None:
                msg = "--max-loss-increase needs documents, but the run held out nothing to predict: add --data FILE"
                raise ConfigurationError(msg)

    def texts(self) -> Sequence[str]:
        """Return the first documents as texts."""
        pieces = (piece for batch in self._batches for piece in batch.pieces())
        return [self._decode(piece.input_ids[0].tolist()) for piece, _ in zip(pieces, range(_MOST_TEXTS), strict=False)]

    def change(self, network: Any) -> LossChange | None:
        """Return the change of the loss to that of ``network``, None without documents.

        Raises ``StateError`` if that is not a number or beyond the limit of the order.
        """
        from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
        from holdfast.adapters.shared.modeling.loss_selection import choose_loss

        if not self._batches:
            return None
        model = CausalLanguageModel(network)
        choose_loss(model)
        num_targets = sum(batch.num_targets for batch in self._batches)
        change = LossChange(self._before, self._measure(model, "of the export"), num_targets)
        limit = self._order.max_loss_increase
        if not math.isfinite(change.after) and math.isfinite(change.before):
            msg = f"the held-out loss of the export is {change.after}: nothing was written, choose another format"
            raise StateError(msg)
        if limit is not None and not change.increase <= limit:
            msg = (
                f"the held-out loss of the export is {change.after:.4f} nats/token, {change.increase:+.2%} from the "
                f"original's {change.before:.4f} and beyond --max-loss-increase {limit:.2%}: nothing was written, "
                "choose a format with more bits or less sparsity"
            )
            raise StateError(msg)
        return change

    def _measure(self, model: CausalLanguageModel, whose: str) -> float:
        from holdfast.adapters.shared.modeling.mean_loss import mean_loss

        done, total = 0, sum(batch.num_targets for batch in self._batches)

        def passed(count: int) -> None:
            nonlocal done
            done += count
            self._show(f"measuring the loss {whose}", Amount(done, total, "tokens"))

        loss = mean_loss(model, self._batches, passed=passed)
        self._show("")
        return loss


def _batches_of(trained: Trained) -> Sequence[Batch]:
    try:
        return [batch for batch in trained.measured_batches() if batch.num_targets]
    except (DataError, StateError) as error:
        remedy = "name other documents with --data FILE, or write it unread with --unchecked"
        msg = f"the export cannot be compared with the original: {error}; {remedy}"
        raise type(error)(msg) from error
