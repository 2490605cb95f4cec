"""Estimates of the bytes that the checkpoints and the tokens of a run take on the disk."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.adapter_choice.lazy import lazy_attribute
from holdfast.bootstrap.doctor.named_places import data_places, hub_places, is_on_disk
from holdfast.bootstrap.doctor.storage_checks import CheckedFolder
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.stages.choose.memory_check import OPTIMIZER_BYTES, described_model
from holdfast.bootstrap.stages.identify.data_form import TOKENS_PER_BYTE, cache_folder
from holdfast.configs.sections.optimizer import TorchOptimizerSettings
from holdfast.configs.sections.state_store import DiskStateStoreSettings
from holdfast.configs.sections.tokenizer import TrainTokenizerSettings
from holdfast.domain.sizes import size_in_bytes
from holdfast.domain.training.memory_estimate import FP32
from holdfast.domain.training.run_forecast import num_checkpoints_kept
from holdfast.domain.urls import expanded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from holdfast.configs.sections.state_store import ArchiveSettings, RetentionSettings
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.training.memory_fit import SizedModel

_TOKEN_BYTES = 4
_COMPRESSED = {".gz": 4, ".zst": 4, ".parquet": 3, ".arrow": 1}
_MOST_FILES = 20_000


def checkpoint_bytes(settings: TrainSettings) -> float | None:
    """Return the least bytes of one checkpoint, None if the settings alone do not tell them."""
    model, optimizer = described_model(settings), settings.optimizer
    if model is None or settings.model.lora is not None or not isinstance(optimizer, TorchOptimizerSettings):
        return None
    average = FP32 if optimizer.ema is not None else 0
    number = model.num_parameters + _embedding(settings, model)
    return number * (FP32 + average + OPTIMIZER_BYTES[optimizer.algorithm])


def most_checkpoints(settings: TrainSettings, rules: RetentionSettings | ArchiveSettings) -> int:
    """Return the number of checkpoints that ``rules`` keep at once, with the one that is being written.

    Those of ``uncounted_rules`` are left out.
    """
    if (steps := _steps(settings)) is None:
        return rules.keep + rules.keep_best + 1
    kept = num_checkpoints_kept(
        steps,
        every=settings.state_store.every_steps,
        newest=rules.keep,
        keep_every=rules.keep_every,
        best=rules.keep_best,
    )
    return kept + 1


def uncounted_rules(settings: TrainSettings, rules: RetentionSettings | ArchiveSettings) -> Sequence[str]:
    """Return the names of the ``rules`` that keep a number of checkpoints which the settings alone do not tell."""
    names = ["keep_every"] if rules.keep_every and _steps(settings) is None else []
    return [*names, *(["keep_hours"] if rules.keep_hours else [])]


def token_bytes(settings: TrainSettings) -> float | None:
    """Return about as many bytes as the tokens of local files take in the cache; None if they are not known."""
    places = data_places(settings)
    if settings.data.kind == "tokens" or not places or any(place.is_remote or place.is_dataset for place in places):
        return None
    total = 0.0
    for place in places:
        for number, file in enumerate(_files_below(expanded(place.url))):
            if number >= _MOST_FILES:
                return None
            total += file.stat().st_size * _COMPRESSED.get(file.suffix, 1)
    return total * TOKENS_PER_BYTE * _TOKEN_BYTES


def _steps(settings: TrainSettings) -> int | None:
    """Return the steps of the budget; None if minutes alone or the end of the data may be what ends the run."""
    budget, batch, length = settings.run.budget, settings.optimizer.batch_size, settings.data.sequence_length
    if settings.data.epochs is not None:
        return None
    limits = [] if budget.steps is None else [budget.steps]
    if budget.tokens is not None and isinstance(batch, int) and isinstance(length, int):
        limits.append(-(-budget.tokens // (batch * length)))
    return min(limits, default=None)


def _embedding(settings: TrainSettings, model: SizedModel) -> int:
    """Return the parameters of an embedding whose vocabulary is that of the tokenizer to train."""
    given = {**dict(settings.model), **(settings.model.config or {})}.get("vocab_size")
    if given is not None or model.shape is None or not isinstance(settings.tokenizer, TrainTokenizerSettings):
        return 0
    return settings.tokenizer.vocabulary_size * model.shape.layer.hidden


def _files_below(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        for folder, _, names in os.walk(path):
            yield from (file for name in names if (file := Path(folder, name)).is_file())
    else:
        begin = Path(path.anchor)
        yield from (file for file in begin.glob(str(path.relative_to(path.anchor))) if file.is_file())


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
