"""The form of the data of a run: cached or streamed, mixed, and as texts for a tokenizer."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import shutil
from fractions import Fraction
from typing import TYPE_CHECKING

from holdfast.adapters.shared.token_store.token_folder import MARKER
from holdfast.configs.sections.data import MixtureDataSettings
from holdfast.domain.data.mixture import Mixture, Stage
from holdfast.domain.data.sample_order import Growth
from holdfast.domain.errors import DataError
from holdfast.domain.sizes import shown_size
from holdfast.domain.training.conversation_record import completion_from, conversation_from, plain_text
from holdfast.domain.training.preference_record import preference_from
from holdfast.domain.urls import expanded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.application.data.record_pipeline import RecordPipeline
    from holdfast.configs.sections.data import FeedSettings
    from holdfast.configs.sections.run import RunSettings
    from holdfast.domain.data.holdout import Holdout
    from holdfast.ports.data_source import DataSource, Document

TOKENS_PER_BYTE = 0.4  # of text in the languages that tokenizers know least
MIXTURE_BLOCK = 1024
UNGROWN = Growth()


def choose_mode(
    source: DataSource, data: FeedSettings, folder: Path, keep_choice: Callable[[str, str, str], str]
) -> str:
    """Return ``cache`` or ``stream``; the first choice for ``auto`` is kept, as the order of the data depends on it."""
    if data.are_tokens:
        return "cache"
    if data.holds_pairs:  # the reference log-probabilities are kept beside cached tokens
        return "cache"
    if data.mode != "auto":
        return data.mode
    parts = [(part, [unit.size for unit in part.units()]) for part in parts_of(source)]
    needed = int(sum(sum(sizes) for _, sizes in parts) * TOKENS_PER_BYTE * 4)
    room = cache_budget(data, folder)
    if any(not all(sizes) and part.files() is None for part, sizes in parts):  # a file may be empty
        return keep_choice("data.mode", "stream", "the size of the source is unknown")
    if needed > room:
        return keep_choice("data.mode", "stream", f"about {needed:,} bytes of tokens do not fit into {room:,}")
    return keep_choice("data.mode", "cache", f"about {needed:,} bytes of tokens fit into {room:,}")


def cache_folder(data: FeedSettings, run: RunSettings) -> Path:
    """Return the folder of the token cache; encrypted and plain tokens have different folders."""
    if data.cache.dir is not None:
        return expanded(data.cache.dir)
    return run.cache_directory / ("tokens" if data.cache.encryption is None else "encrypted-tokens")


def cache_budget(data: FeedSettings, folder: Path) -> int:
    """Return the largest size of the cache in bytes."""
    return data.cache.budget or cache_room(folder)


def parts_of(source: DataSource) -> Sequence[DataSource]:
    """Return the sources of a mixture, or the one source."""
    return tuple(getattr(source, "parts", {"": source}).values())


def mixture_of(data: FeedSettings, seed: int, rules: Mapping[str, int]) -> Mixture:
    """Return the mixture, which chooses the source of each sample, by the settings.

    Stages begin at rows; by the first of the ``rules`` for them they begin at blocks of rows.
    """
    if not isinstance(data, MixtureDataSettings):
        return Mixture(seed, (Stage(0, (1,)),))
    rows = MIXTURE_BLOCK if rules["mixture_stages"] == 1 else 1
    stages = [Stage(0, _whole_weights([source.weight for source in data.giving.values()]))]
    for stage in data.stages:
        start = -(-stage.after_tokens // (data.row_length * rows)) * rows
        stages.append(Stage(start, _whole_weights([stage.weights.get(name, 0) for name in data.giving])))
    return Mixture(seed, tuple(stages), MIXTURE_BLOCK, tuple(data.giving))


def _whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Return whole numbers in the exact ratios of ``weights`` as they are written; whole numbers stay as they are."""
    exact = [Fraction(str(weight)) for weight in weights]
    scale = math.lcm(*(weight.denominator for weight in exact))
    return tuple(int(weight * scale) for weight in exact)


def usable_text(holdout: Holdout, pipeline: RecordPipeline, task: str = "text") -> Callable[[Document], str | None]:
    """Return a function from a document to the text that a tokenizer may be trained on, None for no text."""

    def usable(document: Document) -> str | None:
        # the reader that reads the document for training decides what a failed transform does to the run
        text = None if holdout.holds_text(document.text) else pipeline.text_of(document)
        return text if text is None or task == "text" else _words_of(text, task)

    return usable


def _words_of(text: str, task: str) -> str | None:
    """Return what is said in a record of a ``task``, without its names of fields; None if it cannot be used."""
    try:
        if task == "completion":
            return "".join(completion_from(text))
        return plain_text(preference_from(text).chosen if task == "preference" else conversation_from(text))
    except DataError:
        return None


def usable_key(holdout: Holdout, pipeline: RecordPipeline, task: str = "text") -> str:
    """Return the key that identifies the result of ``usable_text``."""
    documents = repr(holdout) if holdout.chosen is None else holdout.key
    return json.dumps([documents, *pipeline.fingerprints, *([] if task == "text" else [task, 1])])


def hashing_phase(num_bytes: int) -> str:
    """Return the phase that is shown while ``num_bytes`` bytes are hashed."""
    return f"hashing {shown_size(num_bytes)} of data"


_KEPT_DESCRIPTORS = 192  # for the shards of the rows that are read at a time, and all else


def nearest_folder(path: Path) -> Path:
    """Return ``path``, or the nearest folder above it that exists."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


def free_bytes(path: Path) -> int:
    """Return the free space of the file system of ``path``, which need not exist yet."""
    return shutil.disk_usage(nearest_folder(path)).free


def cache_room(folder: Path) -> int:
    """Return the largest size in bytes of a cache at ``folder``: nine tenths of the free space and its own size."""
    return (free_bytes(folder) + _bytes_of_cache(folder)) * 9 // 10


def _bytes_of_cache(folder: Path) -> int:
    if not (folder / MARKER).exists():
        return 0  # a folder that is not a cache, of any size
    num_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # another process makes room
                num_bytes += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118  a million paths
    return num_bytes


def open_shards(data: FeedSettings) -> int:
    """Return the number of shards of one source that may stay open; each takes a file descriptor of the process."""
    sources = len(data.giving) if isinstance(data, MixtureDataSettings) else 1
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(8, min(1024, (limit - _KEPT_DESCRIPTORS) // 2 // sources))
