"""The attention of a decoder whose rows several ranks divide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from typing_extensions import override

from holdfast.adapters.shared.decoder.decoder_attention import Attention, VarlenAttention

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.adapters.shared.modeling.context_parallel import ContextParallelism


@final
class ContextAttention(Attention):
    """Attention to all tokens of a row, by some of the heads on each rank."""

    def __init__(self, context: ContextParallelism) -> None:
        self._context = context
        self._inner = VarlenAttention()

    @override
    def separate(self, position_ids: Tensor, *, is_packed: bool | None) -> tuple[Tensor, int]:
        return self._context.documents

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, documents: Any, *, dropout: float) -> Tensor:
        query, key, value = (self._context.to_heads(each) for each in (query, key, value))
        return self._context.to_tokens(self._inner.attend(query, key, value, documents, dropout=dropout))
