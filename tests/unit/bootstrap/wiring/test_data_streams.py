"""How many tokens a stream shuffles at a time, by the settings."""

from __future__ import annotations

from contextlib import closing
from itertools import islice

import pytest

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.data.text_reader import TextReader
from holdfast.bootstrap.wiring.data_streams import choose_packing, streamed_batches
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.data.holdout import Holdout
from holdfast.domain.data.mixture import Mixture, Stage
from holdfast.domain.data.sample_order import RankShard
from tests.support.encoders import BYTES

DOCUMENT = 80  # tokens, the one at its end included
SLIDING = ("data.packing.kind=sliding", "data.packing.stride=4")
MEMORY = 24 * 3200  # of so many tokens


def windows_of(units, sources, *settings):
    """Return how many tokens' worth of rows the fullest window of each lane and source has, by their number."""
    corpus = {f"unit {number:02}": ["x" * (DOCUMENT - 1)] * 100 for number in range(units)}
    reader = TextReader(MemoryDataSource(corpus), BYTES, RejectedRecords("stop"))
    data = load_settings([], ["data.mode=stream", "data.sequence_length=8", *settings], {}).settings.data
    stream = streamed_batches(
        [reader] * sources,
        Mixture(0, (Stage(0, (1,) * sources),)),
        choose_packing(data),
        Holdout(0.0, 0),
        RankShard(8),
        data=data,
    )
    fullest: dict[int, int] = {}
    with closing(stream.batches(Cursor())) as batches:
        for batch in islice(batches, 400):
            for number, lane in enumerate(batch.cursor.lanes):
                fullest[number] = max(fullest.get(number, 0), lane.taken + 1)
    return {number: rows * 8 for number, rows in fullest.items()}


@pytest.mark.parametrize(
    ("units", "sources", "settings", "shared"),
    [
        (4, 1, ("data.shuffle_tokens=6400",), 6400),
        (8, 1, ("data.shuffle_tokens=6400",), 6400),
        (32, 1, ("data.shuffle_tokens=6400",), 6400),
        (8, 3, ("data.shuffle_tokens=6400",), 6400),
        (8, 1, ("data.shuffle_tokens=6400", f"data.stream_buffer_bytes={MEMORY}"), 3200),
        (8, 1, ("data.shuffle_tokens=6400", *SLIDING), 6400),
    ],
)
def test_the_windows_of_all_lanes_share_the_shuffled_tokens(units, sources, settings, shared):
    """However many lanes and sources there are, their windows together hold what is to be shuffled at a time."""
    windows = windows_of(units, sources, *settings)
    assert len(windows) == sources * units // 4
    assert 0.9 * shared <= sum(windows.values()) <= shared + len(windows) * 2 * DOCUMENT


class Fetching(MemoryDataSource):
    fetches_ahead = True


@pytest.mark.parametrize(
    ("place", "kind", "units", "expected"),
    [
        ("s3://b/", MemoryDataSource, 4, 4),
        ("s3://b/", Fetching, 4, 1),
        ("s3://b/", Fetching, 16 * 64, 4),
        ("", MemoryDataSource, 4, 1),
    ],
)
def test_who_waits_for_a_network_has_more_threads_than_cores(monkeypatch, place, kind, units, expected):
    """A stream from far away has at least four readers, but where its parts are fetched while others are read."""
    monkeypatch.setattr("holdfast.bootstrap.wiring.data_streams.usable_cpus", lambda: 1)
    source = kind({f"{place}{number:04}": ["text"] for number in range(units)})
    data = load_settings([], ["data.mode=stream", "data.sequence_length=8"], {}).settings.data
    stream = streamed_batches(
        [TextReader(source, BYTES, RejectedRecords("stop"))],
        Mixture(0, (Stage(0, (1,)),)),
        choose_packing(data),
        Holdout(0.0, 0),
        RankShard(64),
        data=data,
    )
    assert stream.threads == expected
