"""Published scaling laws for language models that are trained from scratch."""

from __future__ import annotations

import math
from dataclasses import dataclass

TOKENS_PER_PARAMETER = 20
"""Tokens for each parameter that make the best use of the compute: Hoffmann et al., arXiv 2203.15556."""


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The shape of a Llama, as in its Hugging Face config; ``vocabulary`` is the number of token ids."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocabulary: int
    tie_word_embeddings: bool

    @property
    def layer_parameters(self) -> int:
        """Return the number of weights of the matrices in all layers."""
        width, head = self.hidden_size, self.hidden_size // self.num_attention_heads
        attention = 2 * width * width + 2 * width * head * self.num_key_value_heads
        return self.num_hidden_layers * (attention + 3 * width * self.intermediate_size)

    @property
    def parameters(self) -> int:
        """Return the number of weights of the layers and the embeddings; norms are left out."""
        return self.layer_parameters + self.vocabulary * self.hidden_size * (1 if self.tie_word_embeddings else 2)


def training_flops(shape: LlamaShape, tokens: int, length: int) -> float:
    """Return the floating-point operations of the layers for ``tokens`` tokens in rows of ``length``.

    The count is that of the laws below: without embeddings, with attention (DeepSeek LLM, arXiv 2401.02954, eq. 2).
    """
    attention = 12.0 * shape.num_hidden_layers * shape.hidden_size * length
    return (6.0 * shape.layer_parameters + attention) * tokens


def best_learning_rate(flops: float) -> float:
    """Return the best peak learning rate of AdamW: DeepSeek LLM, arXiv 2401.02954, eq. 1; two digits."""
    return float(f"{0.3118 * flops**-0.1250:.2g}")


def best_batch_tokens(flops: float) -> float:
    """Return the best number of tokens of a step: DeepSeek LLM, arXiv 2401.02954, eq. 1."""
    return 0.2920 * math.pow(flops, 0.3271)


def rows_of_batch(batch_tokens: float, length: int) -> int:
    """Return the power of two that is next to the number of rows of ``length`` in a batch, at least 1."""
    return int(2 ** max(0, round(math.log2(batch_tokens / length))))
