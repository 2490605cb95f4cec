"""Builds the parts of an evaluation: the sources of documents, named sets, and prompts with their sampling."""

from __future__ import annotations

import json
import os
import re
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from holdfast.application.data.holdout_batches import HoldoutBatches, SourceNumbers, TextGroups
from holdfast.application.data.text_reader import TextReader
from holdfast.bootstrap.adapter_choice.data_sources import open_source, report_remarks
from holdfast.bootstrap.stages.identify.record_pipeline import text_field_of
from holdfast.bootstrap.stages.identify.score_ranges import is_in_range, score_ranges
from holdfast.domain.data.holdout import Holdout
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.text_generation import Sampling
from holdfast.domain.urls import expanded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.record_pipeline import RecordPipeline
    from holdfast.application.data.rejected_records import RejectedRecords
    from holdfast.bootstrap.stages.identify.data import RunData
    from holdfast.configs.sections.data import FeedSettings
    from holdfast.configs.sections.evaluation import EvaluationSettings
    from holdfast.configs.sections.sources import FilesSource, HuggingFaceSource, ScoreRange
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.data.data_files import DataFiles
    from holdfast.domain.data.packing import Packing
    from holdfast.ports.data_source import DataSource, Unit
    from holdfast.ports.document_encoder import DocumentEncoder

_NUMBERED = re.compile(r"data\.path\[(\d+)\](.*)")  # one of several paths, and what is below it


def source_numbers(readers: Sequence[TextReader], data: FeedSettings) -> SourceNumbers:
    """Return the function from documents of a distinct reader to the numbers of their sources.

    ``readers`` has one reader for each source. Sources that are ranges of the score of the same documents share one
    reader; a document belongs to the first of them whose range holds its score.
    """
    ranges = score_ranges(data) or [None] * len(readers)
    sharing: dict[str, list[tuple[int, ScoreRange | None]]] = {}
    for number, (reader, score) in enumerate(zip(readers, ranges, strict=True)):
        sharing.setdefault(json.dumps(reader.fingerprints), []).append((number, score))
    sources = list(sharing.values())

    def numbers(reader: int, scores: Sequence[Mapping[str, float]]) -> NDArray[np.int64]:
        found = np.full(len(scores), -1)
        for number, score in reversed(sources[reader]):
            if score is None:
                found[:] = number
            else:
                values = np.array([each.get(score.name, np.nan) for each in scores])
                found[is_in_range(values, score)] = number
        return found

    return numbers


def counts_text(rules: Mapping[str, int]) -> bool:
    """Return whether bits per byte count the bytes of the texts, and not those that the tokens hold, by the rules."""
    return rules["text_bytes"] > 1


def evaluation_sets(
    settings: TrainSettings,
    rules: Mapping[str, int],
    fields: Sequence[str],
    encoder: DocumentEncoder,
    rejections: RejectedRecords,
    pipeline: RecordPipeline,
    packing: Packing,
) -> Mapping[str, HoldoutBatches]:
    """Return the documents of each set of ``evaluation.sets``, read and encoded as the training data are."""
    sets: dict[str, HoldoutBatches] = {}
    for name, section in (settings.evaluation.sets or {}).items():
        whole = Holdout(1.0, settings.run.seed)
        source = _open_set(section, settings, fields, rules["files"])
        reader = TextReader(source, encoder, rejections, pipeline)
        sets[name] = HoldoutBatches(
            TextGroups([reader], whole, settings.run.seed, counts_text=counts_text(rules)),
            whole,
            packing,
            rows=settings.evaluation.batch_size,
            max_tokens=settings.evaluation.max_tokens,
        )
    return sets


def prompts_of(evaluation: EvaluationSettings) -> Sequence[str]:
    """Return the prompts in the settings and in their file, in order; raises ``ConfigurationError`` without a file."""
    path = evaluation.prompts_file
    if path is None:
        return evaluation.prompts
    try:
        lines = expanded(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        msg = f"evaluation.prompts_file is {path}, which cannot be read: {reason}"
        raise ConfigurationError(msg) from error
    return [*evaluation.prompts, *filter(None, lines)]


def sampling_of(evaluation: EvaluationSettings) -> Sampling:
    """Return the sampling of the first prompt."""
    chosen = evaluation.sampling
    return Sampling(chosen.max_new_tokens, chosen.temperature, chosen.top_k, seed=chosen.seed)


def _open_set(
    section: FilesSource | HuggingFaceSource, settings: TrainSettings, fields: Sequence[str], rules: int
) -> DataSource:
    """Return the documents of a set, which may have the text under another name than the training data."""
    text = text_field_of(settings.data)
    own = [name for name in fields if name != text or name == section.text_field]
    return open_source(section, rules=rules, fields=own, task=settings.data.task)


def check_files(
    settings: TrainSettings, fields: Sequence[str], rules: int, data: RunData, report: Callable[[str], object]
) -> None:
    """Report remarks on the files of ``data`` and ``evaluation.sets``, opened by ``rules``.

    Raises ``ConfigurationError`` if a set holds a file of ``data``, also one added later, or rows of a dataset that is
    read there.
    """
    report_remarks(data.source, settings.data, report)
    if not settings.evaluation.sets or settings.data.are_tokens:
        return
    trained = [data.source, *data.added]
    files = [source.files() for source in trained]
    stamps = {stamp for each in files if each is not None for stamp in _stamps_of(each).values()}
    for name, section in settings.evaluation.sets.items():
        source = _open_set(section, settings, fields, rules)
        report_remarks(source, settings.data, partial(_report_of_set, report, name))
        if shared := _shared_with(source, section.path, trained, stamps):
            msg = f"evaluation.sets.{name} holds {shared} of data: a set is never trained on, so leave it out of either"
            raise ConfigurationError(msg)


def _shared_with(
    source: DataSource, path: str | Sequence[str], trained: Sequence[DataSource], stamps: Collection[object]
) -> str | None:
    """Return, as a clause, what the set ``source`` of ``path`` has in common with the sources ``trained``.

    ``stamps`` identify their files. Parts of a split may lie in the same file, so their rows tell.
    """
    if isinstance(path, str):
        same = [
            (own, unit)
            for unit in (unit for each in trained for unit in each.units())
            for own in source.units()
            if own.etag == unit.etag
        ]
        if any(_overlap(own, unit) for own, unit in same):
            return f"{same[0][0].name}, rows that are also rows"
        if same:
            return None
    ours = source.files()
    shared = [file for file, stamp in (_stamps_of(ours) if ours else {}).items() if stamp in stamps]
    paths = [path] if isinstance(path, str) else path
    return f"{_path_of(shared[0], paths)}, which is also a file" if shared else None


def _overlap(one: Unit, other: Unit) -> bool:
    return (other.stop is None or one.start < other.stop) and (one.stop is None or other.start < one.stop)


def _stamps_of(files: DataFiles) -> Mapping[str, object]:
    """Return what identifies each of ``files``, by name: its place on a disk, by whatever path, or else its stamp."""
    found: dict[str, object] = {}
    for file in files.files:
        source, sign, name = file.name.partition(": ")
        paths = files.places.get(source if sign else "", ())
        path = _path_of(name if sign and paths else file.name, paths or files.places.get("", ("",)))
        try:
            status = os.stat(path)  # noqa: PTH116  a URL is no path
            found[file.name] = (status.st_dev, status.st_ino)
        except OSError:
            found[file.name] = file.stamp
    return found


def _report_of_set(report: Callable[[str], object], name: str, line: str) -> None:
    report(f"evaluation.sets.{name}: {line}")


def _path_of(file: str, paths: Sequence[str]) -> str:
    """Return the path of a file that a source of ``paths`` calls ``file``."""
    number = _NUMBERED.fullmatch(file)
    return f"{paths[0]}{file and f'/{file}'}" if number is None else f"{paths[int(number[1])]}{number[2]}"
