"""What is trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

Model = TypeVar("Model")


class ModelFactory(ABC, Generic[Model]):
    """Builds a bare language model that knows its own loss.

    ``Model`` is whatever the optimizer adapter beside it trains; for torch it is
    ``holdfast.adapters.shared.modeling.causal_language_model.CausalLanguageModel``, whose forward maps a batch to the
    summed loss of its targets.

    - Two builds with one seed are equal, bit for bit, also in another process; another seed gives another model,
      unless weights are loaded.
    - The model knows nothing of devices, ranks or precision: fp32 weights in host memory, in training mode.
    - A model that cannot embed ``vocabulary_size`` ids raises ``ConfigurationError``.
    - Building leaves the process's random state as it was.
    """

    @abstractmethod
    def check(self, *, vocabulary_size: int | None = None) -> None:
        """Raise ``ConfigurationError`` for what ``build`` would refuse, as far as the model's description alone tells.

        No weights are read. Without ``vocabulary_size`` there is no tokenizer yet.
        """

    @abstractmethod
    def longest_row(self) -> int | None:
        """Return how many positions the model has, as far as its description tells; None if it knows no limit."""

    @abstractmethod
    def await_weights(self) -> None:
        """Leave weights that ``build`` would load unread from now on, as each of them is restored from elsewhere."""

    @abstractmethod
    def build(self, *, vocabulary_size: int, end_of_text: int, seed: int) -> Model:
        """Return the model, its weights drawn by ``seed`` or loaded; ``end_of_text`` is the id that ends a document."""

    @abstractmethod
    def count_parameters(self, *, vocabulary_size: int, end_of_text: int) -> int | None:
        """Return how many parameters ``build`` would make, without the memory for them; None if nobody can tell."""
