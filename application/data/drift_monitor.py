"""Compares the data of a run with an earlier version of them."""

from __future__ import annotations

from dataclasses import asdict
from threading import Lock
from typing import TYPE_CHECKING, final

from holdfast.domain.data.drift import Level, compare, sentence_of, worst
from holdfast.domain.data.profile import ProfileBuilder
from holdfast.domain.errors import DataError
from holdfast.domain.events import DataDrifted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from holdfast.domain.data.drift import Figure
    from holdfast.domain.data.profile import Profile
    from holdfast.domain.events import Event, RunFailed, RunStarted, StepCompleted


@final
class DriftMonitor:
    """Compares documents with ``reference``, the profile of the dataset ``name``; publishes ``DataDrifted``.

    ``check`` compares a whole profile, ``add`` those documents of a stream that were read so far, every ``every``
    documents. Drift is published with the next event of the run, once for each set of figures that drifted. With
    ``stops``, both raise ``DataError`` for major drift. ``add`` may be called from several threads. Unless
    ``has_same_tokens``, which is asked at the first comparison, no figure of tokens is compared: ``report`` is told so.
    """

    def __init__(
        self,
        name: str,
        reference: Profile,
        publish: Callable[[Event], object],
        *,
        stops: bool,
        every: int = 10_000,
        has_same_tokens: Callable[[], bool] = lambda: True,
        report: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._name = name
        self._reference = reference
        self._publish = publish
        self._stops = stops
        self._every = every
        self._asks_for_tokens, self._has_same_tokens = has_same_tokens, True
        self._report = report
        self._is_first = True
        self._next = every
        self._builder = ProfileBuilder()
        self._lock = Lock()
        self._found: list[Sequence[Figure]] = []
        self._told: frozenset[tuple[str, Level]] = frozenset()

    def add(
        self,
        texts: Sequence[str],
        ids: NDArray[np.unsignedinteger],
        offsets: NDArray[np.int64],
        hashes: NDArray[np.uint64],
    ) -> None:
        """Add documents of a stream, as ``ProfileBuilder.add`` does, and compare if it is time.

        Raises ``DataError`` if the run is to stop.
        """
        with self._lock:
            self._builder.add(texts, ids, offsets, hashes)
            if self._builder.documents < self._next:
                return
            self._next = self._builder.documents + self._every
            self._compare(self._builder.build())

    def check(self, profile: Profile) -> None:
        """Compare the ``profile`` of all documents of the run. Raises ``DataError`` if the run is to stop."""
        with self._lock:
            self._compare(profile)

    def on_event(self, event: RunStarted | StepCompleted | RunFailed) -> None:
        """Publish the drift that was found since the last event."""
        with self._lock:
            remarks, self._found = self._found, []
        for figures in remarks:
            moved = [asdict(figure) for figure in figures if figure.level != Level.NONE]
            self._publish(DataDrifted(event.progress, self._name, sentence_of(figures), moved))

    def _compare(self, profile: Profile) -> None:
        if self._is_first:
            self._is_first, self._has_same_tokens = False, self._asks_for_tokens()
            if not self._has_same_tokens:
                why = "is not known to have the tokenizer of this run"
                self._report(f"figures of tokens are not compared with {self._name}, which {why}")
        figures = compare(self._reference, profile, has_same_tokens=self._has_same_tokens)
        moved = frozenset((figure.name, figure.level) for figure in figures if figure.level != Level.NONE)
        if moved and moved != self._told:
            self._found.append(figures)
        self._told = moved
        if self._stops and worst(figures) == Level.MAJOR:
            msg = (
                f"the data differ from {self._name}, {sentence_of(figures)}: correct the data, or name another version "
                "with data.drift.reference, or set data.drift.action=warn"
            )
            raise DataError(msg)
