"""Selects documents of cached tokens by their scores."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from holdfast.application.data.shard_meta import scores_of
from holdfast.configs.sections.data import MixtureDataSettings
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.text_reader import TextReader
    from holdfast.configs.sections.data import FeedSettings
    from holdfast.configs.sections.sources import ScoreRange
    from holdfast.ports.token_cache import TokenCache
    from holdfast.ports.token_source import TokenShard, TokenSource

    Chosen = Callable[[TokenShard], NDArray[np.bool_]]


def score_ranges(data: FeedSettings) -> Sequence[ScoreRange | None]:
    """Return the range of each source of the settings, None for a source that gives all documents."""
    return [source.score for source in data.giving.values()] if isinstance(data, MixtureDataSettings) else []


def key_of(score: ScoreRange | None) -> str:
    """Return the end of a key of rows that identifies the range."""
    return "" if score is None else f" score {score.name} {score.min!r} {score.max!r}"


def documents_with(tokens: TokenSource, score: ScoreRange | None) -> Chosen | None:
    """Return a function from a shard to the documents whose score is in the range; None without a range.

    A document without the score is in no range. Raises ``ConfigurationError`` if no document has the score.
    """
    if score is None:
        return None
    cache = cast("TokenCache", tokens)
    if all(scores_of(cache.meta(shard), score.name) is None for shard in cache.shards()):
        msg = (
            f"a source of data.sources has a range of the score {score.name!r}, but no document has this score: add a "
            "transform to data.transforms that gives it"
        )
        raise ConfigurationError(msg)
    return partial(_chosen, cache, score)


def _chosen(cache: TokenCache, score: ScoreRange, shard: TokenShard) -> NDArray[np.bool_]:
    scores = scores_of(cache.meta(shard), score.name)
    if scores is None:
        return np.zeros(shard.num_documents, np.bool_)
    return is_in_range(scores, score)


def is_in_range(scores: NDArray[np.floating], score: ScoreRange) -> NDArray[np.bool_]:
    """Return which of ``scores`` are in the range; NaN never is."""
    low = -np.inf if score.min is None else score.min
    high = np.inf if score.max is None else score.max
    chosen: NDArray[np.bool_] = (low <= scores) & (scores < high)
    return chosen


def refuse_scores_of_streams(data: FeedSettings) -> None:
    """Raise ``ConfigurationError`` if a source has a range of a score, for data that are streamed."""
    if any(score is not None for score in score_ranges(data)):
        msg = (
            "data.sources have ranges of scores, which select from cached tokens, but the data are read as a stream: "
            "set data.mode=cache, or use the transform score with min and max"
        )
        raise ConfigurationError(msg)


def distinct_readers(readers: Sequence[TextReader]) -> Sequence[TextReader]:
    """Return the first of all ``readers`` that read the same documents: those of several ranges of one source."""
    if len(readers) == 1:  # that of data which are tokens already has no fingerprint
        return readers
    by_name: dict[str, TextReader] = {}
    for reader in readers:  # a reader may be there several times
        by_name.setdefault(json.dumps(reader.fingerprints), reader)
    return list(by_name.values())
