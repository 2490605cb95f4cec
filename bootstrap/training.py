"""What is made of several settings or parts at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from domain.schedule import WarmupCosine

if TYPE_CHECKING:
    from domain.budget import Budget
    from ports.model_factory import Model, ModelFactory
    from ports.tokenizer import Tokenizer


def build_model(factory: ModelFactory[Model], tokenizer: Tokenizer, seed: int) -> Model:
    """Return a new model for the vocabulary of ``tokenizer``."""
    return factory.build(vocabulary_size=tokenizer.vocabulary_size, end_of_text=tokenizer.end_of_text, seed=seed)


def schedule(peak: float, warmup_steps: int, floor: float, budget: Budget) -> WarmupCosine:
    """Return the learning rates of a run; ``floor`` is a share of ``peak``."""
    return WarmupCosine(peak, warmup_steps, peak * floor, budget)
