"""The port for the model to train."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

Model = TypeVar("Model")


class ModelFactory(ABC, Generic[Model]):
    """Builds a bare language model that computes its own loss.

    ``Model`` is the type that the optimizer adapter trains; for torch it is
    ``holdfast.adapters.shared.modeling.causal_language_model.CausalLanguageModel``, whose forward maps a batch to the
    summed loss of its targets.

    - Two builds with the same seed are equal, bit for bit, also in another process; a different seed gives a different
      model, unless weights are loaded.
    - The model is independent of devices, ranks and precision: fp32 weights in host memory, in training mode.
    - A model that cannot embed ``vocabulary_size`` ids raises ``ConfigurationError``.
    - Building does not change the process's random state.
    """

    @abstractmethod
    def check(self, *, vocabulary_size: int | None = None) -> None:
        """Raise ``ConfigurationError`` if the description of the model shows that ``build`` would raise it.

        Reads no weights. ``vocabulary_size`` is None if there is no tokenizer yet.
        """

    @abstractmethod
    def longest_row(self) -> int | None:
        """Return the number of positions of the model as in its description; None if there is no limit."""

    @abstractmethod
    def await_weights(self) -> None:
        """Make ``build`` skip the loading of weights from now on, because all of them will be restored afterwards."""

    @abstractmethod
    def defer_weights(self) -> None:
        """Let ``build`` leave the weights to the optimizer from now on, so that each rank has only its part of them.

        They have the same values. The model cannot be used before the optimizer has prepared it, and errors about
        weights are raised only then. A factory that cannot do so builds the model with its weights.
        """

    @abstractmethod
    def build(self, *, vocabulary_size: int, end_of_text: int, seed: int) -> Model:
        """Return the model, its weights drawn by ``seed`` or loaded; ``end_of_text`` is the id that ends a document.

        Raises ``ConfigurationError`` if the model cannot embed ``vocabulary_size`` ids.
        """

    @abstractmethod
    def count_parameters(self, *, vocabulary_size: int, end_of_text: int) -> int | None:
        """Return the number of parameters of the model, without allocating them; None if unknown."""
