"""Helpers of the contract suite ``holdfast.ports.testing.optimizer``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from holdfast.domain.data.packing import ConcatPacking, place_rows
from holdfast.domain.data.row_index import read_rows
from holdfast.ports.state_store import JoinedPart, StatePart

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from weakref import ReferenceType

    from numpy.typing import NDArray

    from holdfast.domain.data.batch import Batch
    from holdfast.ports.optimizer import Optimizer, Trainable

VOCABULARY_SIZE = 257
END_OF_TEXT = 256
_LENGTHS = (5, 16, 3, 20, 9, 7, 1, 30, 2)  # documents of a batch of 6 rows of 16 tokens, 3 of them padding


def write(parts: Iterable[StatePart | JoinedPart], folder: Path) -> Path:
    """Write ``parts`` into ``folder``, which is created, and return it."""
    folder.mkdir()
    for name, data in files_of(parts).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def files_of(parts: Iterable[StatePart | JoinedPart]) -> dict[str, bytes]:
    """Return the bytes of the files made of the ``parts`` of all ranks, to compare two states."""
    parts = list(parts)
    joined = [part for part in parts if isinstance(part, JoinedPart)]
    files = {part.name: b"".join(part.chunks()) for part in parts if isinstance(part, StatePart)}

    def read(name: str, offset: int, size: int) -> bytes:
        return files[name][offset : offset + size]

    made = {part.name: b"".join(part.chunks(read)) for part in joined}
    consumed = {name for part in joined for name in part.consumes}
    return {name: data for name, data in (files | made).items() if name not in consumed}


def packed_batch(*, seed: int = 0) -> Batch:
    """Return a batch of 6 rows of 16 tokens with documents that cross rows; the last row is padded."""
    generator = np.random.default_rng(seed)
    documents = [np.append(generator.integers(0, END_OF_TEXT, length - 1), END_OF_TEXT) for length in _LENGTHS]
    return read_rows(place_rows(documents, ConcatPacking(16)), 16)


def without_targets(batch: Batch) -> Batch:
    """Return ``batch`` with every token as a document of its own, so that no token is a target."""
    return replace(batch, starts=np.flatnonzero(batch.document_ids >= 0))


def masked(batch: Batch, *, seed: int = 0) -> tuple[Batch, Batch]:
    """Return ``batch`` trained on some of its tokens, whole rows without a target among them, and on all others."""
    supervised = np.random.default_rng(seed).random(batch.input_ids.shape) < 0.4
    supervised[[1, -1]] = False
    return replace(batch, supervised=supervised), replace(batch, supervised=~supervised)


def take_step(
    trainable: Trainable, batch: Batch, *, step: int, rate: float, rows: int = 1 << 30
) -> tuple[float, float]:
    """Train on ``batch`` in parts of ``rows`` rows; return its summed loss and the gradient's norm."""
    parts = list(batch.split(rows))
    with trainable.update(step=step, learning_rate=rate) as update:
        losses = [update.accumulate(part, weight=1 / batch.num_targets, last=part is parts[-1]) for part in parts]
        norm = update.apply()
    return math.fsum(map(float, losses)), float(norm)


class OptimizerCases(ABC):
    """Hooks that an optimizer's contract test must implement, and helpers for its tests.

    ``tolerance`` is the maximum rounding error of sums in another order, relative for losses and norms, absolute for
    weights. ``rate`` is a learning rate that trains the model.
    """

    tolerance: ClassVar[float]
    rate: ClassVar[float] = 0.01

    @abstractmethod
    def make_optimizer(self, *, seed: int = 0) -> Optimizer[Any]:
        """Return an optimizer for the models below."""

    @abstractmethod
    def make_model(self) -> Any:
        """Return a model of ``VOCABULARY_SIZE`` ids and at least 64 positions, the same each time, without dropout."""

    @abstractmethod
    def make_other_model(self) -> Any:
        """Return a model with other weight shapes."""

    @abstractmethod
    def make_model_with_dropout(self) -> Any | None:
        """Return a model with dropout, or None if there is none."""

    @abstractmethod
    def prepare_short_of_memory(self) -> tuple[Trainable, Sequence[ReferenceType[Any]]]:
        """Return a trainable with memory for one row at a time, and weak references to the memory of larger parts.

        The references are added while parts are tried; there are none if nothing is allocated before the error.
        """

    @abstractmethod
    def read_weights(self, folder: Path) -> Mapping[str, NDArray[Any]]:
        """Return the model's weights by name, each in its own shape and dtype, from the files of ``capture``."""

    def prepare(self, *, seed: int = 0) -> Trainable:
        """Return a new trainable; all trainables of the same seed are equal."""
        return self.make_optimizer(seed=seed).prepare(self.make_model())

    def need_retries(self, trainable: Trainable) -> None:
        """Skip the test if ``trainable`` cannot repeat an update (``is_retry_safe`` is False)."""
        if not trainable.is_retry_safe:
            pytest.skip("this optimizer says that an update which was begun must be finished")

    def trained(self, steps: int) -> Trainable:
        """Return a new trainable after ``steps`` steps."""
        trainable = self.prepare()
        self.train(trainable, range(1, steps + 1))
        return trainable

    def train(self, trainable: Trainable, steps: Iterable[int]) -> None:
        """Take the steps numbered ``steps``, each on its own batch."""
        for step in steps:
            take_step(trainable, packed_batch(seed=step), step=step, rate=self.rate)

    def weights_of(self, trainable: Trainable, tmp_path: Path) -> Mapping[str, NDArray[Any]]:
        """Return the weights of ``trainable`` by name, each in its own shape and dtype, from its ``capture``."""
        with TemporaryDirectory(dir=tmp_path) as scratch:
            return self.read_weights(write(trainable.capture(), Path(scratch) / "state"))
