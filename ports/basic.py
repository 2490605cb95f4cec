"""Base classes for adapters that lack the optional abilities of their port.

Each base class implements the optional methods of its port and leaves the other methods abstract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from holdfast.domain.errors import StateError
from holdfast.ports.data_source import DataSource
from holdfast.ports.model_factory import Model, ModelFactory
from holdfast.ports.optimizer import Trainable, Update
from holdfast.ports.process_group import ProcessGroup
from holdfast.ports.state_store import StateStore, open_plainly
from holdfast.ports.token_source import TokenSource

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path
    from typing import SupportsFloat

    from numpy.typing import NDArray

    from holdfast.domain.checkpoints.retention import RollBackFloor
    from holdfast.domain.data.batch import Batch
    from holdfast.domain.data.data_files import DataFiles
    from holdfast.domain.training.text_generation import Sampling
    from holdfast.ports.data_source import Rejected, Remark, Unit
    from holdfast.ports.state_store import CheckpointInfo, JoinedPart, Loaded, OpenFile, RejectedCheckpoint, Snapshot


class BasicDataSource(DataSource):
    """A local source that identifies its data by ``fingerprint`` only and does not count bytes."""

    @override
    def confirming(self) -> DataSource:
        return self

    @override
    def expect(self, unit: Unit, start: int | None = None) -> None:
        pass

    @property
    @override
    def fetches_ahead(self) -> bool:
        return False

    @override
    def tell(self, unit: Unit, rejected: Rejected) -> str:
        return rejected.reason

    @override
    def release(self) -> None:
        pass

    @override
    def files(self) -> DataFiles | None:
        return None

    @override
    def identify(self, known: DataFiles | None = None) -> DataFiles | None:
        return self.files()

    @override
    def only(self, names: Collection[str]) -> DataSource | None:
        return None

    @override
    def remarks(self) -> Sequence[Remark]:
        return ()

    @property
    @override
    def bytes_read(self) -> int:
        return 0

    @property
    @override
    def read_retries(self) -> int:
        return 0


class BasicTokenSource(TokenSource):
    """A token source that is identified by ``fingerprint`` only."""

    @override
    def files(self) -> DataFiles | None:
        return None

    @override
    def identify(self, known: DataFiles | None = None) -> DataFiles | None:
        return self.files()


class BasicModelFactory(ModelFactory[Model]):
    """A factory that knows nothing about the model before it is built."""

    @override
    def check(self, *, vocabulary_size: int | None = None) -> None:
        pass

    @override
    def longest_row(self) -> int | None:
        return None

    @override
    def await_weights(self) -> None:
        pass

    @override
    def defer_weights(self) -> None:
        pass

    @override
    def count_parameters(self, *, vocabulary_size: int, end_of_text: int) -> int | None:
        return None


class BasicTrainable(Trainable):
    """A trainable of one process: it holds the whole state, reads texts of any length and can repeat an update.

    It evaluates each piece of a document by itself.
    """

    @property
    @override
    def is_retry_safe(self) -> bool:
        return True

    @property
    @override
    def memory_retries(self) -> int:
        return 0

    @property
    @override
    def is_sharded(self) -> bool:
        return False

    @property
    @override
    def num_positions(self) -> int | None:
        return None

    @override
    def evaluate_pieces(self, batch: Batch) -> tuple[SupportsFloat, NDArray[np.float64]]:
        pieces = [float(self.evaluate(piece)) if piece.num_targets else 0.0 for piece in batch.pieces()]
        return self.evaluate(batch), np.array(pieces, np.float64)

    @override
    def sum_over_ranks(self, losses: Sequence[SupportsFloat]) -> Sequence[SupportsFloat]:
        return losses

    @override
    def stream(
        self, prompt: Sequence[int], sampling: Sampling, *, end_of_text: int, tell: Callable[[int], object]
    ) -> None:
        for token in self.generate(prompt, sampling, end_of_text=end_of_text):
            tell(token)


class BasicUpdate(Update):
    """An update without further figures."""

    @override
    def figures(self) -> Mapping[str, SupportsFloat]:
        return {}


class BasicStateStore(StateStore):
    """A store with one writing process; it deletes nothing and verifies a checkpoint before restoring it."""

    @property
    @override
    def takes_shares(self) -> bool:
        return False

    @override
    def contribute(self, snapshot: Snapshot) -> None:
        """Raise ``StateError``: the store has one writing process."""
        msg = f"{type(self).__name__} cannot store the shares of several ranks: use the state store 'disk'"
        raise StateError(msg)

    @property
    @override
    def keeps_shares(self) -> bool:
        return False

    @override
    def leave_share(self, snapshot: Snapshot) -> None:
        """Raise ``StateError``: only whole checkpoints are saved."""
        msg = f"{type(self).__name__} cannot keep the share of one rank alone: only whole checkpoints are saved"
        raise StateError(msg)

    @override
    def complete_shares(self, num_ranks: int, joined: Callable[[], Sequence[JoinedPart]]) -> CheckpointInfo | None:
        return None

    @override
    def restore(self, into: Callable[[Path, OpenFile], object], *, at_most: int | None = None) -> Loaded:
        loaded = self.load(at_most=at_most)
        if loaded.folder is not None:
            into(loaded.folder, open_plainly)
        return loaded

    @override
    def tidy(self) -> None:
        pass

    @override
    def spare(self, floor: RollBackFloor) -> None:
        pass

    @override
    def scrub(self) -> Sequence[RejectedCheckpoint]:
        return ()


class BasicProcessGroup(ProcessGroup):
    """A group with a timeout of half an hour."""

    @property
    @override
    def timeout_seconds(self) -> float:
        return 1800.0
