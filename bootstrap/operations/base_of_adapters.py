"""The model that the adapters of a run belong to, which may be elsewhere than in training."""

from __future__ import annotations

from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.network.hub_names import names_folder
from holdfast.bootstrap.operations.named_checkpoint import NEWEST, place_of
from holdfast.bootstrap.run_folder.found_paths import move_path
from holdfast.bootstrap.run_folder.record_file import read_record
from holdfast.bootstrap.stages.choose.former_settings import refuse_run_folder
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.urls import expanded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


def with_base(settings: Mapping[str, Any], base: str | None) -> dict[str, Any]:
    """Return the recorded ``settings`` of a run with ``base`` as the model that its adapters belong to.

    They stay as they are if ``base`` is None or the run has no adapters. Raises ``ConfigurationError`` if ``base`` can
    only be a folder and there is none.
    """
    changed = deepcopy(dict(settings))
    if base is None or not _has_adapters(changed):
        return changed
    if names_folder(base) and not expanded(base).is_dir():
        msg = f"--base {base} is no folder: name the model folder, or the name on the hub, that the adapters belong to"
        raise ConfigurationError(msg)
    refuse_run_folder("--base ", base)
    move_path(changed["model"], "path", str(expanded(base)) if names_folder(base) else base)
    if "revision" in changed["model"]:
        changed["model"]["revision"] = None
    return changed


def refuse_useless_base(runs: Sequence[Path], base: str | None) -> None:
    """Raise ``ConfigurationError`` if ``base`` is given and none of ``runs`` has adapters, so that it has no effect."""
    records = [] if base is None else [read_record(place_of(run, NEWEST).path) for run in runs]
    if records and not any(_has_adapters(record["settings"]) for record in records):
        msg = f"--base {base} has no effect: {', '.join(map(str, runs))} trained no adapters (model.lora); leave it out"
        raise ConfigurationError(msg)


@contextmanager
def naming_base(settings: Mapping[str, Any], run: Path) -> Iterator[None]:
    """Say how to name the base of the adapters of ``run`` if it is missing, or cannot be had within the block.

    Raises ``ConfigurationError`` before the block if it is a folder that is not there.
    """
    path = settings["model"].get("path") if _has_adapters(settings) else None
    if path is None or expanded(path).is_dir():
        yield
        return
    if names_folder(path):
        msg = (
            f"the adapters of {run} need the model that they were trained on, {path}, and there is no such folder, "
            "neither here nor where the run is or began: name it by --base PATH"
        )
        raise ConfigurationError(msg)
    try:
        yield
    except ConfigurationError as error:
        msg = f"{error}; the adapters of {run} were trained on this model: if it is elsewhere now, add --base PATH"
        raise ConfigurationError(msg) from error


def _has_adapters(settings: Mapping[str, Any]) -> bool:
    model = settings.get("model")
    return isinstance(model, dict) and model.get("lora") is not None
