"""Checks that model, tokenizer and data fit together, before anything is tokenized or downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.application.data.tokenizer_difference import find_difference
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.configs.ready_configurations import FORMER_HOLDOUT, with_holdout
from holdfast.configs.sections.tokenizer import (
    FORMER_VALUES,
    BackendSettings,
    HuggingFaceTokenizerSettings,
    TrainTokenizerSettings,
)
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.model_factory import Model, ModelFactory
    from holdfast.ports.tokenizer import Tokenizer

_REMEDY = (
    "leave the tokenizer's settings out to use the model's own, or set tokenizer.allow_other=true if the embeddings "
    "are to learn other tokens"
)


def with_former_settings(settings: TrainSettings, began: Mapping[str, Any] | None) -> TrainSettings:
    """Return ``settings`` with what the run of the settings ``began`` does by default, where nothing else is chosen.

    Earlier versions trained a tokenizer beside the weights of another model, put no further tokens around documents,
    kept the dropout of a model that learns preferences, and held out fewer documents of the Python library, each by
    itself. The run continues so.
    """
    if began is None:
        return settings
    if (data := with_holdout(settings.data, {**FORMER_HOLDOUT, **began["data"]})) != settings.data:
        settings = settings.model_copy(update={"data": data})
    tokenizer, optimizer = settings.tokenizer, settings.optimizer
    if isinstance(tokenizer, BackendSettings):
        settings = settings.model_copy(update={"tokenizer": _former_tokenizer(tokenizer, began["tokenizer"])})
    is_free = "dpo" in type(optimizer).model_fields and "disable_dropout" not in optimizer.dpo.model_fields_set
    if settings.data.task == "preference" and is_free:
        is_off = began["optimizer"].get("dpo", {}).get("disable_dropout", False)
        dpo = optimizer.dpo.model_copy(update={"disable_dropout": is_off})
        settings = settings.model_copy(update={"optimizer": optimizer.model_copy(update={"dpo": dpo})})
    return settings


def _former_tokenizer(chosen: BackendSettings, began: Mapping[str, Any]) -> BackendSettings:
    found = chosen
    if isinstance(chosen, HuggingFaceTokenizerSettings) and chosen.follows_model:
        former = TrainTokenizerSettings(backend=chosen.backend)
        if former.model_dump(include={"kind", "vocabulary_size", "max_bytes"}).items() <= began.items():
            found = former
    unchosen = FORMER_VALUES.keys() - chosen.model_fields_set
    kept = {name: value for name, value in {**FORMER_VALUES, **began}.items() if name in unchosen}
    return found.model_copy(update=kept)


def check_description(
    factory: ModelFactory[Model], settings: Any, *, is_new: bool, replaces_tokenizer: bool = False
) -> None:
    """Check the description of the model and its tokenizer, before the tokenizer exists.

    ``is_new`` is False for a run that continues: its tokenizer was accepted when it began. With
    ``replaces_tokenizer`` the host program provides the tokenizer. Raises ``ConfigurationError`` if they do not fit.
    """
    for name, section in (("model", settings.model), ("tokenizer", settings.tokenizer)):
        refuse_run_folder(f"{name}.path=", dict(section).get("path"))
    factory.check()
    is_trained = isinstance(settings.tokenizer, TrainTokenizerSettings) and not replaces_tokenizer
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


def refuse_run_folder(name: str, path: str | None) -> None:
    """Raise ``ConfigurationError`` if ``path``, given to name a model as ``name`` says, is the folder of a run."""
    layout = RunLayout(Path(path or ""))
    is_checkpoint = any((layout.root / file).exists() for file in ("config.json", "COMMIT"))
    if not path or is_checkpoint or not layout.record.is_file():
        return
    newest = layout.newest_durable_step()
    msg = f"{name}{path} is the folder of a run, which has no checkpoint yet"
    if newest:
        msg = (
            f"{name}{path} is the folder of a run: name its newest checkpoint, {layout.checkpoint(newest)}, or another"
        )
    raise ConfigurationError(msg)


def check_tokenizer(
    tokenizer: Tokenizer,
    factory: ModelFactory[Model],
    settings: Any,
    *,
    is_new: bool,
    replaces_tokenizer: bool = False,
) -> None:
    """Check the tokenizer.

    Raises ``ConfigurationError`` if it does not fit the model, if the weights of the model had another, or if a new run
    has one from outside whose files are those of none.
    """
    factory.check(vocabulary_size=tokenizer.vocabulary_size)
    if is_new and not type(tokenizer).__module__.startswith("holdfast.adapters."):
        lazy("holdfast.adapters.tokenizer.model_tokenizer:check_written")(tokenizer)
    is_own = _is_of_the_same_place(settings) and not replaces_tokenizer
    if is_own or not (is_new and _is_bound(settings)):
        return
    of_model = _tokenizer_of_model(settings)
    if of_model is not None and (difference := find_difference(of_model, tokenizer)) is not None:
        msg = f"the tokenizer is not that of the weights at {settings.model.path}: {difference}; {_REMEDY}"
        raise ConfigurationError(msg)


def _is_bound(settings: TrainSettings) -> bool:
    """Return whether the model's embeddings were trained with the tokens of one tokenizer."""
    return settings.model.loads_weights and not settings.tokenizer.allow_other


def _is_of_the_same_place(settings: TrainSettings) -> bool:
    chosen, model = settings.tokenizer, settings.model
    return isinstance(chosen, HuggingFaceTokenizerSettings) and (chosen.path, chosen.revision) == (
        model.path,
        model.revision,
    )


def _tokenizer_of_model(settings: TrainSettings) -> Tokenizer | None:
    """Return the tokenizer in the folder of the weights, None if no tokenizer there can be loaded."""
    load = lazy("holdfast.adapters.tokenizer.huggingface:HuggingfaceTokenizer.load")
    model: Any = settings.model
    try:
        chosen = settings.tokenizer
        options = chosen.model_dump(include={"add_bos", "loader"}) if isinstance(chosen, BackendSettings) else {}
        tokenizer: Tokenizer = load(model.path, revision=model.revision, backend="huggingface", **options)
    except ConfigurationError:
        return None
    return tokenizer
