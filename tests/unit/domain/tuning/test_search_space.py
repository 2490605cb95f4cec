from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.tuning.search_space import Choices, FloatRange, IntRange, SearchSpace

GRID = SearchSpace({"b": IntRange(1, 5, step=2), "a": Choices(("x", "y")), "c": FloatRange(0.0, 0.5, step=0.25)})


def test_the_order_of_writing_has_no_effect():
    """Two spaces with the same settings in another order are the same."""
    one = SearchSpace({"b": IntRange(1, 2), "a": Choices(("x",))})
    other = SearchSpace({"a": Choices(("x",)), "b": IntRange(1, 2)})
    assert [*one.dimensions] == [*other.dimensions] == ["a", "b"]
    assert one.draw(Random(1)) == other.draw(Random(1))


def test_a_grid_has_each_combination_once():
    """The numbers of a grid give all combinations of the values, each once, and then begin anew."""
    points = [tuple(GRID.point(number).items()) for number in range(GRID.num_points)]
    assert len({*points}) == len(points) == 2 * 3 * 3
    assert points[0] == (("a", "x"), ("b", 1), ("c", 0.0))
    assert points[1] == (("a", "x"), ("b", 1), ("c", 0.25))
    assert tuple(GRID.point(GRID.num_points).items()) == points[0]


def test_a_range_without_steps_cannot_be_counted():
    """Only a range of numbers without a step is uncounted, and one of a single number is not."""
    space = SearchSpace({"a": FloatRange(0.0, 1.0), "b": FloatRange(1.0, 1.0), "c": IntRange(1, 9, is_log=True)})
    assert space.uncounted == ("a",)
    assert GRID.uncounted == ()


@given(st.integers(0, 10**6))
def test_a_draw_lies_in_the_space(seed):
    """Each value that is drawn is one that the space has."""
    space = SearchSpace(
        {
            "log": FloatRange(1e-5, 1e-1, is_log=True),
            "even": FloatRange(-1.0, 1.0),
            "step": FloatRange(0.0, 1.0, step=0.3),
            "int": IntRange(1, 64, is_log=True),
            **GRID.dimensions,
        }
    )
    found = space.draw(Random(seed))
    assert 1e-5 <= found["log"] <= 1e-1
    assert -1.0 <= found["even"] <= 1.0
    assert found["step"] in space.dimensions["step"].values
    assert 1 <= found["int"] <= 64
    assert all(found[name] in dimension.values for name, dimension in GRID.dimensions.items())


@pytest.mark.parametrize("is_log", [False, True])
def test_whole_numbers_reach_both_ends(is_log):
    """Each whole number of a range is drawn, the first and the last one too."""
    dimension, chance = IntRange(2, 5, is_log=is_log), Random(0)
    assert {dimension.draw(chance) for _ in range(300)} == {2, 3, 4, 5}


def test_a_space_is_read_back_from_json():
    """The JSON of a space gives the same space."""
    space = SearchSpace({**GRID.dimensions, "rate": FloatRange(1e-5, 1e-1, is_log=True)})
    assert SearchSpace.from_json(json.loads(json.dumps(space.to_json()))) == space
