from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.application.data.lane_reader import ROW_ORDER, STRIPED, LanePlan, LaneReader
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.data.streamed_batches import StreamedBatches
from holdfast.application.data.striped_batches import StripedBatches
from holdfast.application.data.text_reader import TextReader
from holdfast.domain.data.cursor import Cursor, LanePosition
from holdfast.domain.data.holdout import Holdout
from holdfast.domain.data.mixture import Mixture, Stage
from holdfast.domain.data.packing import BestFitPacking, ConcatPacking, SlidingPacking
from holdfast.domain.data.sample_order import RankShard
from holdfast.domain.errors import DataError
from tests.support.encoders import BYTES, WordsEncoder

END = 256
UNITS = st.dictionaries(st.sampled_from("pqrstuv"), st.lists(st.text("abä", max_size=9), max_size=5), min_size=1)
PACKINGS = st.sampled_from([ConcatPacking(6), BestFitPacking(6), SlidingPacking(6, 3), ConcatPacking(6, "drop")])
STRIPES = st.builds(
    partial(LanePlan, order=STRIPED),
    st.integers(1, 3), PACKINGS, st.sampled_from([1, 10, 40, 1000]), st.integers(0, 9), st.integers(1, 3),
)  # fmt: skip
PLANS = st.one_of(STRIPES, STRIPES.map(lambda plan: replace(plan, order=ROW_ORDER)))


def reader_of(units, on_error="stop", **options):
    return TextReader(MemoryDataSource(units), BYTES, RejectedRecords(on_error), **options)


def lane_reader(units, plan, lane=0, holdout=None, on_error="stop", **options):
    holdout = holdout or Holdout(0.0, 0)
    return LaneReader(reader_of(units, on_error, **options), plan, lambda hashes: ~holdout.holds(hashes), lane)


def rows_of(window):
    return [ids[:size].tolist() for ids, size in zip(window.rows.ids, window.rows.lengths, strict=True)]


def told(window):
    """Return all that a window says, comparable with ``==``."""
    if window.rest is not None:  # it begins anywhere among units and documents without text
        return [], window.next_start, window.next_start, window.rest.ids.tolist()
    return rows_of(window), window.start, window.next_start, None


def tokens_of(windows):
    """Return the tokens of the rows of ``windows``, and of what fills no row."""
    found = []
    for window in windows:
        found += [token for row in rows_of(window) for token in row]
        found += [] if window.rest is None else window.rest.ids.tolist()
    return found


@settings(deadline=None)
@given(UNITS, PLANS, st.sampled_from([0.0, 0.5]))
def test_all_lanes_together_hold_every_wanted_document_once_an_epoch(units, plan, fraction):
    """Whatever the lanes, the packing and the windows, each wanted document is read as often as there are epochs."""
    plan, holdout = replace(plan, packing=BestFitPacking(6)), Holdout(fraction, 7)
    lanes = [lane_reader(units, plan, lane, holdout) for lane in range(plan.lanes)]
    found = Counter(tokens_of(window for lane in lanes for window in lane.windows(LanePosition())))
    texts = [text for unit in units.values() for text in unit if text and not holdout.holds_text(text)]
    assert found == Counter(token for text in texts for token in [*text.encode(), END] * plan.epochs)


@settings(deadline=None)
@given(UNITS, PLANS, st.sampled_from([0.0, 0.5]), st.sampled_from([1, 5, 12, 1 << 20]))
def test_the_windows_after_any_place_are_the_rest(units, plan, fraction, group):
    """Reading from where a window began, or from behind it, yields the same rows in the same order."""
    reader = lane_reader(units, plan, holdout=Holdout(fraction, 7), group_characters=group)
    windows = [told(window) for window in reader.windows(LanePosition())]
    for number, (_, start, behind, rest) in enumerate(windows):
        assert [told(window) for window in reader.windows(start._replace(taken=3))] == windows[number:]
        assert [told(window) for window in reader.windows(behind)] == windows[number + (rest is None) :]


@settings(deadline=None)
@given(UNITS, STRIPES)
def test_a_window_holds_as_many_tokens_as_it_should(units, plan):
    """A window ends with the first document that fills it, or with its epoch."""
    longest = max((len(text.encode()) + 1 for unit in units.values() for text in unit), default=0)
    for window in lane_reader(units, replace(plan, packing=ConcatPacking(6))).windows(LanePosition()):
        num_tokens = int(window.rows.lengths.sum())
        assert 0 < num_tokens < plan.window_tokens + longest
        assert num_tokens >= plan.window_tokens or window.next_start == LanePosition(window.start.epoch + 1)


def test_a_small_corpus_is_not_read_over_and_over_to_fill_a_window():
    """A window larger than the data holds one epoch of them, not thousands."""
    plan = LanePlan(1, ConcatPacking(8), 1 << 20, 0, None, order=STRIPED)
    first, second = islice(lane_reader({"a": ["a few words"], "b": ["more"]}, plan).windows(LanePosition()), 2)
    assert first.rows.lengths.sum() == second.rows.lengths.sum() == 17
    assert (first.next_start, second.start) == (LanePosition(1), LanePosition(1))


def test_rows_are_shuffled_within_a_window():
    """A window's rows come in an order of their own, all of them once."""
    plan = LanePlan(1, ConcatPacking(4), 1000, 3, 1)
    window, _ = lane_reader({"a": [f"{number:03}" for number in range(100)]}, plan).windows(LanePosition())
    found = [int(bytes(row[:3])) for row in rows_of(window)]
    assert sorted(found) == list(range(100)) != found


def test_lanes_that_are_dealt_empty_units_go_on():
    """Where few of many units hold text, a lane that was dealt none for long is no error, and batches keep coming."""
    units = {f"{number:04}": ["some text"] if number % 50 == 0 else [] for number in range(400)}
    plan = LanePlan(96, ConcatPacking(8), 20, 3, None, order=STRIPED)
    stream = StripedBatches(
        [reader_of(units)], one_source(), plan, lambda hashes: np.ones(len(hashes), bool), RankShard(8), workers=2
    )
    batches = list(islice(stream.batches(Cursor()), 200))
    assert len(batches) == 200
    assert all(batch.num_tokens for batch in batches)


@pytest.mark.parametrize(
    ("units", "packing", "fraction", "reason"),
    [
        ({"a": ["", ""], "b": []}, ConcatPacking(4), 0.0, "none of the 2 files, the first being a, holds any text"),
        ({"a": ["much longer than a row"]}, ConcatPacking(4, "drop"), 0.0, "every document has more than 4 tokens"),
        ({"a": ["held out"]}, ConcatPacking(4), 0.999999, "a holds no text to use"),
    ],
)
def test_data_that_make_no_row_are_an_error(units, packing, fraction, reason):
    """Data of which nothing is left to train on end with ``DataError``; they are not read for ever."""
    wanted = lambda hashes: ~Holdout(fraction, 0).holds(hashes)  # noqa: E731
    for kind, order in ((StripedBatches, STRIPED), (StreamedBatches, ROW_ORDER)):
        plan = LanePlan(1, packing, 10, 0, None, order=order)
        stream = kind([reader_of(units)], one_source(), plan, wanted, RankShard(2), workers=1)
        with pytest.raises(DataError, match=reason):
            next(stream.batches(Cursor()))


def test_windows_before_a_bad_record_come_first():
    """What was complete before a bad record is yielded, then its error; with ``skip`` the rest follows."""
    plan, units = LanePlan(1, ConcatPacking(4), 4, 0, 1), {"a": ["abc", "def", 3, "ghi"]}
    windows = lane_reader(units, plan).windows(LanePosition())
    assert bytes(tokens_of([next(windows)])[:3] + tokens_of([next(windows)])[:3]) == b"abcdef"
    with pytest.raises(DataError, match="document 2"):
        next(windows)
    assert len(list(lane_reader(units, plan, on_error="skip").windows(LanePosition()))) == 4


def one_source():
    return Mixture(3, (Stage(0, (1,)),))


def mixture_of(weights, *more):
    return Mixture(3, (Stage(0, weights), *(Stage(*each) for each in more)), block=16)


def streamed(parts, mixture, *, epochs, rows=4, lanes=1):
    plan = LanePlan(lanes, ConcatPacking(8), 100, 3, epochs)
    wanted = lambda hashes: np.ones(len(hashes), bool)  # noqa: E731
    return StreamedBatches([reader_of(part) for part in parts], mixture, plan, wanted, RankShard(rows), workers=2)


def test_a_source_that_rests_for_good_keeps_no_stream_from_ending():
    """A source of weight 0, or one that later stages leave out, is not waited for."""
    units = {"a": ["abcdefg"] * 20}
    alone = list(streamed([units, units], mixture_of((1, 0)), epochs=1).batches(Cursor()))
    assert sum(batch.num_tokens for batch in alone) == 20 * 8
    staged = list(streamed([units, units], mixture_of((1, 1), (16, (1, 0))), epochs=1).batches(Cursor()))
    assert sum(batch.num_tokens for batch in staged) == (20 + 8) * 8


@settings(deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.data())
def test_the_source_that_runs_out_first_ends_the_stream(epochs, lanes, rows, data):
    """A mixture does not trail off in empty rows; wherever it is resumed, the rest is the same, and the end the end."""
    parts = [{f"{name}{unit}": ["abcdefg"] * 6 for unit in range(4)} for name in "ab"]
    stream = streamed(parts, mixture_of((1, 10)), epochs=epochs, rows=rows, lanes=lanes)
    batches = list(stream.batches(Cursor()))
    most = 24 * epochs
    assert most <= sum(batch.num_tokens for batch in batches) / 8 <= most * 1.2 + 16
    cut = data.draw(st.integers(0, len(batches) - 1))
    rest = [batch.input_ids.tolist() for batch in stream.batches(batches[cut].cursor)]
    assert rest == [batch.input_ids.tolist() for batch in batches[cut + 1 :]]


def test_an_empty_source_of_a_mixture_is_named():
    """A source that has a weight and no text is ``DataError`` that names a file of it, not of another source."""
    for epochs in (None, 1):
        stream = streamed([{"full": ["abcdefg"]}, {"empty": [""]}], mixture_of((1, 1)), epochs=epochs)
        with pytest.raises(DataError, match="empty holds no text to use"):
            list(islice(stream.batches(Cursor()), 9))


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from("pqr"), st.lists(st.sampled_from(["a b c d", "ab", "a bc"]), max_size=6), min_size=1
    ),
    st.integers(1, 12),
)
def test_no_window_ends_within_a_record(units, window):
    """Records of several documents are read whole, so reading on from any window yields the rest and no more."""
    plan = LanePlan(1, BestFitPacking(6), window, 0, 2)
    source = MemoryDataSource(units)
    reader = LaneReader(TextReader(source, WordsEncoder(), RejectedRecords("stop")), plan, None, 0)
    windows = [told(window) for window in reader.windows(LanePosition())] if any(units.values()) else []
    for number, (_, _, behind, rest) in enumerate(windows):
        rows_behind = [tokens_of([window]) for window in reader.windows(behind)]
        assert rows_behind == [sum(rows, rest or []) for rows, _, _, rest in windows[number + (rest is None) :]]
    letters = [letter for unit in units.values() for text in unit for letter in text if letter != " "]
    found = sorted(token for rows, _, _, rest in windows for row in [*rows, rest or []] for token in row)
    assert found == sorted([ord(letter) for letter in letters] * 2)
