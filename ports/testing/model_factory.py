"""The contract of ``ModelFactory``: derive from ``ModelFactoryContract`` and implement its hooks."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from abc import ABC, abstractmethod
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import DTypeLike, NDArray

    from holdfast.ports.model_factory import ModelFactory

VOCABULARY_SIZE = 257
END_OF_TEXT = 256

_ELSEWHERE = """
import importlib, sys
contract = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])()
print(contract.digest(seed=int(sys.argv[3])))
"""


class ModelFactoryContract(ABC):
    """The contract of every ``ModelFactory``: one test for each promise.

    Define the subclass at the top level of an importable module, and let it need no argument: another process creates
    it again. ``dtype`` is the dtype of the weights.
    """

    dtype: ClassVar[DTypeLike] = np.float32

    @abstractmethod
    def make_factory(self) -> ModelFactory[Any]:
        """Return a factory that draws weights for at least ``VOCABULARY_SIZE`` ids."""

    @abstractmethod
    def weights(self, model: Any) -> Mapping[str, NDArray[Any]]:
        """Return the model's weights by name, each in its own shape and dtype; fail if they are not in host memory."""

    @abstractmethod
    def is_training(self, model: Any) -> bool:
        """Return whether the model is in training mode."""

    @abstractmethod
    def make_factory_without(self, vocabulary_size: int) -> ModelFactory[Any] | None:
        """Return a factory whose model cannot embed ``vocabulary_size`` ids, or None if its models always can."""

    def random_states(self) -> Mapping[str, object]:
        """Return the states of the process's random generators; the values can be compared with ``==``."""
        legacy = np.random.get_state(legacy=False)  # noqa: NPY002  the process's own generator is what is watched
        return {"random": random.getstate(), "numpy": repr(legacy)}

    def build(self, *, seed: int) -> Any:
        """Return a new model of a new factory."""
        return self.make_factory().build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=seed)

    def digest(self, *, seed: int) -> str:
        """Return a hash of names, shapes and bytes of a new model's weights."""
        hashed = sha256()
        for name, array in sorted(self.weights(self.build(seed=seed)).items()):
            hashed.update(f"{name} {array.dtype} {array.shape}".encode())
            hashed.update(np.ascontiguousarray(array).tobytes())
        return hashed.hexdigest()

    def test_equal_seeds_build_equal_models(self) -> None:
        """Two builds with one seed are equal, bit for bit."""
        assert self.digest(seed=1) == self.digest(seed=1)

    def test_one_factory_builds_equal_models_again(self) -> None:
        """A factory that has built a model builds an equal model again: the weights depend on the seed alone."""
        factory = self.make_factory()
        first, second = (
            self.weights(factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=1))
            for _ in range(2)
        )
        assert first.keys() == second.keys()
        assert all(np.array_equal(first[name], second[name]) for name in first)

    def test_models_share_no_memory(self) -> None:
        """Changing a model's weights does not change the next model of the same factory."""
        factory = self.make_factory()
        first, second = (
            self.weights(factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=1))
            for _ in range(2)
        )
        assert not any(np.shares_memory(first[name], second[name]) for name in first)

    def test_another_seed_builds_another_model(self) -> None:
        """Another seed gives other weights, if weights are drawn."""
        assert self.digest(seed=1) != self.digest(seed=2)

    def test_another_process_builds_the_same_model(self) -> None:
        """Two builds with one seed are equal also in another process."""
        kind = type(self)
        elsewhere = subprocess.run(  # noqa: S603  this interpreter on the text above
            [sys.executable, "-c", _ELSEWHERE, kind.__module__, kind.__qualname__, "1"],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "7"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert elsewhere.returncode == 0, elsewhere.stderr
        assert elsewhere.stdout.split()[-1] == self.digest(seed=1)

    def test_weights_have_full_precision_in_host_memory(self) -> None:
        """Weights have full precision and lie in host memory."""
        weights = self.weights(self.build(seed=1))
        assert weights
        assert {array.dtype for array in weights.values()} == {np.dtype(self.dtype)}

    def test_the_model_is_in_training_mode(self) -> None:
        """A new model is in training mode."""
        assert self.is_training(self.build(seed=1))

    def test_weights_are_finite(self) -> None:
        """The weights of a new model are finite."""
        assert all(np.isfinite(array).all() for array in self.weights(self.build(seed=1)).values())

    def test_a_vocabulary_that_does_not_fit_is_refused(self) -> None:
        """A vocabulary that the model cannot embed raises ``ConfigurationError``, not an index error later."""
        factory = self.make_factory_without(VOCABULARY_SIZE)
        if factory is None:
            pytest.skip("this factory makes each model as large as the vocabulary")
        with pytest.raises(ConfigurationError, match=str(VOCABULARY_SIZE)):
            factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=1)

    def test_the_longest_row_is_told_before_anything_is_built(self) -> None:
        """``longest_row`` is a number of positions, or None where there is no limit."""
        longest = self.make_factory().longest_row()
        assert longest is None or longest >= 1

    def test_what_can_be_built_passes_the_check(self) -> None:
        """If ``build`` succeeds, ``check`` raises nothing, with or without a vocabulary, and draws no random number."""
        before = self.random_states()
        self.make_factory().check()
        self.make_factory().check(vocabulary_size=VOCABULARY_SIZE)
        assert self.random_states() == before

    def test_building_leaves_the_random_state_of_the_process(self) -> None:
        """``build`` does not change the states of the process's random generators."""
        self.build(seed=2)  # or an earlier build with the same seed may have left the very state that this one would
        before = self.random_states()
        self.build(seed=1)
        assert self.random_states() == before
