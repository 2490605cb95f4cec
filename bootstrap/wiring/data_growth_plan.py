"""Taking up files that were added to the data of a run after it began."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dependency_injector import providers

from holdfast.adapters.state_store.tiered import TieredStateStore
from holdfast.bootstrap.run_folder.layout import RECORD
from holdfast.domain.counting import counted
from holdfast.domain.data.data_files import DataFiles, difference
from holdfast.domain.data.data_growth import Growth
from holdfast.domain.data.sample_order import SampleOrder
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.bootstrap.wiring.container import Container

_FACT = "growth"


def may_grow(container: Container) -> bool:
    """Return whether the settings let the run take up files; raises ``ConfigurationError`` where it cannot."""
    if not getattr(container.settings().data, "grow", False):
        return False
    if container.mode() != "cache":
        msg = (
            "data.grow is true, but this run streams its data (data.mode), and only one whose tokens are cached can "
            "take files up exactly: leave data.grow out"
        )
        raise ConfigurationError(msg)
    return True


def divide_data(folder: SharedRunFolder, known: DataFiles | None, container: Container) -> None:
    """Have the data source hold the files that the run began with, and what was added since stand beside it.

    Raises ``StateError`` for files that nobody has said to take up.
    """
    grows, record, plan = may_grow(container), folder.record, {}
    if record is not None and known is not None:
        plan = _plan(record, known, container, grows=grows)
        if len(plan.get("files", ())) > len(_known(record)) + 1:
            plan["samples"] = _samples_so_far(container)
    plan = json.loads(folder.gather(json.dumps(plan))[0])
    if plan:
        _divide(plan["files"], container)
        container.growth.override(providers.Object(Growth(tuple(plan["epochs"]), plan["samples"])))


def divide_ahead(record: Mapping[str, Any], known: DataFiles, container: Container) -> None:
    """Divide the data as the run of this ``run.json`` will, for what is done ahead of it; raises as ``divide_data``."""
    if plan := _plan(record, known, container, grows=may_grow(container)):
        _divide(plan["files"], container)


def _divide(files: Sequence[Sequence[str]], container: Container) -> None:
    source = container.data_source()
    container.data_source.override(providers.Object(source.only(files[0])))
    container.added.override(providers.Object([source.only(names) for names in files[1:]]))


def leave_added_out(record: Mapping[str, Any], known: DataFiles, container: Container) -> None:
    """Have the data source hold only the files that the run of this ``run.json`` began with, if it may take up others.

    Held-out documents come from these alone, so that evaluations compare.
    """
    if record.get(_FACT) or getattr(container.settings().data, "grow", False):
        begun = container.data_source().only([file.name for file in known.files])
        if begun is not None:
            container.data_source.override(providers.Object(begun))


def changed_growth(record: Mapping[str, Any], container: Container) -> str | None:
    """Return how files that the run has taken up differ from what they were then, as a clause."""
    for (_, known), part in zip(_known(record), container.added(), strict=False):
        if (clause := difference(known, part.identify(known))) is not None:
            return clause
    return None


def keep_growth(record: dict[str, Any], container: Container) -> None:
    """Record which files the run has taken up, and from which epoch on."""
    if not (added := container.added()):
        return
    stream, num_known = container.batch_stream(), len(_known(record))
    order = SampleOrder((stream.num_rows,), container.mixture(), stream.grown)
    parts = [{"epoch": past.until, **part.identify().to_json()} for past, part in zip(stream.grown, added, strict=True)]
    for part in parts[num_known:]:
        sample, names = order.start_of(part["epoch"]), [line.split(" ", 4)[4] for line in part["files"]]
        time = datetime.now(UTC).isoformat(timespec="seconds")
        record["history"].append({"time": time, "grown": names, "epoch": part["epoch"], "sample": sample})
        container.say()(
            f"the data have grown by {counted(len(names), 'file')}, read from epoch {part['epoch'] + 1} on, which "
            f"begins after {counted(sample, 'row')}"
        )
    record[_FACT] = parts


def _plan(record: Mapping[str, Any], known: DataFiles, container: Container, *, grows: bool) -> dict[str, Any]:
    growth = _known(record)
    if not growth and not grows:
        return {}
    now = container.data_source().files()
    if now is None:
        msg = "data.grow is true, but this run was given a data source that has no files: leave data.grow out"
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
                "data.grow=true to take it up from the next epoch on"
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


def _samples_so_far(container: Container) -> int:
    """Return how many samples the newest checkpoint tells of, wherever it lies."""
    store = container.state_store()
    if isinstance(store, TieredStateStore):
        store.recall(RECORD)  # what is newer in the archive comes to the disk
    return max((info.progress.cursor.samples for info in store.list()), default=0)


def _known(record: Mapping[str, Any]) -> Sequence[tuple[int, DataFiles]]:
    try:
        return [(int(part["epoch"]), DataFiles.from_json(part)) for part in record.get(_FACT, ())]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        msg = f"{RECORD} does not tell which files the run has taken up ({error!r}): restore it from a copy"
        raise StateError(msg) from error
