"""The documents that a run trains without, by its settings, and their record in the run folder."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.adapters.shared.files.file_operations import explain
from holdfast.application.data.shard_meta import packed, unpacked
from holdfast.domain.counting import counted
from holdfast.domain.data.exclusion import NO_EXCLUSION, Exclusion, id_of
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.home_folder import expanded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.configs.sections.data import FeedSettings

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
