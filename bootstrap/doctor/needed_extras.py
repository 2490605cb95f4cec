"""The extras of this package that settings need, and the setting that needs each."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from holdfast.bootstrap.doctor.named_places import data_places
from holdfast.configs.sections.base import PluginSettings
from holdfast.configs.sections.optimizer import TorchOptimizerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.configs.settings import TrainSettings

EXTRA_OF_SCHEME = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "http": "http", "https": "http"}
"""The extra for URLs, by the scheme of the URL."""
_TABLES = {".parquet", ".arrow"}
_MONITORS = frozenset({"tensorboard", "mlflow", "wandb", "trackio", "prometheus", "postgres", "page"})
_ALGORITHMS = {"lion": "lion", "adamw_8bit": "bnb"}
_BACKENDS = frozenset({"tiktoken", "gigatoken"})


def needed_extras(settings: TrainSettings) -> dict[str, str]:
    """Return the extras that a run with ``settings`` needs, each with the first setting that needs it."""
    found: dict[str, str] = {}
    for extra, setting in (*_of_data(settings), *_of_model(settings), *_of_state(settings), *_of_run(settings)):
        found.setdefault(extra, setting)
    return found


def _of_data(settings: TrainSettings) -> Iterator[tuple[str, str]]:
    data = settings.data
    for place in data_places(settings):
        if place.is_dataset:
            yield "datasets", f"{place.setting}={place.url}"
            continue
        scheme = place.url.partition("://")[0] if "://" in place.url else ""
        if scheme in EXTRA_OF_SCHEME:
            yield EXTRA_OF_SCHEME[scheme], f"{place.setting}={place.url}"
        if PurePosixPath(place.url).suffix in _TABLES or place.format in ("parquet", "arrow"):
            yield "parquet", f"{place.setting}={place.url}"
    if data.dedup is not None and data.dedup.kind == "minhash":
        yield "dedup", "data.dedup.kind=minhash"
    if data.lineage is not None:
        yield "lineage", "data.lineage"
    if any(transform.kind == "language" for transform in data.transforms):
        yield "language", "data.transforms, with language,"
    if data.cache.encryption is not None:
        yield "encryption", "data.cache.encryption"


def _of_model(settings: TrainSettings) -> Iterator[tuple[str, str]]:
    backend = None if isinstance(settings.tokenizer, PluginSettings) else settings.tokenizer.backend
    if backend in _BACKENDS:
        yield "fast", f"tokenizer.backend={backend}"
    lora = settings.model.lora
    if lora is not None:
        yield "lora", "model.lora"
        if lora.quantize == "4bit":
            yield "bnb", "model.lora.quantize=4bit"
    optimizer = settings.optimizer
    if optimizer.kind == "deepspeed":
        yield "deepspeed", "optimizer.kind=deepspeed"
    if optimizer.precision == "fp8":
        yield "fp8", "optimizer.precision=fp8"
    if isinstance(optimizer, TorchOptimizerSettings) and optimizer.algorithm in _ALGORITHMS:
        yield _ALGORITHMS[optimizer.algorithm], f"optimizer.algorithm={optimizer.algorithm}"


def _of_state(settings: TrainSettings) -> Iterator[tuple[str, str]]:
    store = settings.state_store
    if store.encryption is not None:
        yield "encryption", "state_store.encryption"
    if store.archive is not None and (extra := EXTRA_OF_SCHEME.get(store.archive.url.partition("://")[0])):
        yield extra, f"state_store.archive.url={store.archive.url}"
    if settings.ledger.kind == "postgres":
        yield "postgres", "ledger.kind=postgres"


def _of_run(settings: TrainSettings) -> Iterator[tuple[str, str]]:
    for monitor in settings.monitors:
        if monitor.kind in _MONITORS:
            yield monitor.kind, f"the monitor {monitor.kind}"
    if settings.evaluation.suites:
        yield "eval", "evaluation.suites"
    if settings.distributed.kind == "ray":
        yield "ray", "distributed.kind=ray"
