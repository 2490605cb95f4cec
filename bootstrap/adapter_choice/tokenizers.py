"""Makes the tokenizer that the settings name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.configs.sections.tokenizer import HuggingFaceTokenizerSettings, TrainTokenizerSettings
from holdfast.domain.phase import show_nothing

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.data_source import DataSource, Document, Rejected, Unit
    from holdfast.ports.tokenizer import Tokenizer


@final
@dataclass(frozen=True, slots=True)
class TrainingTexts:
    """The texts to train a tokenizer on: those of ``source`` that ``usable`` returns, a choice identified by ``key``.

    ``judge`` decides what happens to records that cannot be used.
    """

    source: DataSource
    usable: Callable[[Document], str | None]
    key: str
    judge: Callable[[Unit, Rejected, Callable[[Unit, Rejected], str] | None], object]


@final
@dataclass(frozen=True, slots=True)
class TokenizerRequest:
    """The settings of a tokenizer; ``texts`` returns what it is trained on if the settings name none that exists."""

    settings: TrainSettings
    texts: Callable[[], TrainingTexts]
    report: Callable[[str], object]
    show: ShowPhase = show_nothing


def train_tokenizer(request: TokenizerRequest) -> Tokenizer:
    """Return the tokenizer of the texts, from the cache folder if it was trained on them before."""
    chosen, texts = request.settings.tokenizer, request.texts()
    assert isinstance(chosen, TrainTokenizerSettings)
    made: Tokenizer = lazy("holdfast.adapters.tokenizer.train:train_tokenizer")(
        texts.source,
        vocabulary_size=chosen.vocabulary_size,
        max_bytes=chosen.max_bytes,
        special_tokens=chosen.special_tokens,
        cache_dir=request.settings.run.cache_directory,
        add_bos=chosen.add_bos,
        backend=chosen.backend,
        usable=texts.usable,
        usable_key=texts.key,
        judge=texts.judge,
        report=request.report,
        show=request.show,
    )
    return made


def load_tokenizer(request: TokenizerRequest) -> Tokenizer:
    """Return the tokenizer in the file or folder, or on the hub, that the settings name."""
    chosen = request.settings.tokenizer
    assert isinstance(chosen, HuggingFaceTokenizerSettings)
    made: Tokenizer = lazy("holdfast.adapters.tokenizer.huggingface:HuggingfaceTokenizer.load")(
        chosen.path,
        revision=chosen.revision,
        add_bos=chosen.add_bos,
        loader=chosen.loader,
        backend=chosen.backend,
        report=request.report,
        follows_model=chosen.follows_model,
    )
    return made
