"""Chooses the documents that a run holds out, by its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.token_store.duplicate_files import DuplicateFiles
from holdfast.application.data.choose_holdout import choose_groups, choose_holdout
from holdfast.bootstrap.wiring.data_streams import cache_folder, form_of
from holdfast.bootstrap.wiring.encryption_keys import build_shard_encryption
from holdfast.domain.data.holdout import Holdout
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.data_source import DataSource


def hold_out(source: DataSource, settings: TrainSettings, report: Callable[[str], object], show: ShowPhase) -> Holdout:
    """Return the documents of ``source`` to hold out; raises the errors of reading if they must be known for it."""
    data: Any = settings.data
    seed, is_fold = settings.run.seed, data.folds is not None
    wanted = Holdout.fold(data.fold, data.folds, seed) if is_fold else Holdout(data.holdout, seed)
    if data.holdout_by == "similar_documents":
        if form_of(data) == "tokens":
            msg = "data.holdout_by=similar_documents compares texts, and data.kind=tokens has no text: leave it out"
            raise ConfigurationError(msg)
        store = DuplicateFiles(cache_folder(data, settings.run), build_shard_encryption(data.cache.encryption))
        return choose_groups(source, wanted, store, report, show, is_fold=is_fold)
    return wanted if is_fold or form_of(data) == "tokens" else choose_holdout(source, wanted, report)
