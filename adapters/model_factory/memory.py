"""Builds a bigram model in numpy, for tests and examples."""

from __future__ import annotations

from typing import final

import numpy as np
from typing_extensions import override

from holdfast.adapters.shared.toy_bigram import BigramModel
from holdfast.ports.basic import BasicModelFactory


@final
class MemoryModelFactory(BasicModelFactory[BigramModel]):
    """Builds a bigram model with normally distributed logits."""

    @override
    def build(self, *, vocabulary_size: int, end_of_text: int, seed: int) -> BigramModel:
        generator = np.random.default_rng(seed)
        return BigramModel(generator.normal(scale=0.1, size=(vocabulary_size, vocabulary_size)))
