"""The models that are measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from transformers import AutoConfig, AutoModelForCausalLM

if TYPE_CHECKING:
    from collections.abc import Mapping

_MEMORY = 139 << 30  # bytes of the GPU that ``micro_batch`` is meant for


@final
@dataclass(frozen=True, slots=True)
class Size:
    """A Llama: its shape, the tokens in a row, the rows in a batch, and those at once on a GPU of 140 GiB."""

    name: str
    width: int
    layers: int
    inner: int
    heads: int
    vocabulary: int = 32_000
    length: int = 2048
    rows: int = 64
    micro_batch: int = 16

    @property
    def fields(self) -> Mapping[str, object]:
        """Return the fields of the Hugging Face config."""
        return {
            "hidden_size": self.width,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads // (3 if self.heads % 3 == 0 else 4),
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": True,
        }

    def micro_batch_within(self, memory: int) -> int:
        """Return the rows at once on a GPU with ``memory`` bytes, a divisor of ``rows``."""
        share = max(1, self.micro_batch * memory // _MEMORY)
        return max(rows for rows in range(1, share + 1) if self.rows % rows == 0)

    def flops_per_token(self) -> float:
        """Return forward and backward FLOPs: six a weight plus attention (PaLM, appendix B)."""
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **self.fields))
        weights: int = sum(p.numel() for p in model.parameters())
        return 6.0 * weights + 12.0 * self.layers * self.width * self.length


SIZES = (
    Size("1B", width=2048, layers=16, inner=8192, heads=32),
    Size("124M", width=768, layers=12, inner=3072, heads=12, micro_batch=32),
    Size("3B", width=3072, layers=28, inner=8192, heads=24, rows=32, micro_batch=8),
    Size("360M", width=1024, layers=24, inner=4096, heads=16, micro_batch=32),
)
TINY = Size("tiny", width=96, layers=1, inner=128, heads=3, vocabulary=512, length=32, rows=2, micro_batch=1)
