"""How many tokens a stream shuffles at a time, and which mixture it reads, by the settings."""

from __future__ import annotations

from contextlib import closing
from itertools import islice

import pytest

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.data.text_reader import TextReader
from holdfast.bootstrap.run_folder.record_file import RULES
from holdfast.bootstrap.stages.identify.data_form import mixture_of
from holdfast.bootstrap.stages.prepare.data_streams import choose_packing, streamed_batches
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.data.holdout import Holdout
from holdfast.domain.data.mixture import Mixture, Stage
from holdfast.domain.data.sample_order import RankShard
from holdfast.domain.errors import ConfigurationError
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
                if (number + 1) % (units // 4 + 1):  # the last one of a source holds what filled no row
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
    monkeypatch.setattr("holdfast.bootstrap.stages.prepare.data_streams.usable_cpus", lambda: 1)
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


def mixed(*settings, **rules):
    shared = ("data.kind=mixture", "data.sequence_length=64", *settings)
    return mixture_of(load_settings([], shared, {}).settings.data, 0, RULES | rules)


@pytest.mark.parametrize(
    ("written", "exact"), [((7, 3), (7, 3)), ((0.7, 0.3), (7, 3)), ((2.0, 0.25), (8, 1)), (("20M", 1), (20_000_000, 1))]
)
def test_weights_may_be_decimals(written, exact):
    """Weights are the exact ratios of what is written, and whole ones stay as they are."""
    first, second = written
    sources = f"{{a: {{path: a, weight: {first}}}, b: {{path: b, weight: {second}}}}}"
    assert mixed(f"data.sources={sources}").stages == (Stage(0, exact),)


@pytest.mark.parametrize("weight", ["-0.1", "true", ".inf", "much"])
def test_a_weight_is_a_number_from_0_on(weight):
    """Another value is refused by its name."""
    with pytest.raises(ConfigurationError, match=r"data\.sources\.a\.weight"):
        mixed(f"data.sources={{a: {{path: a, weight: {weight}}}}}")


def test_a_stage_begins_at_the_next_row():
    """A stage begins within a row of its tokens; that of a run of an earlier version at the next block of rows."""
    settings = (
        "data.sources={a: {path: a}, b: {path: b, weight: 0}}",
        "data.stages=[{after_tokens: 2049, weights: {b: 0.5}}]",
    )
    assert mixed(*settings).stages == (Stage(0, (1, 0)), Stage(33, (0, 1)))
    assert mixed(*settings, mixture_stages=1).stages == (Stage(0, (1, 0)), Stage(1024, (0, 1)))
