"""Adds files to the data of a run after it began."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from holdfast.adapters.state_store.tiered import TieredStateStore
from holdfast.application.data.cached_batches import CachedBatches
from holdfast.bootstrap.run_folder.layout import RECORD
from holdfast.configs.sections.data import FilesDataSettings
from holdfast.domain.data.data_files import DataFiles, difference
from holdfast.domain.data.sample_order import Growth, SampleOrder
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from holdfast.application.data.feed import BatchStream
    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.bootstrap.stages.identify.data import Found, RunData
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.data.mixture import Mixture
    from holdfast.ports.data_source import DataSource
    from holdfast.ports.state_store import StateStore

_FACT = "growth"


def _grows(settings: TrainSettings) -> bool:
    return isinstance(settings.data, FilesDataSettings) and settings.data.grow


def may_grow(settings: TrainSettings, mode: str) -> bool:
    """Return whether the settings let the run add files; raises ``ConfigurationError`` if ``mode`` prevents it."""
    if not _grows(settings):
        return False
    if mode != "cache":
        msg = (
            "data.grow is true, but this run streams its data (data.mode), and only a run that caches its tokens can "
            "add files exactly: leave data.grow out"
        )
        raise ConfigurationError(msg)
    return True


def divide_data(folder: SharedRunFolder, known: DataFiles | None, found: Found, store: StateStore) -> RunData:
    """Return the data that the run began with, ``known`` from its record, and the parts that were added since.

    Raises ``StateError`` for new files unless the settings let the run add them.
    """
    grows, record, plan = may_grow(found.settings, found.mode), folder.record, {}
    if record is not None and known is not None:
        plan = _plan(record, known, found.data.source, grows=grows)
        if len(plan.get("files", ())) > len(_known(record)) + 1:
            plan["samples"] = _samples_so_far(store)
    plan = json.loads(folder.gather(json.dumps(plan))[0])
    return _divided(found.data, plan)


def divide_ahead(record: Mapping[str, Any], known: DataFiles, found: RunData, *, grows: bool) -> RunData:
    """Return the data as the run of ``record`` (``run.json``) will divide them; raises as ``divide_data`` does."""
    return _divided(found, _plan(record, known, found.source, grows=grows))


def as_recorded(record: Mapping[str, Any], known: DataFiles, found: RunData) -> RunData:
    """Return the data that the run of ``record`` (``run.json``) has read so far, without files that are new since."""
    num_added, divided = len(_known(record)), found
    if num_added or record["settings"]["data"].get("grow"):
        divided = divide_ahead(record, known, found, grows=True)
    growth = Growth(divided.growth.epochs[:num_added], divided.growth.samples)
    return replace(divided, added=divided.added[:num_added], growth=growth)


def _divided(found: RunData, plan: Mapping[str, Any]) -> RunData:
    if not plan:
        return found
    begun, *added = (found.source.only(names) for names in plan["files"])
    assert begun is not None
    growth = Growth(tuple(plan["epochs"]), plan["samples"])
    return replace(found, source=begun, added=[part for part in added if part is not None], growth=growth)


def leave_added_out(record: Mapping[str, Any], known: DataFiles, found: RunData, settings: TrainSettings) -> RunData:
    """Return only the data that the run of ``record`` (``run.json``) began with, if it may add other files.

    Held-out documents come from these data only, so that evaluations are comparable.
    """
    if record.get(_FACT) or _grows(settings):
        begun = found.source.only([file.name for file in known.files])
        return found if begun is None else replace(found, source=begun)
    return found


def changed_growth(record: Mapping[str, Any], added: Sequence[DataSource]) -> str | None:
    """Return, as a clause, how files that the run has added have changed since then; None if they have not."""
    for (_, known), part in zip(_known(record), added, strict=False):
        now = part.identify(known)
        if now is not None and (clause := difference(known, now)) is not None:
            return clause
    return None


def keep_growth(
    record: dict[str, Any],
    added: Sequence[DataSource],
    stream: BatchStream,
    mixture: Mixture,
    report: Callable[[str], object],
) -> None:
    """Record the files that the run has added, and the epoch from which it reads them."""
    if not added:
        return
    assert isinstance(stream, CachedBatches)
    num_known = len(_known(record))
    order = SampleOrder((stream.num_rows,), mixture, stream.grown)
    files = [part.identify() for part in added]
    parts = [
        {"epoch": past.until, **each.to_json()}
        for past, each in zip(stream.grown, files, strict=True)
        if each is not None
    ]
    for part in parts[num_known:]:
        sample, names = order.start_of(part["epoch"]), [line.split(" ", 4)[4] for line in part["files"]]
        time = datetime.now(UTC).isoformat(timespec="seconds")
        record["history"].append({"time": time, "grown": names, "epoch": part["epoch"], "sample": sample})
        report(
            f"the data have grown by {counted(len(names), 'file')}, read from epoch {part['epoch'] + 1} on, which "
            f"begins after {counted(sample, 'row')}"
        )
    record[_FACT] = parts


def _plan(record: Mapping[str, Any], known: DataFiles, source: DataSource, *, grows: bool) -> dict[str, Any]:
    growth = _known(record)
    if not growth and not grows:
        return {}
    now = source.files()
    if now is None:
        msg = "data.grow is true, but the data source of this run has no files: leave data.grow out"
        raise ConfigurationError(msg)
    groups = [[file.name for file in part.files] for part in (known, *(part for _, part in growth))]
    there = [file.name for file in now.files]
    _refuse_missing(groups, there)
    taken = {name for group in groups for name in group}
    epochs: list[int | None] = [epoch for epoch, _ in growth]
    if new := [name for name in there if name not in taken]:
        if not grows:
            msg = (
                f"the data are not those that the run has read so far: {new[0]} is new; move it away, or set "
                "data.grow=true to add it from the next epoch on"
            )
            raise StateError(msg)
        groups.append(new)
        epochs.append(None)
    return {"files": groups, "epochs": epochs, "samples": 0}


def _refuse_missing(groups: Sequence[Sequence[str]], there: Collection[str]) -> None:
    found = set(there)
    for group in groups:
        if found.isdisjoint(group):
            msg = f"the data are not those that the run has read so far: {group[0]} is missing; put it back"
            raise StateError(msg)


def _samples_so_far(store: StateStore) -> int:
    """Return the number of samples in the newest checkpoint, on the disk or in the archive."""
    if isinstance(store, TieredStateStore):
        store.recall(RECORD)  # newer records of the archive are fetched to the disk
    return max((info.progress.cursor.samples for info in store.list()), default=0)


def _known(record: Mapping[str, Any]) -> Sequence[tuple[int, DataFiles]]:
    try:
        return [(int(part["epoch"]), DataFiles.from_json(part)) for part in record.get(_FACT, ())]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        msg = f"{RECORD} does not record which files the run has used ({error!r}): restore it from a copy"
        raise StateError(msg) from error
