"""What is turned while a run goes on, and changes no batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.domain.resources.knobs import Knob

if TYPE_CHECKING:
    from holdfast.application.data.feed import Feed


def turn(knob: Knob, value: int, feed: Feed) -> None:
    """Turn ``knob`` to ``value``, if it is one of ``feed``; others are heard of by whom they concern."""
    match knob:
        case Knob.PREFETCH:
            feed.prefetch = value
        case Knob.THREADS:
            feed.threads = value
