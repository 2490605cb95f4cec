"""Identifies the data of a run: their sources, what is held out and left out, the tokenizer and the encoder."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from holdfast.bootstrap.adapter_choice import data_sources as sources
from holdfast.bootstrap.adapter_choice.tokenizers import TokenizerRequest, TrainingTexts
from holdfast.bootstrap.stages.identify.data import Data, Found, RecordRules, RunData
from holdfast.bootstrap.stages.identify.data_form import cache_folder, choose_mode, mixture_of, usable_key, usable_text
from holdfast.bootstrap.stages.identify.document_encoder import build_encoder, with_chat_template
from holdfast.bootstrap.stages.identify.hold_out import exclusion_of, hold_out
from holdfast.bootstrap.stages.identify.record_pipeline import build_rejection_limit, fields_read, load_transforms
from holdfast.bootstrap.stages.open_run.record_files import rejections_of
from holdfast.configs.sections.data import TokensDataSettings
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.application.data.rejected_records import RejectedRecords
    from holdfast.bootstrap.stages.request import Request
    from holdfast.domain.data.holdout import Holdout
    from holdfast.ports.token_source import TokenSource
    from holdfast.ports.tokenizer import Tokenizer


def find_data(request: Request, rejections: RejectedRecords | None = None) -> Found:
    """Return the data of the settings of ``request``; records that cannot be used go to ``rejections``."""
    data, rules = request.settings.data, request.begun.rules
    transforms = load_transforms(data)
    fields = fields_read(transforms, data, rules)
    source = request.ports.data_source(data, request.begun, fields)
    tokenizer = token_files = None
    if data.are_tokens:
        tokenizer = open_tokenizer(request)
        token_files = _open_tokens(request, tokenizer)
    records = RecordRules(
        transforms, fields, rejections_of(data) if rejections is None else rejections, build_rejection_limit(data)
    )
    return Found(
        request,
        records,
        RunData(source, token_files),
        tokenizer,
        choose_mode(source, data, cache_folder(data, request.settings.run), request.keep_choice),
        mixture_of(data, request.settings.run.seed, rules),
        exclusion_of(data),
    )


def open_tokenizer(request: Request, texts: Callable[[], TrainingTexts] | None = None) -> Tokenizer:
    """Return the tokenizer of the settings with its chat template; one that is trained needs ``texts``."""
    made = request.ports.tokenizer(TokenizerRequest(request.settings, texts or _no_texts, request.report, request.show))
    return with_chat_template(made, request.settings.data, request.begun.rules["files"])


def identify(
    found: Found, data: RunData, *, tokenizer: Tokenizer | None = None, holdout: Holdout | None = None
) -> Data:
    """Return ``data``, those that the run reads of what was ``found``, with all that makes tokens of them.

    ``tokenizer`` and ``holdout`` are those of the settings unless they are given.
    """
    request = found.request
    if holdout is None:
        holdout = hold_out(data.source, found.settings, found.report, found.show, request.begun.holdout)
    tokenizer = tokenizer or found.tokenizer
    if tokenizer is None:
        tokenizer = open_tokenizer(request, partial(_texts, found, data, holdout))
    encoder = request.ports.part("document_encoder", partial(build_encoder, found.settings.data, tokenizer))
    return Data(found, data, tokenizer, encoder, found.pipeline(data, tokenizer), holdout)


def _texts(found: Found, data: RunData, holdout: Holdout) -> TrainingTexts:
    chosen = (holdout, found.pipeline(data, None), found.settings.data.task)
    return TrainingTexts(data.source, usable_text(*chosen), usable_key(*chosen), found.records.rejections.reject)


def _no_texts() -> TrainingTexts:
    raise ConfigurationError(sources.NO_TEXT)


def _open_tokens(request: Request, tokenizer: Tokenizer) -> TokenSource:
    data = request.settings.data
    assert isinstance(data, TokensDataSettings)
    return sources.open_tokens(
        request.begun.rules["files"],
        sources.placed(data.path, request.begun.places),
        folder=cache_folder(data, request.settings.run),
        end_of_text=tokenizer.end_of_text,
        vocabulary_size=tokenizer.vocabulary_size,
        dtype=data.dtype,
        column=data.column,
    )
