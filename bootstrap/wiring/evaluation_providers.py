"""The documents and texts of evaluations, as providers of the container."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dependency_injector import providers

from holdfast.application.data.holdout_batches import HoldoutBatches, PairGroups, ShardGroups, TextGroups
from holdfast.application.training.sample_prompts import PromptSampler
from holdfast.bootstrap.wiring.data_streams import holds_pairs
from holdfast.bootstrap.wiring.document_encoder import template_in_use
from holdfast.bootstrap.wiring.evaluation_sets import counts_text, prompts_of, sampling_of, source_numbers
from holdfast.bootstrap.wiring.score_ranges import distinct_readers

if TYPE_CHECKING:
    from holdfast.configs.sections.data import FeedSettings


def held_out_documents(
    settings: providers.Dependency[Any],
    form: providers.Provider[Any],
    documents: tuple[providers.Provider[Any], ...],
    reference: providers.Provider[Any],
    choice: tuple[providers.Provider[Any], providers.Provider[Any], providers.Provider[Any]],
    excluded: providers.Provider[Any],
    mixture: providers.Provider[Any],
) -> providers.Singleton[HoldoutBatches]:
    """Return the documents that a run holds out, of text, of pairs or of tokens.

    ``documents`` are readers of text, files of tokens, and token caches; ``reference`` is the late value of the column
    of the reference model; ``choice`` are hold-out, packing and the versions of rules that the run began with.
    """
    readers, token_files, caches = documents
    holdout, packing, rules = choice
    seed = settings.provided.run.seed
    numbers = providers.Callable(source_numbers, readers, settings.provided.data)
    distinct, counts = providers.Callable(distinct_readers, readers), providers.Callable(counts_text, rules)
    records = providers.Selector(
        providers.Callable(_form_of_records, settings.provided.data),
        text=providers.Singleton(TextGroups, distinct, holdout, seed, numbers, counts_text=counts),
        pairs=providers.Singleton(PairGroups, caches.provider, reference.provided.get, seed),
    )
    return providers.Singleton(
        HoldoutBatches,
        providers.Selector(form, text=records, tokens=providers.Singleton(ShardGroups, token_files)),
        holdout,
        packing,
        holds_pairs=providers.Callable(holds_pairs, settings.provided.data),
        rows=settings.provided.evaluation.batch_size,
        max_tokens=settings.provided.evaluation.max_tokens,
        excluded=excluded,
        sources=mixture.provided.names,
    )


def _form_of_records(data: FeedSettings) -> str:
    return "pairs" if holds_pairs(data) else "text"


def prompt_sampler(
    settings: providers.Dependency[Any],
    trainable: providers.Provider[Any],
    tokenizer: providers.Provider[Any],
    group: providers.Provider[Any],
    **reports: providers.Provider[Any],
) -> providers.Singleton[PromptSampler]:
    """Return the sampler of the prompts in the settings; ``reports`` are as in ``PromptSampler``."""
    evaluation = settings.provided.evaluation
    prompts, sampling = providers.Callable(prompts_of, evaluation), providers.Callable(sampling_of, evaluation)
    template = providers.Callable(template_in_use, settings.provided.data, tokenizer)
    return providers.Singleton(
        PromptSampler, trainable, tokenizer, prompts, sampling, group, template=template, **reports
    )
