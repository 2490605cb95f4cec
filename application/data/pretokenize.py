"""Tokenizes a data source into a token cache."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Self, final

from holdfast.application.data.shard_meta import ShardMetaBuilder, total_drops, total_supervised, total_warnings
from holdfast.application.thread_pool import ThreadPool
from holdfast.domain.data.no_text import no_text
from holdfast.domain.data.work_part import WHOLE
from holdfast.domain.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from holdfast.application.data.rejected_records import RejectedRecords
    from holdfast.application.data.shard_meta import ShardProfile
    from holdfast.application.data.text_reader import TextReader
    from holdfast.domain.data.work_part import WorkPart
    from holdfast.ports.data_source import Unit
    from holdfast.ports.token_cache import TokenCache
    from holdfast.ports.token_source import Tokens

# large enough for efficient reads from a disk, and small enough that even little text makes several shards at a time
_SMALLEST_SHARD, _LARGEST_SHARD, _SHARDS = 4 << 20, 64 << 20, 32

_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """The contents of a token cache, and the tokens that were added now, with the ``seconds`` that this took.

    ``drops`` counts the records that were left out by reason, and ``rejected`` the ones of them that are listed.
    ``supervised_tokens`` are trained on; None means all tokens, as there is no loss mask.
    """

    documents: int
    tokens: int
    rejected: int
    source_bytes: int
    new_tokens: int
    seconds: float
    drops: Mapping[str, int] = field(default_factory=dict)
    supervised_tokens: int | None = None

    @classmethod
    def total(cls, several: Sequence[Self]) -> Self:
        """Return the sums over ``several``."""
        drops: Counter[str] = Counter()
        for each in several:
            drops.update(each.drops)
        supervised = [each.tokens if each.supervised_tokens is None else each.supervised_tokens for each in several]
        is_masked = any(each.supervised_tokens is not None for each in several)
        return cls(
            sum(each.documents for each in several),
            sum(each.tokens for each in several),
            sum(each.rejected for each in several),
            sum(each.source_bytes for each in several),
            sum(each.new_tokens for each in several),
            sum(each.seconds for each in several),
            dict(sorted(drops.items())),
            sum(supervised) if is_masked else None,
        )


class _CancelledError(Exception):
    """Another shard failed."""


@final
class PrepareTokens:
    """Fills a cache with the tokens of a source, on all cores; existing shards stay as they are.

    A shard consists of neighbouring units of the source, about ``shard_bytes`` of them (None: chosen by the size of the
    whole); the division follows from the source alone, so an interrupted preparation continues where it was and leaves
    the same bytes as an undisturbed one, and so do several processes that each make one ``part`` of the shards.
    ``progress`` gets the bytes done and the total, from any thread, and ten times a second from the one that waits: an
    error that it raises ends the work. The shards are described by ``new_profile``. ``warnings`` counts the records
    that are used in spite of one, by reason, after a run.
    """

    def __init__(
        self,
        reader: TextReader,
        cache: TokenCache,
        rejections: RejectedRecords,
        *,
        progress: Callable[[int, int], object] = lambda _done, _total: None,
        shard_bytes: int | None = None,
        workers: int = 1,
        new_profile: Callable[[], ShardProfile] | None = None,
        part: WorkPart = WHOLE,
    ) -> None:
        self._part = part
        self._reader = reader
        self._new_profile = new_profile
        self._cache = cache
        self._rejections = rejections
        self._progress = progress
        self._shard_bytes = shard_bytes
        self._workers = workers
        self._lock = Lock()
        self._cancelled = Event()
        self._done = 0
        self.warnings: Mapping[str, int] = {}

    def run(self) -> Prepared:
        """Make the missing shards of the part; raises the error that prevented one, after all threads have stopped.

        A read that hangs is abandoned after five seconds. The result tells what the cache holds of the part.
        """
        began = time.monotonic()
        plan = self._plan()
        shards = {name: plan[name] for name in self._part.of([*plan])}
        missing = self._cache.missing(shards)
        total = sum(unit.size for name in missing for unit in shards[name])
        self._done = 0
        self._cancelled.clear()
        if missing:
            self._progress(0, total)
        workers = ThreadPool(self._workers, "holdfast-prepare")
        try:
            making = [workers.submit(self._make, name, shards[name], total) for name in missing]
            workers.wait(making, lambda: self._progress(self._done, total))
        finally:
            self._cancelled.set()
            workers.close(_PATIENCE_SECONDS)
        self._raise_first([each.exception() for each in making if each.done() and not each.cancelled()])
        return self._summary(shards, set(missing), time.monotonic() - began)

    def _plan(self) -> Mapping[str, Sequence[Unit]]:
        units = self._reader.source.units()
        usual = min(max(_SMALLEST_SHARD, sum(unit.size for unit in units) // _SHARDS), _LARGEST_SHARD)
        groups: list[list[Unit]] = [[]]
        size = 0
        for unit in units:
            if groups[-1] and size + unit.size > (self._shard_bytes or usual):
                groups.append([])
                size = 0
            groups[-1].append(unit)
            size += unit.size
        return {f"{number:06d}": group for number, group in enumerate(groups)}

    def _make(self, name: str, units: Sequence[Unit], total: int) -> None:
        meta: dict[str, Any] = {"source_bytes": sum(unit.size for unit in units)}
        try:
            self._stop_if_cancelled()
            self._cache.put(name, self._tokens(units, total, meta), meta)
        except BaseException:
            self._cancelled.set()  # here, so that no other thread begins a shard before the caller receives the error
            raise

    def _tokens(self, units: Sequence[Unit], total: int, meta: dict[str, Any]) -> Iterator[Tokens]:
        """Yield the tokens of ``units``, and complete ``meta`` after the last ones."""
        builder = ShardMetaBuilder(None if self._new_profile is None else self._new_profile())
        for unit in units:
            builder.begin(unit)
            groups = self._reader.tokens(
                unit, rejected=builder.rejected.append, is_kept=True, statistics=builder.statistics
            )
            for group in groups:
                self._stop_if_cancelled()
                builder.add(group)
                yield group.tokens
            with self._lock:
                self._done += unit.size
                self._progress(self._done, total)
        meta.update(builder.to_json())

    def _stop_if_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise _CancelledError

    def _raise_first(self, errors: Sequence[BaseException | None]) -> None:
        for error in errors:
            if error is not None and not isinstance(error, _CancelledError):
                raise error

    def missing(self) -> tuple[int, int]:
        """Return the number of shards that are missing, those of other parts included, and the number of all."""
        plan = self._plan()
        return len(self._cache.missing(plan)), len(plan)

    def check(self) -> None:
        """Raise ``ConfigurationError`` if shards were evicted in the meantime to make room."""
        shards = self._part.of([*self._plan()])
        if missing := self._cache.missing(shards):
            msg = (
                f"the tokens do not fit into the cache: {len(missing)} of {len(shards)} parts had to make room for "
                "others; raise data.cache.budget, or set data.mode=stream"
            )
            raise ConfigurationError(msg)

    def _check_limit(self, earlier: Iterable[Mapping[str, Any]]) -> None:
        """Raise ``DataError`` if too many records are left out, those of ``earlier`` shards included."""
        if (limit := self._reader.limit) is not None:
            for meta in earlier:
                limit.add(meta.get("records", 0), meta.get("drops", {}))
            limit.finish()

    def _summary(self, shards: Mapping[str, Sequence[Unit]], new: set[str], seconds: float) -> Prepared:
        self.check()
        made = [shard for shard in self._cache.shards() if shard.name in shards]
        metas: list[Any] = [self._cache.meta(shard) for shard in made]
        for rejection in (rejection for meta in metas for rejection in meta["rejected"]):
            self._rejections.record(rejection)
        supervised = total_supervised(metas)
        self.warnings = total_warnings(metas)
        self._rejections.check_used(self.warnings, "the records of the data")
        prepared = Prepared(
            documents=sum(shard.num_documents for shard in made),
            tokens=sum(shard.num_tokens for shard in made),
            rejected=sum(len(meta["rejected"]) for meta in metas),
            source_bytes=sum(int(meta["source_bytes"]) for meta in metas),
            new_tokens=sum(shard.num_tokens for shard in made if shard.name in new),
            seconds=seconds,
            drops=total_drops(metas),
            supervised_tokens=None if supervised is None else supervised.supervised,
        )
        self._check_limit(meta for shard, meta in zip(made, metas, strict=True) if shard.name not in new)
        if not prepared.documents and self._part == WHOLE:
            raise DataError(no_text([unit.name for units in shards.values() for unit in units], prepared.drops))
        return prepared
