"""The data sources and tokenizers that a run chooses from."""

from __future__ import annotations

from typing import Any

from dependency_injector import providers

from holdfast.bootstrap.wiring import data_sources as sources
from holdfast.bootstrap.wiring.data_streams import (
    cached_batches,
    holds_pairs,
    streamed_batches,
    usable_key,
    usable_text,
)
from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.bootstrap.wiring.score_ranges import score_ranges


def data_sources(
    settings: providers.Dependency[Any],
    places: providers.Provider[Any],
    rules: providers.Provider[Any],
    fields: providers.Provider[Any],
) -> providers.Selector[Any]:
    """Return the choice of data sources, read by ``rules``; their documents carry ``fields``."""
    data = settings.provided.data
    return providers.Selector(
        data.kind,
        python_library=providers.Singleton(
            lazy("holdfast.adapters.data_source.python_library:PythonLibraryDataSource")
        ),
        files=providers.Singleton(sources.open_files, data, places, rules, fields, data.task),
        huggingface=providers.Singleton(sources.open_dataset, data, rules, fields, data.task),
        mixture=providers.Singleton(sources.mix, data, places, rules, fields, data.task),
        tokens=providers.Singleton(sources.NoText),
    )


def tokenizers(
    settings: providers.Dependency[Any],
    source: providers.Provider[Any],
    usable: tuple[providers.Provider[Any], ...],
    **training: Any,
) -> providers.Selector[Any]:
    """Return the choice of tokenizers; ``training`` are further arguments of one that is trained on ``source``.

    ``usable`` are the arguments of ``usable_text``, which chooses the texts to train it on.
    """
    chosen, report = settings.provided.tokenizer, training["report"]
    return providers.Selector(
        chosen.kind,
        train=providers.Singleton(
            lazy("holdfast.adapters.tokenizer.train:train_tokenizer"),
            source,
            vocabulary_size=chosen.vocabulary_size,
            max_bytes=chosen.max_bytes,
            special_tokens=chosen.special_tokens,
            cache_dir=settings.provided.run.cache_directory,
            add_bos=chosen.add_bos,
            backend=chosen.backend,
            usable=providers.Callable(usable_text, *usable),
            usable_key=providers.Callable(usable_key, *usable),
            **training,
        ),
        huggingface=providers.Singleton(
            lazy("holdfast.adapters.tokenizer.huggingface:HuggingfaceTokenizer.load"),
            chosen.path,
            revision=chosen.revision,
            add_bos=chosen.add_bos,
            loader=chosen.loader,
            backend=chosen.backend,
            report=report,
            follows_model=chosen.follows_model,
        ),
    )


def token_sources(
    settings: providers.Dependency[Any],
    places: providers.Provider[Any],
    folder: providers.Provider[Any],
    tokenizer: providers.Provider[Any],
    rules: providers.Provider[Any],
) -> providers.Singleton[Any]:
    """Return the files of data that are tokens already; ``folder`` is that of the token cache."""
    return providers.Singleton(
        sources.open_tokens,
        rules,
        providers.Callable(sources.placed, settings.provided.data.path, places),
        folder=folder,
        end_of_text=tokenizer.provided.end_of_text,
        vocabulary_size=tokenizer.provided.vocabulary_size,
        dtype=settings.provided.data.dtype,
        column=settings.provided.data.column,
    )


def batch_streams(
    settings: providers.Dependency[Any],
    mode: providers.Provider[Any],
    documents: tuple[providers.Provider[Any], providers.Provider[Any]],
    order: tuple[providers.Provider[Any], ...],
    changes: tuple[Any, providers.Provider[Any]],
    streaming: tuple[providers.Provider[Any], providers.Provider[Any]],
) -> providers.Selector[Any]:
    """Return the choice between batches of cached tokens and streamed ones, by ``mode``.

    ``documents`` are the tokens of the first and the readers of the second. ``order`` are mixture, packing, hold-out
    and share of both, ``changes`` the growth of the data and the excluded documents, ``streaming`` the rules of the run
    and the group of ranks.
    """
    data, (tokens, readers), (growth, excluded), (rules, group) = settings.provided.data, documents, changes, streaming
    cached = providers.Singleton(
        cached_batches,
        tokens,
        *order,
        data.epochs,
        growth,
        excluded,
        ranges=providers.Callable(score_ranges, data),
        holds_pairs=providers.Callable(holds_pairs, data),
    )
    streamed = providers.Singleton(
        streamed_batches, readers, *order, excluded, data=data, row_order=rules.provided["row_order"], group=group
    )
    return providers.Selector(mode, cache=cached, stream=streamed)
