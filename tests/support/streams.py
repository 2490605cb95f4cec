"""Batches of a corpus in memory, in both modes."""

from dataclasses import dataclass, replace
from itertools import islice

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.token_cache.memory import MemoryTokenCache
from holdfast.application.data.feed import Feed
from holdfast.application.data.holdout_batches import HoldoutBatches, TextGroups
from holdfast.application.data.lane_reader import LanePlan
from holdfast.application.data.pretokenize import PrepareTokens
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.data.streamed_batches import StreamedBatches
from holdfast.application.data.text_reader import TextReader
from holdfast.bootstrap.stages.prepare.data_streams import cached_batches
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.data.holdout import Holdout
from holdfast.domain.data.mixture import Mixture, Stage
from holdfast.domain.data.packing import BestFitPacking, ConcatPacking, SlidingPacking
from holdfast.domain.data.sample_order import RankShard
from holdfast.ports.document_encoder import DocumentEncoder
from tests.support.encoders import BYTES

NOTHING_HELD_OUT = Holdout(0.0, seed=0)
MODES = ["cache", "stream"]


@dataclass(frozen=True)
class Plan:
    """What a batch is and where it comes from; ``shard_bytes`` is of the cache, ``window`` and ``lanes`` of streams."""

    mode: str = "cache"
    length: int = 8
    rows: int = 4
    seed: int = 3
    epochs: int | None = None
    prefetch: int = 0
    packing: str = "concat"
    window: int = 100
    lanes: int = 1
    shard_bytes: int = 50
    workers: int = 2
    rank: int = 0
    ranks: int = 1
    encoder: DocumentEncoder = BYTES

    def with_(self, **changes):
        """Return the plan with ``changes``."""
        return replace(self, **changes)


def packing_of(plan):
    kinds = {
        "concat": lambda: ConcatPacking(plan.length),
        "best_fit": lambda: BestFitPacking(plan.length, window=5),
        "sliding": lambda: SlidingPacking(plan.length, max(1, plan.length // 2)),
    }
    return kinds[plan.packing]()


def stream_of(source, plan, holdout=NOTHING_HELD_OUT, rejections=None):
    """Return the batches of ``source``, or of a corpus given as a dictionary, as ``plan`` says."""
    source = MemoryDataSource(source) if isinstance(source, dict) else source
    rejections = rejections or RejectedRecords("stop")
    reader = TextReader(source, plan.encoder, rejections)
    share = RankShard(plan.rows, plan.rank, plan.ranks)
    mixture = Mixture(plan.seed, (Stage(0, (1,)),))
    if plan.mode == "stream":
        lanes = LanePlan(plan.lanes, packing_of(plan), plan.window, plan.seed, plan.epochs)
        wanted = lambda hashes: ~holdout.holds(hashes)  # noqa: E731
        return StreamedBatches([reader], mixture, lanes, wanted, share, workers=plan.workers)
    cache = MemoryTokenCache()
    PrepareTokens(reader, cache, rejections, shard_bytes=plan.shard_bytes, workers=plan.workers).run()
    return cached_batches([cache], mixture, packing_of(plan), holdout, share, epochs=plan.epochs)


def feed_of(source, plan, holdout=NOTHING_HELD_OUT, rejections=None):
    """Return a feed of ``stream_of``, which tells what was read of the source and rejected."""
    source = MemoryDataSource(source) if isinstance(source, dict) else source
    rejections = rejections or RejectedRecords("stop")
    stream = stream_of(source, plan, holdout, rejections)
    return Feed(stream, prefetch=plan.prefetch, source=source, rejections=rejections)


def held_out_of(source, plan, holdout, max_tokens):
    """Return the batches that ``holdout`` holds of ``source``."""
    source = MemoryDataSource(source) if isinstance(source, dict) else source
    groups = TextGroups([TextReader(source, plan.encoder, RejectedRecords("stop"))], holdout, plan.seed)
    return HoldoutBatches(groups, holdout, ConcatPacking(plan.length), rows=plan.rows, max_tokens=max_tokens)


def groups_of(sources, holdout, seed, *source_numbers):
    """Return the documents that ``holdout`` holds of each of ``sources``, corpora as dictionaries."""
    readers = [TextReader(MemoryDataSource(each), BYTES, RejectedRecords("stop")) for each in sources]
    return TextGroups(readers, holdout, seed, *source_numbers)


def batches_of(feed, cursor=None, limit=None):
    """Return the batches from ``cursor`` on, all of them or ``limit``."""
    feed.seek(cursor or Cursor())
    try:
        return list(islice(iter(feed.next, None), limit))
    finally:
        feed.close()


def content(batch):
    """Return all that a batch says, comparable with ``==``."""
    arrays = (batch.input_ids, batch.position_ids, batch.document_ids, batch.loss_mask)
    return [array.tolist() for array in arrays], batch.cursor


def tokens_of(batches):
    """Return the tokens in ``batches``, padding left out."""
    return [token for batch in batches for token in batch.input_ids[batch.document_ids >= 0].tolist()]
