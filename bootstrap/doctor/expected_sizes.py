"""Estimates of the bytes that the checkpoints and the tokens of a run take on the disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.doctor.named_places import data_places
from holdfast.bootstrap.wiring.data_streams import TOKENS_PER_BYTE
from holdfast.bootstrap.wiring.memory_check import OPTIMIZER_BYTES, described_model
from holdfast.configs.sections.optimizer import TorchOptimizerSettings
from holdfast.configs.sections.tokenizer import TrainTokenizerSettings
from holdfast.domain.home_folder import expanded
from holdfast.domain.training.memory_estimate import FP32
from holdfast.domain.training.run_forecast import num_checkpoints_kept

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
