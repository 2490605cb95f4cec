"""The ranks of a group as they share rows: those with the same rows count as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.domain.training.parallel_mesh import ParallelMesh
    from holdfast.ports.process_group import ProcessGroup


@final
@dataclass(frozen=True, slots=True)
class DataRanks:
    """The groups of ranks of ``mesh`` with the same rows; ``sum`` is collective, as that of ``group``."""

    group: ProcessGroup
    mesh: ParallelMesh

    @property
    def rank(self) -> int:
        """Return the number of this rank's group."""
        return self.mesh.data_rank(self.group.rank)

    @property
    def size(self) -> int:
        """Return the number of groups."""
        return self.mesh.data_ranks

    def sum(self, numbers: Sequence[float]) -> Sequence[float]:
        """Return the sum of each number over the groups; the ranks of a group pass the same numbers.

        If one rank alone passes a positive number, the sum is positive. Raises ``TrainingError`` if a rank is lost.
        """
        return [number / self.mesh.peers for number in self.group.sum(numbers)]
