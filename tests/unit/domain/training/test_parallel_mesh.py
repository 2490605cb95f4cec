"""The mesh of ranks divides rows and weights as it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.parallel_mesh import ParallelMesh

SIZES = st.integers(1, 4)


@given(replicate=SIZES, shard=SIZES, context=SIZES, tensor=SIZES)
def test_each_group_of_rows_has_the_same_number_of_consecutive_ranks(replicate, shard, context, tensor):
    """Ranks with the same rows are neighbours, and there are as many groups as replicas and shards together."""
    mesh = ParallelMesh.of(replicate * shard * context * tensor, replicate=replicate, context=context, tensor=tensor)
    assert mesh == ParallelMesh(replicate, shard, context, tensor)
    groups = [mesh.data_rank(rank) for rank in range(mesh.num_ranks)]
    assert groups == [number for number in range(replicate * shard) for _ in range(context * tensor)]
    assert (mesh.data_ranks, mesh.peers) == (replicate * shard, context * tensor)


def test_a_number_of_processes_that_the_axes_do_not_divide_is_refused():
    """The sentence names the axes and the numbers."""
    with pytest.raises(ConfigurationError, match="context 2 x tensor 3, which needs a multiple of 6 processes, and "):
        ParallelMesh.of(8, context=2, tensor=3)


def test_the_stages_of_a_pipeline_have_the_same_rows():
    """All ranks of a pipeline are one data rank."""
    mesh = ParallelMesh.of(4, pipeline=4)
    assert (mesh.num_ranks, mesh.data_ranks, mesh.peers) == (4, 1, 4)
    assert {mesh.data_rank(rank) for rank in range(4)} == {0}


@pytest.mark.parametrize("axes", [{}, {"tensor": 2}, {"context": 2}, {"replicate": 2}])
def test_a_pipeline_takes_all_processes_and_no_other_axis(axes):
    """The sentence names the number of processes that a pipeline takes."""
    with pytest.raises(ConfigurationError, match="pipeline=2 takes exactly 2 processes and no other axis"):
        ParallelMesh.of(4, pipeline=2, **axes)


@pytest.mark.parametrize(
    ("mesh", "text"),
    [
        (ParallelMesh(shard=4), "4"),
        (ParallelMesh(2, 2, 1, 2), "8 (replicate 2, tensor 2)"),
        (ParallelMesh(pipeline=2), "2 (pipeline 2)"),
    ],
)
def test_its_text_has_the_axes_beyond_plain_data_parallelism(mesh, text):
    """A run without a mesh is described by its number of processes, as earlier versions did."""
    assert str(mesh) == text
