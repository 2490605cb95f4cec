"""The choice of documents for evaluation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from holdfast.domain.data.holdout import Holdout, hash_of
from holdfast.domain.errors import DataError
from holdfast.ports.data_source import Document

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.ports.data_source import DataSource


def choose_holdout(source: DataSource, wanted: Holdout, log_line: Callable[[str], object]) -> Holdout:
    """Return ``wanted``, or a hold-out of one document if ``wanted`` selects none in a small corpus.

    This document has the lowest hash, and ``log_line`` gets a sentence about it. The result is a pure function of the
    data, so a resumed run holds out the same document. Reading stops at the first document that is held out. Records
    that cannot be used are skipped. Raises ``DataError`` if the data source does not answer, as the choice is for the
    whole run.
    """
    if wanted.fraction == 0.0:
        return wanted
    source = source.confirming()
    places: set[float] = set()
    is_whole = True
    for unit in source.units():
        for document in source.read(unit):
            if not isinstance(document, Document):
                if document.is_passing:
                    raise DataError(document.reason)
                is_whole = False
                continue
            if not document.text:
                continue
            hashes = np.array([hash_of(document.text)], np.uint64)
            if wanted.holds(hashes)[0]:
                return wanted
            places.add(float(wanted.place_of(hashes)[0]))
    if not places:
        return Holdout(0.0, wanted.seed)  # reading the data for training reports the problem
    if len(places) < 2:
        found = "the corpus is a single document" if is_whole else "only one document of the corpus can be used"
        log_line(f"{found}: it is trained on, and there is no evaluation")
        return Holdout(0.0, wanted.seed)
    log_line(
        f"none of {len(places)} documents fell into the held-out fraction of {wanted.fraction}: one of them is held out"
    )
    return Holdout(math.nextafter(min(places), 1.0), wanted.seed)
