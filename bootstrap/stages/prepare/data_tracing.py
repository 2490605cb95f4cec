"""The tracing of the samples that a run takes from its stream of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.application.data.cached_batches import CachedBatches
from holdfast.application.data.streamed_batches import StreamedBatches
from holdfast.application.data.striped_batches import StripedBatches
from holdfast.application.data.trace_samples import CachedTracer, StreamTracer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import ExitStack

    from holdfast.application.data.feed import BatchStream
    from holdfast.application.data.trace_samples import Tracer
    from holdfast.configs.sections.data import FeedSettings
    from holdfast.domain.data.batch import Spans
    from holdfast.domain.data.cursor import Cursor
    from holdfast.domain.data.exclusion import Exclusion
    from holdfast.domain.data.mixture import Mixture


def source_names(data: FeedSettings, mixture: Mixture) -> Sequence[str]:
    """Return the names of the sources of a run: those of its mixture, or the label or kind of the only source."""
    return mixture.names or (data.label or data.kind,)


def tracer_of(
    stream: BatchStream,
    names: Sequence[str],
    cursors: Sequence[Cursor] = (),
    show: Callable[[int, int], object] = lambda _done, _total: None,
) -> Tracer:
    """Return the tracer of ``stream`` on all ranks; ``cursors`` and ``show`` are those of ``StreamTracer``."""
    match stream:
        case CachedBatches():
            return CachedTracer(stream, names)
        case StreamedBatches() | StripedBatches():
            return StreamTracer(stream, names, cursors, show)
    raise TypeError(stream)


def trained_spans(
    stream: BatchStream, names: Sequence[str], excluded: Exclusion, cursors: Sequence[Cursor], stack: ExitStack
) -> Callable[[int, int], Spans]:
    """Return a function from the first sample and the one after the last to the spans that a run trains on.

    ``stream``, ``names`` and ``cursors`` are those of ``tracer_of``, and ``excluded`` are the documents that the run
    excludes. Calls usually continue where the last one ended, so streamed data stay open until ``stack`` ends.
    """
    if isinstance(stream, StreamedBatches):
        followed = StreamTracer(stream, names, cursors, follows=True)
        stack.callback(followed.close)
        tracer: Tracer = followed
    else:
        tracer = tracer_of(stream, names)

    def spans(begin: int, end: int) -> Spans:
        """Return the pieces of documents in the samples from ``begin`` to before ``end``."""
        traced = tracer.spans(begin, end)
        return traced.at(~excluded.holds(traced.document)) if len(excluded) else traced

    return spans
