"""Text from a trained model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from domain.sampling import Sampling
    from ports.optimizer import Trainable
    from ports.tokenizer import Tokenizer


def generate(trainable: Trainable, tokenizer: Tokenizer, prompt: str, sampling: Sampling) -> str:
    """Return ``prompt`` and what the model writes behind it; an empty prompt starts a new document."""
    ids = [int(token) for token in tokenizer.encode([prompt]).ids] or [tokenizer.end_of_text]
    new = trainable.generate(ids, sampling, end_of_text=tokenizer.end_of_text)
    return prompt + tokenizer.decode(new)
