"""The data of a run: as they are found, as the run reads them, and how they become tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, final

from holdfast.bootstrap.stages.identify.data_form import UNGROWN, cache_folder
from holdfast.bootstrap.stages.identify.record_pipeline import build_pipeline, sample_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from holdfast.application.data.record_pipeline import AnyTransform, RecordPipeline
    from holdfast.application.data.rejected_records import RejectedRecords, RejectionLimit
    from holdfast.bootstrap.stages.request import Request
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.data.data_files import DataFiles
    from holdfast.domain.data.exclusion import Exclusion
    from holdfast.domain.data.holdout import Holdout
    from holdfast.domain.data.mixture import Mixture
    from holdfast.domain.data.sample_order import Growth
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.data_source import DataSource
    from holdfast.ports.document_encoder import DocumentEncoder
    from holdfast.ports.token_source import TokenSource
    from holdfast.ports.tokenizer import Tokenizer


class Identified(Protocol):
    """Data whose files and contents can be compared with those of an earlier start."""

    def fingerprint(self) -> str:
        """Return a text that changes with the name, size or time of any file."""
        ...

    def files(self) -> DataFiles | None:
        """Return the files, with hashes of their contents where these are known; None for data without files."""
        ...

    def identify(self, known: DataFiles | None = None) -> DataFiles | None:
        """Return the files with hashes of their contents, None for data without files.

        A file is not hashed again if its entry in ``known`` is still valid.
        """
        ...


@final
@dataclass(frozen=True, slots=True)
class RunData:
    """The data that a run reads: ``source`` as the run began, and ``added`` parts, read from epochs of ``growth`` on.

    ``token_files`` replace ``source`` if the data are tokens already.
    """

    source: DataSource
    token_files: TokenSource | None = None
    added: Sequence[DataSource] = ()
    growth: Growth = UNGROWN

    @property
    def identified(self) -> Identified:
        """Return the data that the run began with."""
        return self.source if self.token_files is None else self.token_files


@final
@dataclass(frozen=True, slots=True)
class RecordRules:
    """The rules for records: ``transforms`` that read ``fields`` of them, and what happens to those that are rejected.

    More of them than ``limit`` allows end the run.
    """

    transforms: Sequence[AnyTransform]
    fields: Sequence[str]
    rejections: RejectedRecords
    limit: RejectionLimit | None


@final
@dataclass(frozen=True, slots=True)
class Found:
    """The ``data`` of the settings with all files that exist now, not yet compared with those that the run began with.

    ``tokenizer`` is known for data that are tokens already. ``mode`` is ``cache`` or ``stream``.
    """

    request: Request
    records: RecordRules
    data: RunData
    tokenizer: Tokenizer | None
    mode: str
    mixture: Mixture
    excluded: Exclusion

    @property
    def settings(self) -> TrainSettings:
        """Return the settings of the run."""
        return self.request.settings

    @property
    def report(self) -> Callable[[str], object]:
        """Return what shows a line to a person."""
        return self.request.report

    @property
    def show(self) -> ShowPhase:
        """Return what shows the current activity."""
        return self.request.show

    @property
    def row_length(self) -> int:
        """Return the number of tokens of a row."""
        return self.settings.data.row_length

    @property
    def cache_folder(self) -> Path:
        """Return the folder of the token cache."""
        return cache_folder(self.settings.data, self.settings.run)

    def pipeline(self, data: RunData, tokenizer: Tokenizer | None) -> RecordPipeline:
        """Return validation and transforms of the records of ``data``, before there are tokens without a tokenizer."""
        report = self.report if tokenizer is not None else lambda _: None
        sample = partial(sample_texts, data.source)
        return build_pipeline(
            self.records.transforms, self.settings.data, sample, tokenizer, self.records.fields, report
        )


@final
@dataclass(frozen=True, slots=True)
class Data:
    """The data that a run reads, and how their records become tokens; what ``holdout`` holds is for evaluation."""

    found: Found
    run: RunData
    tokenizer: Tokenizer
    encoder: DocumentEncoder
    pipeline: RecordPipeline
    holdout: Holdout
