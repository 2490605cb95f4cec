"""Ranks with the same rows count as one."""

from __future__ import annotations

import threading

from holdfast.adapters.process_group.memory import MemoryProcessGroup
from holdfast.application.training.step_engine import DataRanks
from holdfast.domain.training.parallel_mesh import ParallelMesh


def on_all(numbers):
    """Return rank, size and sum on each of four ranks, two of which have the same rows."""
    groups, found = MemoryProcessGroup.linked(4), {}

    def ask(group):
        ranks = DataRanks(group, ParallelMesh(shard=2, tensor=2))
        found[group.rank] = (ranks.rank, ranks.size, list(ranks.sum([numbers[group.rank]])))

    threads = [threading.Thread(target=ask, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(4)]


def test_a_sum_counts_each_group_of_rows_once():
    """Ranks 0 and 1 have one batch, and ranks 2 and 3 another."""
    assert on_all([5, 5, 7, 7]) == [(0, 2, [12]), (0, 2, [12]), (1, 2, [12]), (1, 2, [12])]


def test_a_wish_of_one_rank_is_seen_by_all():
    """A flag that a single rank raises makes the sum positive on each rank."""
    assert all(total[0] > 0 for _, _, total in on_all([0, 0, 0, 1]))
