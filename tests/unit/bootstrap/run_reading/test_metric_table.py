from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.bootstrap.run_reading.metric_table import MetricTable


def table_of(values, first=1, name="loss", piece=1000):
    """Return a table with one metric, filled in pieces."""
    table, values = MetricTable(), np.asarray(values, np.float64)
    for start in range(0, len(values), piece):
        part = values[start : start + piece]
        table.extend(start * 10, np.arange(first + start, first + start + len(part)), {name: part})
    return table


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400),
    width=st.integers(1, 50),
    piece=st.integers(1, 400),
)
def test_a_curve_shows_each_peak_and_the_mean(values, width, piece):
    """However a curve is reduced, its extremes are those of the values, and its mean weighs each value once."""
    curve = table_of(values, piece=piece).curves(["loss"], width=width)["loss"]
    low = curve.value if curve.low is None else curve.low
    high = curve.value if curve.high is None else curve.high
    assert low.min() == min(values)
    assert high.max() == max(values)
    assert len(curve.step) <= width + 1
    ids = np.arange(1, len(values) + 1) // curve.bucket
    counts = np.unique(ids, return_counts=True)[1]
    assert (curve.value * counts).sum() / len(values) == pytest.approx(np.mean(values), abs=1e-6)


def test_a_single_spike_of_a_long_run_stays():
    """One spike in 100,000 steps is in a curve of 100 points, at its place."""
    values = np.full(100_000, 2.0)
    values[54_321] = 9.0
    curve = table_of(values).curves(["loss"], width=100)["loss"]
    at = int(curve.high.argmax())
    assert curve.high[at] == 9.0
    assert curve.step[at] - curve.bucket < 54_322 <= curve.step[at]


def test_a_range_of_a_curve_is_finer():
    """The same width over fewer steps has smaller buckets, down to the recorded values."""
    table = table_of(np.arange(50_000.0))
    assert table.curves(["loss"], width=100)["loss"].bucket == 512
    fine = table.curves(["loss"], 20_001, 20_050, width=100)["loss"]
    assert fine.bucket == 1
    assert fine.step.tolist() == list(range(20_001, 20_051))
    assert fine.value.tolist() == [step - 1.0 for step in range(20_001, 20_051)]


def test_the_tail_of_a_curve_continues_it():
    """Points from the beginning of the last bucket on replace it, so a page fetches only those."""
    values = np.arange(10_000.0)
    before, after = table_of(values[:9_000]), table_of(values)
    known = before.curves(["loss"], width=100)["loss"]
    since = int(known.step[-1]) // known.bucket * known.bucket
    tail = after.curves(["loss"], since, None, bucket=known.bucket)["loss"]
    whole = after.curves(["loss"], bucket=known.bucket)["loss"]
    kept = known.step < since
    assert np.concatenate([known.step[kept], tail.step]).tolist() == whole.step.tolist()
    assert np.concatenate([known.value[kept], tail.value]).tolist() == whole.value.tolist()


def test_values_that_are_no_numbers_leave_the_others():
    """NaN and infinities change neither mean nor extremes of their bucket, and a bucket of them alone is left out."""
    values = np.full(400, 3.0)
    values[10], values[11], values[200:260] = np.nan, np.inf, np.nan
    curve = table_of(values).curves(["loss"], width=30)["loss"]
    assert curve.bucket == 16
    assert set(curve.value) == set(curve.low) == set(curve.high) == {3.0}
    assert not {223, 239} & set(curve.step.tolist())


def test_a_rate_is_averaged_over_time():
    """Steps of 1,000 and 10 tokens a second take as long as two steps at 19.8, not at 505."""
    curve = table_of([1000.0, 10.0] * 64, first=0, name="tokens_per_second").curves(["tokens_per_second"], width=16)
    assert curve["tokens_per_second"].value[0] == pytest.approx(19.80198)


def test_a_million_rows_take_little_memory():
    """Columns that never change take nothing, and late values of all but the loss are short."""
    table, names = MetricTable(), ["loss", "lr", "micro_batch"]
    for start in range(0, 400_000, 5000):
        steps = np.arange(start, start + 5000)
        table.extend(start, steps, {"loss": steps / 3, "lr": steps / 7, "micro_batch": np.full(5000, 4.0)})
    blocks = table._blocks
    sizes = {name: sum(np.asarray(block.columns[name]).nbytes for block in blocks) for name in names}
    assert sizes["loss"] == 400_000 * 8
    assert sizes["lr"] < 400_000 * 7
    assert sizes["micro_batch"] <= len(blocks) * 8
    assert table.latest("loss") == (399_999, 399_999 / 3)


def test_a_cut_removes_later_rows():
    """After a cut the table goes on as one that never had the later rows."""
    table = table_of(np.arange(9_000.0), piece=5_000)
    table.cut_rows(5_499)
    table.extend(0, np.arange(5_500, 5_510), {"loss": np.full(10, 1.0)})
    assert (table.num_rows, table.last_step) == (5_509, 5_509)
    assert table.curves(["loss"], 5_499, 5_500)["loss"].value.tolist() == [5_498.0, 1.0]


def test_steps_in_any_order_are_sorted():
    """A host may record steps in any order: a curve has them in ascending order."""
    table = MetricTable()
    table.extend(0, np.array([5, 3]), {"loss": np.array([0.5, 0.3])})
    table.extend(9, np.array([4]), {"loss": np.array([0.4])})
    assert not table.is_sorted
    assert table.curves(["loss"])["loss"].value.tolist() == [0.3, 0.4, 0.5]


def test_a_column_that_comes_late_has_no_earlier_values():
    """A metric that only later rows have begins there."""
    table = table_of([1.0, 2.0])
    table.extend(0, np.array([3]), {"mfu": np.array([0.5])})
    assert table.curves(["mfu", "loss", "none"]).keys() == {"mfu", "loss"}
    assert table.curves(["mfu"])["mfu"].step.tolist() == [3]
    assert table.curves(["loss"])["loss"].step.tolist() == [1, 2]
    assert table.latest("loss") == (2, 2.0)


def test_rises_of_a_count_are_found():
    """Each step with more rejected records than before is named with the difference."""
    table = table_of([0, 0, 2, 2, 5], name="rejected", piece=2)
    assert table.rises("rejected") == [(3, 2), (5, 3)]
