"""Chooses the documents that a run holds out, by its settings, and records what was chosen by comparison."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.adapters.shared.files.file_operations import explain
from holdfast.adapters.shared.token_store.duplicate_files import DuplicateFiles
from holdfast.application.data.choose_holdout import choose_groups, choose_holdout
from holdfast.application.data.shard_meta import packed, unpacked
from holdfast.bootstrap.adapter_choice.encryption_keys import build_shard_encryption
from holdfast.bootstrap.stages.identify.data_form import cache_folder
from holdfast.domain.data.exclusion import NO_EXCLUSION, Exclusion, id_of
from holdfast.domain.data.holdout import Holdout
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.fault_tolerance.remedies import FRESH
from holdfast.domain.sizes import counted
from holdfast.domain.urls import expanded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.configs.sections.data import FeedSettings
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.data_source import DataSource

HOLDOUT = "holdout"
"""The member of ``run.json`` with the hold-out that was chosen when the run began."""


def hold_out(
    source: DataSource,
    settings: TrainSettings,
    report: Callable[[str], object],
    show: ShowPhase,
    begun: Mapping[str, Any],
) -> Holdout:
    """Return the documents of ``source`` to hold out, or those that ``begun``, the record of a run, has of its start.

    Raises the errors of reading if they must be known for it, and ``StateError`` if the record is damaged or does not
    list the documents and others would be chosen now.
    """
    data: Any = settings.data
    seed, is_fold = settings.run.seed, data.folds is not None
    wanted = Holdout.fold(data.fold, data.folds, seed) if is_fold else Holdout(data.holdout, seed)
    if data.holdout_by == "similar_documents":
        if data.are_tokens:
            msg = "data.holdout_by=similar_documents compares texts, and data.kind=tokens has no text: leave it out"
            raise ConfigurationError(msg)
        if (recorded := _recorded(begun)) is not None:
            return recorded
        store = DuplicateFiles(cache_folder(data, settings.run), build_shard_encryption(data.cache.encryption))
        chosen = choose_groups(source, wanted, store, report, show, is_fold=is_fold)
        if begun and begun.get("key") != chosen.key:
            msg = (
                "of these data other documents would be held out than when the run began, whose record does not list "
                "them, as data.cache.encryption was set: put the data back, or start another run with another "
                f"run.name or {FRESH}"
            )
            raise StateError(msg)
        return chosen
    return wanted if is_fold or data.are_tokens else choose_holdout(source, wanted, report)


def record_holdout(record: dict[str, Any], holdout: Holdout, settings: TrainSettings) -> None:
    """Record the documents that a run holds out from its start on, if they were compared with one another.

    With an encrypted token cache the documents are not listed, as their hashes are data too.
    """
    if settings.data.holdout_by != "similar_documents" or HOLDOUT in record:
        return
    record[HOLDOUT] = {"key": holdout.key}
    if not settings.data.is_encrypted:
        hashes = None if holdout.chosen is None else np.frombuffer(holdout.chosen, "<u8")
        listed = {"hashes": None if hashes is None else packed(hashes), "num": None if hashes is None else len(hashes)}
        record[HOLDOUT] |= {"begin": holdout.begin, "end": holdout.end, "seed": holdout.seed, **listed}


def told_holdout(begun: Mapping[str, Any]) -> str:
    """Return, as the beginning of a sentence, what a run with this record of its start holds out."""
    which = "the documents" if begun.get("num") is None else f"the {counted(begun['num'], 'document')}"
    return f"the run keeps {which} held out that were chosen when it began"


def _recorded(begun: Mapping[str, Any]) -> Holdout | None:
    if "end" not in begun:
        return None
    try:
        hashes = begun["hashes"]
        chosen = None if hashes is None else unpacked(hashes, np.uint64).astype("<u8").tobytes()
        begun_holdout = Holdout(begun["end"], begun["seed"], begun["begin"], chosen)
        is_whole = begun_holdout.key == begun["key"]
    except Exception as error:
        msg = f"run.json does not say which documents are held out ({type(error).__name__}): restore it from a copy"
        raise StateError(msg) from error
    if not is_whole:
        msg = "run.json lists other documents as held out than its digest of them says: restore it from a copy"
        raise StateError(msg)
    return begun_holdout


_FACT = "excluded"


def exclusion_of(data: FeedSettings) -> Exclusion:
    """Return the documents to train without, by the settings.

    Raises ``ConfigurationError`` for a file that cannot be read or a line that is not an id.
    """
    if not data.exclude:
        return NO_EXCLUSION
    return Exclusion.of(number for each in data.exclude for number in _ids_of(each))


def _ids_of(entry: str) -> Iterator[int]:
    number = id_of(entry)
    if number is not None:
        yield number
        return
    try:
        text = expanded(entry).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        why = explain(error) if isinstance(error, OSError) else "it is not text"
        msg = (
            f"data.exclude names {entry}, which is neither an id of 16 hexadecimal digits nor a file that can be read: "
            f"{why}"
        )
        raise ConfigurationError(msg) from error
    for place, line in enumerate(text.splitlines(), 1):
        if not (word := line.partition("#")[0].strip()):
            continue
        if (number := id_of(word)) is None:
            msg = f"line {place} of {entry} (data.exclude) is not the id of a document, which has 16 hexadecimal digits"
            raise ConfigurationError(msg)
        yield number


def record_exclusion(folder: SharedRunFolder, excluded: Exclusion, report: Callable[[str], object]) -> None:
    """Record the documents that the run trains without; a change counts as a change of the data on purpose.

    Raises ``StateError`` if the ranks exclude different documents.
    """
    digests = folder.gather(excluded.digest)
    if strangers := [rank for rank, digest in enumerate(digests) if digest != digests[0]]:
        msg = f"data.exclude of rank {strangers[0]} is not that of rank 0: give all processes the same"
        raise StateError(msg)
    if (record := folder.record) is None:
        return
    known = record.setdefault(_FACT, {}) if len(excluded) else record.get(_FACT, {})
    before = known.get("now", "")
    if before == excluded.digest:
        return
    known["now"] = excluded.digest
    if len(excluded):
        known.setdefault("lists", {})[excluded.digest] = packed(excluded.ids)
    if folder.settings_before is not None:
        how = f"{counted(len(excluded), 'document')} excluded from here on (data.exclude)"
        time = datetime.now(UTC).isoformat(timespec="seconds")
        record["history"].append({"time": time, "data": how, "excluded": excluded.digest})
        report(f"the run continues with other data: {how}")


def recorded_exclusions(record: Mapping[str, Any]) -> Mapping[str, Exclusion]:
    """Return the exclusions that ``record`` (``run.json``) lists, by their digests.

    Raises ``StateError`` if the record is damaged.
    """
    try:
        lists = record.get(_FACT, {}).get("lists", {})
        return {digest: Exclusion(unpacked(text, np.uint64)) for digest, text in lists.items()} | {"": NO_EXCLUSION}
    except Exception as error:
        msg = f"run.json does not say which documents were excluded ({type(error).__name__}): restore it from a copy"
        raise StateError(msg) from error


def exclusion_now(record: Mapping[str, Any]) -> str:
    """Return the digest of the exclusion with which the run of ``record`` was last started."""
    return str(record.get(_FACT, {}).get("now", ""))
