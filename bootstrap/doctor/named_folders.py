"""The folders that settings name, with the bytes that a run writes to each."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.doctor.expected_sizes import (
    checkpoint_bytes,
    most_checkpoints,
    token_bytes,
    uncounted_rules,
)
from holdfast.bootstrap.doctor.named_places import hub_places, is_on_disk
from holdfast.bootstrap.doctor.storage_checks import CheckedFolder
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.wiring.data_streams import cache_folder
from holdfast.bootstrap.wiring.lazy import lazy_attribute
from holdfast.configs.sections.state_store import DiskStateStoreSettings
from holdfast.domain.home_folder import expanded
from holdfast.domain.sizes import size_in_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.configs.sections.state_store import ArchiveSettings, RetentionSettings
    from holdfast.configs.settings import TrainSettings

_CONTENTS = "its checkpoints"


def named_folders(settings: TrainSettings) -> Mapping[str, Callable[[], CheckedFolder]]:
    """Return the folders that a run with ``settings`` writes to, by name; each is looked up only when it is called."""
    folders: dict[str, Callable[[TrainSettings], CheckedFolder]] = {"run folder": _run_folder}
    if settings.data.kind != "tokens":
        folders["token cache"] = _token_cache
    if hub_places(settings):
        folders["hub cache"] = _hub_cache
    archive = settings.state_store.archive
    if archive is not None and is_on_disk(archive.url):
        folders["archive"] = _archive
    if settings.state_store.encryption is not None:
        folders["scratch"] = _scratch
    return {name: partial(look_up, settings) for name, look_up in folders.items()}


def _run_folder(settings: TrainSettings) -> CheckedFolder:
    one, folder, store = checkpoint_bytes(settings) or 0.0, settings.run.directory, settings.state_store
    if not isinstance(store, DiskStateStoreSettings):
        return CheckedFolder("run folder", folder, "run.dir")
    stored = len(RunLayout(folder).durable_steps()) if folder.is_dir() else 0
    needed, contents = one * max(1, most_checkpoints(settings, store) - stored), _contents(settings, store)
    if store.disk_budget is not None:
        needed, contents = max(one, min(needed, size_in_bytes(store.disk_budget))), _CONTENTS
    return CheckedFolder("run folder", folder, "run.dir", at_once=one, needed=needed, contents=contents)


def _token_cache(settings: TrainSettings) -> CheckedFolder:
    folder = cache_folder(settings.data, settings.run)
    setting = "run.cache_dir" if settings.data.cache.dir is None else "data.cache.dir"
    return CheckedFolder("token cache", folder, setting, needed=token_bytes(settings) or 0.0, contents="the tokens")


def _hub_cache(_: TrainSettings) -> CheckedFolder:
    folder = Path(lazy_attribute("huggingface_hub.constants:HF_HUB_CACHE"))
    return CheckedFolder("hub cache", folder, "HF_HOME", contents="models and datasets of the hub")


def _archive(settings: TrainSettings) -> CheckedFolder:
    archive = settings.state_store.archive
    assert archive is not None, "there is an archive, or this folder would not be among the named ones"
    needed = (checkpoint_bytes(settings) or 0.0) * most_checkpoints(settings, archive)
    folder, contents = expanded(archive.url.rpartition("://")[2]), _contents(settings, archive)
    return CheckedFolder("archive", folder, "state_store.archive.url", needed=needed, contents=contents)


def _scratch(settings: TrainSettings) -> CheckedFolder:
    encryption, one = settings.state_store.encryption, checkpoint_bytes(settings) or 0.0
    assert encryption is not None, "there is encryption, or this folder would not be among the named ones"
    setting = "state_store.encryption.scratch"
    return CheckedFolder("scratch", encryption.scratch, setting, at_once=one, contents="a decrypted checkpoint")


def _contents(settings: TrainSettings, rules: RetentionSettings | ArchiveSettings) -> str:
    """Return the words for the checkpoints that are counted."""
    rest = uncounted_rules(settings, rules)
    return f"{_CONTENTS} without those of {' and '.join(rest)}" if rest else _CONTENTS
