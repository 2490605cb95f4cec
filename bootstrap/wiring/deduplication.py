"""Builds the search for duplicates from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.adapters.shared.device.cpu_count import usable_cpus
from holdfast.adapters.shared.token_store.duplicate_files import DuplicateFiles
from holdfast.application.data.deduplicate import Duplicates
from holdfast.application.data.document_keys import ExactKeys, FieldKeys, MinHashKeys
from holdfast.application.data.left_out import LeftOutByAny
from holdfast.bootstrap.wiring.score_ranges import distinct_readers
from holdfast.domain.data.shingles import choose_bands
from holdfast.domain.data.work_part import WHOLE
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from holdfast.adapters.shared.token_store.token_encryption import ShardEncryption
    from holdfast.application.data.deduplicate import SourceDuplicates
    from holdfast.application.data.document_keys import DocumentKeys
    from holdfast.application.data.left_out import LeftOut
    from holdfast.application.data.text_reader import TextReader
    from holdfast.configs.sections.data import FeedSettings
    from holdfast.configs.sections.dedup import DedupSettings
    from holdfast.domain.data.work_part import WorkPart


def leave_out_duplicates(
    readers: Sequence[TextReader],
    data: FeedSettings,
    mode: str,
    folder: Path,
    encryption: ShardEncryption | None,
    *,
    progress: Callable[[int, int], object],
    part: WorkPart = WHOLE,
) -> Sequence[TextReader]:
    """Return readers that leave out records with repeated values of unique fields, and duplicates of texts.

    ``mode`` is ``cache`` or ``stream``, ``folder`` and ``encryption`` are those of the token cache. Nothing is read
    until the result is used; then this process computes the keys of its ``part`` of the units. Raises
    ``ConfigurationError`` if the data cannot be deduplicated.
    """
    check_dedup(data, mode)
    distinct = distinct_readers(readers)
    if len(distinct) < len(readers):  # several ranges of the scores of one source
        prints = [reader.fingerprints for reader in distinct]
        left = leave_out_duplicates(distinct, data, mode, folder, encryption, progress=progress, part=part)
        return [left[prints.index(reader.fingerprints)] for reader in readers]
    store, workers = DuplicateFiles(folder, encryption), data.workers or usable_cpus()

    def search(among: Sequence[TextReader], keys: DocumentKeys) -> list[SourceDuplicates]:
        return Duplicates(among, keys, store, progress=progress, workers=workers, part=part).left_out()

    unique = () if data.validation is None else data.validation.unique_fields
    found: list[list[LeftOut]] = [[] for _ in readers]
    for keys in map(FieldKeys, unique):
        for own, left_out in zip(found, search(_without(readers, found), keys), strict=True):
            own.append(left_out)
    if data.dedup is not None:
        among = _without(readers, found)
        together = [among] if data.dedup.scope == "all" else [[reader] for reader in among]
        duplicates = [left_out for each in together for left_out in search(each, _keys(data.dedup))]
        for own, left_out in zip(found, duplicates, strict=True):
            own.append(left_out)
    return _without(readers, found)


def _without(readers: Sequence[TextReader], found: Sequence[Sequence[LeftOut]]) -> Sequence[TextReader]:
    return [
        reader.leaving_out(LeftOutByAny([*own])) if own else reader for reader, own in zip(readers, found, strict=True)
    ]


def check_dedup(data: FeedSettings, mode: str) -> None:
    """Raise ``ConfigurationError`` if documents are to be compared that are streamed, or are tokens already."""
    is_unique = data.validation is not None and bool(data.validation.unique_fields)
    if is_unique and mode == "stream":
        msg = (
            "data.validation asks for unique values, which needs all records before training, but the data are read "
            "as a stream: set data.mode=cache, or leave unique out"
        )
        raise ConfigurationError(msg)
    if data.dedup is None:
        return
    if data.kind == "tokens":
        msg = "data.dedup compares texts, and data.kind=tokens has no text: leave data.dedup out"
        raise ConfigurationError(msg)
    if mode == "stream":
        msg = (
            "data.dedup compares all documents before training, but the data are read as a stream: set "
            "data.mode=cache, or leave data.dedup out"
        )
        raise ConfigurationError(msg)


def _keys(dedup: DedupSettings) -> DocumentKeys:
    if dedup.kind == "exact":
        return ExactKeys(normalize=dedup.normalize)
    try:
        from holdfast.adapters.shared.minhash import MinHashSignatures
    except ModuleNotFoundError as error:
        msg = 'data.dedup.kind=minhash needs another package: pip install "holdfast-lm[dedup]"'
        raise ConfigurationError(msg) from error
    return MinHashKeys(
        MinHashSignatures(dedup.permutations, dedup.seed),
        ngram=dedup.ngram,
        bands=dedup.bands or choose_bands(dedup.threshold, dedup.permutations),
        threshold=dedup.threshold,
        normalize=dedup.normalize,
    )
