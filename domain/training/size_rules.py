"""Rules for the row length and the step size if the settings do not set them; they depend on the run alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.domain.training.budget import Budget

# Step Law: the best batch has 0.58 D^0.571 tokens, D being those of the run (Li et al., arXiv 2503.04715)
_FACTOR, _POWER = 0.58, 0.571
_FEWEST_TOKENS = 4096  # the law was fitted to runs of billions of tokens and gives too few for the smallest ones
_BYTES_A_TOKEN = 4
_SHORTEST, _LONGEST = 64, 4096
_SHARE, _SHARE_OF_WHOLE = 0.9, 0.99


def choose_rows(budget: Budget, length: int, ranks: int) -> tuple[int, str]:
    """Return the rows of a step over all ``ranks``, a power of two that the ranks can share, and the reason."""
    by_limit = [
        *([] if budget.tokens is None else [_FACTOR * budget.tokens**_POWER]),
        *([] if budget.steps is None else [(_FACTOR * budget.steps**_POWER) ** (1 / (1 - _POWER))]),  # of D = steps x B
    ]
    wanted = min(by_limit, default=0.0)
    tokens = max(wanted, _FEWEST_TOKENS)
    rows = 2 ** max(0, round(math.log2(tokens / length)))
    rows = -(-rows // ranks) * ranks
    law = f"the Step Law (arXiv 2503.04715) says about {wanted:,.0f} tokens"
    if not by_limit:
        law = "the tokens of the run are not known in advance"
    least = f", but the minimum is {_FEWEST_TOKENS:,}" if tokens > wanted else ""
    return rows, f"{law}{least}, in rows of {length}"


def choose_length(documents: Sequence[int], positions: int | None, *, are_divided: bool = True) -> tuple[int, str]:
    """Return the tokens of a row, and why: nine in ten of the ``documents`` (sizes in bytes) fit, the model permitting.

    If documents are not divided among rows (``are_divided``), 99 in 100 fit, as the others are left out or cut.
    ``positions`` is the maximum length of the model, None if it has no limit; without documents a row is as long as
    allowed.
    """
    most = min(_LONGEST, positions or _LONGEST)
    limit = (
        f"the model has {positions} positions" if most == positions else f"it is at most {_LONGEST} unless it is set"
    )
    if not documents:
        return most, f"the length of the documents is not known, and {limit}"
    share, words = (_SHARE, "nine in ten") if are_divided else (_SHARE_OF_WHOLE, "99 in 100")
    needed = sorted(documents)[math.ceil(share * len(documents)) - 1] / _BYTES_A_TOKEN
    length = 2 ** math.ceil(math.log2(max(needed, _SHORTEST)))
    sample = f"{words} of {len(documents)} documents have at most about {needed:,.0f} tokens"
    return (most, f"{sample}, and {limit}") if length > most else (length, sample)


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
