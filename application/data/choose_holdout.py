"""The choice of documents for evaluation."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from holdfast.domain.data.holdout import Holdout, hash_of
from holdfast.domain.data.near_duplicates import SKETCH, VERSION, groups_of, sketches_of
from holdfast.domain.errors import DataError
from holdfast.domain.phase import Amount, show_nothing
from holdfast.domain.sizes import counted
from holdfast.ports.data_source import Document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from holdfast.application.data.document_keys import KeyStore
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.data_source import DataSource

_CHARACTERS = 1 << 18  # of documents that are compared by words together
_CHOSEN = "chosen"


def choose_holdout(source: DataSource, wanted: Holdout, log_line: Callable[[str], object]) -> Holdout:
    """Return ``wanted``, or a hold-out of one document if ``wanted`` selects none in a small corpus.

    This document has the lowest hash, and ``log_line`` gets a sentence about it. The result is a pure function of the
    data, so a resumed run holds out the same document. Reading stops at the first document that is held out. Records
    that cannot be used are skipped. Raises ``DataError`` if the data source does not answer, as the choice is for the
    whole run.
    """
    if wanted.fraction == 0.0:
        return wanted
    places: set[float] = set()
    is_whole = True
    for document in _documents(source.confirming()):
        if document is None:
            is_whole = False
            continue
        hashes = np.array([hash_of(document.text)], np.uint64)
        if wanted.holds(hashes)[0]:
            return wanted
        places.add(float(wanted.place_of(hashes)[0]))
    if not places:
        return Holdout(0.0, wanted.seed)  # reading the data for training reports the problem
    if len(places) < 2:
        problem = "the corpus is a single document" if is_whole else "only one document of the corpus can be used"
        log_line(f"{problem}: it is trained on, and there is no evaluation")
        return Holdout(0.0, wanted.seed)
    log_line(
        f"none of {len(places)} documents fell into the held-out fraction of {wanted.fraction}: one of them is held out"
    )
    return Holdout(math.nextafter(min(places), 1.0), wanted.seed)


class _Documents(NamedTuple):
    """The hashes of documents, uint64, ascending, their bytes, and the first documents of their groups, int64."""

    hashes: NDArray[np.uint64]
    sizes: NDArray[np.int64]
    groups: NDArray[np.int64]


def choose_groups(
    source: DataSource,
    wanted: Holdout,
    store: KeyStore,
    log_line: Callable[[str], object],
    show: ShowPhase = show_nothing,
    *,
    is_fold: bool = False,
) -> Holdout:
    """Return a hold-out of whole groups of similar documents, in the order and of the share that ``wanted`` has.

    It has at least the share of the documents and of their bytes, as far as there are groups that are not larger. A
    group with more than that is trained on, so that no family of documents makes up the evaluation; a single document
    may be of the average size. If all documents are one group, they are chosen one by one. With ``is_fold`` each group
    is in one fold, whatever its size. The choice depends on the texts, not on their order. All documents are read,
    once: ``store`` keeps the choice. ``log_line`` gets a sentence about it. Records that cannot be used are skipped.
    Raises ``DataError`` if the data source does not answer, or if a fold has none or all of the documents.
    """
    if wanted.fraction == 0.0:
        return wanted
    kind = [VERSION, source.fingerprint(), wanted.key, is_fold]
    group = blake2b(json.dumps(kind).encode(), digest_size=16).hexdigest()
    if (known := store.load(group, _CHOSEN)) is None:
        compared = _compared(source.confirming(), show)
        is_held = _in_fold(compared, wanted) if is_fold else _share_of(compared, wanted)
        if len(is_held) > 1:  # else choose_holdout says it
            log_line(_sentence(compared, is_held))
        known = {_CHOSEN: np.unique(compared.hashes[is_held])}
        store.store(group, _CHOSEN, known)
    chosen = known[_CHOSEN].astype("<u8")
    return replace(wanted, chosen=chosen.tobytes()) if len(chosen) else choose_holdout(source, wanted, log_line)


def _compared(source: DataSource, show: ShowPhase) -> _Documents:
    """Return all documents with their groups, in the order of their hashes."""
    total = sum(unit.size for unit in source.units())
    hashes, sizes, done = list[int](), list[int](), 0
    sketches = [np.zeros((0, SKETCH), np.uint64)]
    for texts in _batches(document.text for document in _documents(source) if document is not None):
        hashes += map(hash_of, texts)
        own = [len(text.encode("utf-8", "surrogatepass")) for text in texts]
        sizes += own
        done += sum(own)
        sketches.append(sketches_of(texts))
        show("comparing documents for the hold-out", Amount(done, total or None))
    order = np.argsort(np.array(hashes, np.uint64), kind="stable")
    groups = groups_of(np.concatenate(sketches)[order])
    return _Documents(np.array(hashes, np.uint64)[order], np.array(sizes, np.int64)[order], groups)


def _share_of(found: _Documents, wanted: Holdout) -> NDArray[np.bool_]:
    """Return whether each document is held out, bool (documents,): groups until the share is reached, never the last.

    The order of groups is that of their smallest hashes, whatever the order of the documents.
    """
    members = np.bincount(found.groups, minlength=len(found.groups))
    sizes = np.bincount(found.groups, found.sizes, minlength=len(found.groups))
    firsts = np.flatnonzero(members)
    firsts = firsts[np.argsort(_places(found, wanted)[firsts], kind="stable")]
    documents, num_bytes = wanted.fraction * len(found.groups), wanted.fraction * found.sizes.sum()
    is_usual = (members == 1) & (sizes <= found.sizes.sum() / max(1, len(found.sizes)))
    fits = is_usual | ((members <= np.maximum(1, documents)) & (sizes <= num_bytes))
    # where every group is larger, the smallest one is better than no evaluation
    candidates = firsts[fits[firsts]] if fits[firsts].any() else firsts[np.argsort(sizes[firsts], kind="stable")][:1]
    before = np.cumsum(members[candidates]) - members[candidates], np.cumsum(sizes[candidates]) - sizes[candidates]
    held = candidates[(before[0] < documents) | (before[1] < num_bytes)]
    return np.isin(found.groups, held[: len(firsts) - 1])


def _in_fold(found: _Documents, wanted: Holdout) -> NDArray[np.bool_]:
    places = _places(found, wanted)
    is_held = (wanted.begin <= places) & (places < wanted.end)
    if len(is_held) and is_held.all() == is_held.any():
        groups = counted(len(np.unique(found.groups)), "group")
        msg = (
            f"this data.fold has {'all' if is_held.any() else 'none'} of {counted(len(is_held), 'document')}, which "
            f"are {groups} of similar ones: set fewer data.folds or data.holdout_by=document"
        )
        raise DataError(msg)
    return is_held


def _places(found: _Documents, wanted: Holdout) -> NDArray[np.float64]:
    """Return the position of each document's group in [0, 1), float64 (documents,)."""
    return wanted.place_of(found.hashes[found.groups])  # the smallest hash of the group, as they ascend


def _sentence(found: _Documents, is_held: NDArray[np.bool_]) -> str:
    if not is_held.any():
        return (
            f"all {len(is_held):,} documents are one group of similar ones: they are held out one by one, so those in "
            "training resemble those that are held out"
        )
    share = found.sizes[is_held].sum() / max(1, found.sizes.sum())
    groups = np.unique(found.groups, return_counts=True)[1]
    return (
        f"held out {np.count_nonzero(is_held):,} of {counted(len(is_held), 'document')}, {share:.1%} of the bytes; "
        f"{groups[groups > 1].sum():,} are in {counted(int((groups > 1).sum()), 'group')} of similar ones, which are "
        "held out as a whole or not at all"
    )


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    batch, characters = list[str](), 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if characters >= _CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _documents(source: DataSource) -> Iterator[Document | None]:
    """Yield the documents that have text, and None for a record that cannot be used."""
    for unit in source.units():
        for document in source.read(unit):
            if not isinstance(document, Document):
                if document.is_passing:
                    raise DataError(document.reason)
                yield None
            elif document.text:
                yield document
