"""Making sure that there is something to evaluate on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from domain.holdout import Holdout

if TYPE_CHECKING:
    from collections.abc import Callable

    from ports.data_source import DataSource


def choose_holdout(source: DataSource, fraction: float, seed: int, say: Callable[[str], object]) -> Holdout:
    """Return a hold-out of ``fraction`` that holds a document of ``source``, or of nothing if it has only one.

    Where chance left a small corpus without a held-out document, the one that hashes lowest is taken, and ``say`` is
    told. A pure function of the data: a resumed run holds out the same. Reading stops at the first held document.
    """
    wanted = Holdout(fraction, seed)
    if fraction == 0.0:
        return wanted
    places = set()
    for unit in source.units():
        for document in source.read(unit):
            if wanted.holds(document.text):
                return wanted
            places.add(wanted.place_of(document.text))
    if len(places) < 2:
        say("the corpus is a single document: it is trained on, and there is no evaluation")
        return Holdout(0.0, seed)
    say(f"none of {len(places)} documents fell into data.holdout={fraction}: one of them is held out for evaluation")
    return Holdout(math.nextafter(min(places), 1.0), seed)
