"""Whether model, tokenizer and data fit together, found out before anything is tokenized or weights are fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dependency_injector import providers

from holdfast.application.data.tokenizer_difference import find_difference
from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.configs.sections.tokenizer import HuggingFaceTokenizerSettings, TrainTokenizerSettings
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.bootstrap.wiring.container import Container
    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.tokenizer import Tokenizer

_REMEDY = (
    "leave the tokenizer's settings out to use the model's own, or set tokenizer.allow_other=true if the embeddings "
    "are to learn other tokens"
)


def take_former_tokenizer(container: Container, began: Mapping[str, Any] | None) -> TrainSettings:
    """Give ``container`` the tokenizer that a run ``began`` with if nobody chose one then or now; return all settings.

    Earlier versions trained one then, with which such a run continues.
    """
    settings: TrainSettings = container.settings()
    chosen = settings.tokenizer
    if began is not None and isinstance(chosen, HuggingFaceTokenizerSettings) and chosen.follows_model:
        former = TrainTokenizerSettings(backend=chosen.backend)
        if all(began.get(name) == getattr(former, name) for name in ("kind", "vocabulary_size", "max_bytes")):
            settings = settings.model_copy(update={"tokenizer": former})
            container.settings.override(providers.Object(settings))
    return settings


def check_description(container: Container, *, is_new: bool) -> None:
    """Raise ``ConfigurationError`` for what is wrong with the model or its tokenizer before there is a tokenizer.

    ``is_new`` tells a run that begins from one that continues, whose tokenizer was accepted when it began.
    """
    container.model_factory().check()
    settings: Any = container.settings()
    is_trained = isinstance(settings.tokenizer, TrainTokenizerSettings) and not container.tokenizer.overridden
    if not (is_new and is_trained and _is_bound(settings)):
        return
    of_model, largest = _tokenizer_of_model(settings), settings.tokenizer.vocabulary_size
    if of_model is None or of_model.vocabulary_size > largest:
        has = "another tokenizer" if of_model is None else f"a tokenizer of {of_model.vocabulary_size:,} ids"
        msg = (
            f"tokenizer.kind is train with at most {largest:,} ids, but the weights at {settings.model.path} were "
            f"trained with {has}: {_REMEDY}"
        )
        raise ConfigurationError(msg)


def check_tokenizer(container: Container, *, is_new: bool) -> None:
    """Raise ``ConfigurationError`` if the tokenizer does not fit the model, or is not that of its weights."""
    tokenizer: Tokenizer = container.tokenizer()
    container.model_factory().check(vocabulary_size=tokenizer.vocabulary_size)
    settings: Any = container.settings()
    is_own = _is_of_the_same_place(settings) and not container.tokenizer.overridden
    if is_own or not (is_new and _is_bound(settings)):
        return
    of_model = _tokenizer_of_model(settings)
    if of_model is not None and (difference := find_difference(of_model, tokenizer)) is not None:
        msg = f"the tokenizer is not that of the weights at {settings.model.path}: {difference}; {_REMEDY}"
        raise ConfigurationError(msg)


def _is_bound(settings: TrainSettings) -> bool:
    """Return whether the model's embeddings already mean the tokens of one tokenizer."""
    return bool(getattr(settings.model, "loads_weights", False)) and not settings.tokenizer.allow_other


def _is_of_the_same_place(settings: TrainSettings) -> bool:
    chosen, model = settings.tokenizer, settings.model
    return isinstance(chosen, HuggingFaceTokenizerSettings) and (chosen.path, chosen.revision) == (
        getattr(model, "path", None),
        getattr(model, "revision", None),
    )


def _tokenizer_of_model(settings: TrainSettings) -> Tokenizer | None:
    """Return the tokenizer that lies beside the weights, None if there is none that can be loaded."""
    load = lazy("holdfast.adapters.tokenizer.huggingface:HuggingfaceTokenizer.load")
    model: Any = settings.model
    try:
        tokenizer: Tokenizer = load(model.path, revision=getattr(model, "revision", None), backend="huggingface")
    except ConfigurationError:
        return None
    return tokenizer
