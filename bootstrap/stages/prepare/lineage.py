"""Connects the preparation of data and a run to the receiver of lineage events in the settings."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from holdfast.application.handlers.emit_lineage import EmitLineage, LineageQueue
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.stages.prepare.dataset_versions import DatasetVersions, places_of, source_sections
from holdfast.configs.secret_masking import mask_text
from holdfast.domain.data.dataset_version import JobExecution, JobState, LineageDataset, dataset_names
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.urls import expanded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.application.data.text_reader import TextReader
    from holdfast.configs.sections.ledger import LineageSettings
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.data.dataset_version import DatasetVersion

_FIELDS = (("ids", "unsigned integer"), ("offsets", "int64"), ("hashes", "uint64"))


@final
class Lineage:
    """Emits lineage events about the data of ``settings``, and records their ``versions`` in the token ``cache``.

    Only the first rank emits, and none if no receiver is set. ``report`` gets a line for the first event that cannot be
    sent. Raises ``ConfigurationError`` if the package or the token is missing.
    """

    def __init__(self, settings: TrainSettings, directory: Path, cache: Path, report: Callable[[str], object]) -> None:
        self.versions = DatasetVersions(cache, settings, report)
        self._settings = settings
        self._directory = directory
        chosen = settings.data.lineage if os.environ.get("RANK", "0") == "0" else None
        self._queue = None if chosen is None else LineageQueue(_sink(chosen), report)

    @contextmanager
    def preparing(self, readers: Sequence[TextReader]) -> Iterator[None]:
        """Emit START for the tokenization of ``readers``, and its end with the versions that were made."""
        if self._queue is None:
            yield
            return
        execution = JobExecution(f"{self._settings.run.name}.prepare")
        inputs = self._sources(readers)
        self._queue.emit(execution.event(JobState.START, inputs, []))
        try:
            yield
        except BaseException as error:
            state = JobState.FAIL if isinstance(error, Exception) else JobState.ABORT
            self._queue.emit(execution.event(state, inputs, [], mask_text(f"{type(error).__name__}: {error}")))
            self._queue.close()
            raise
        outputs = [_of_version(version, self.versions.folder) for version in self.versions.used]
        self._queue.emit(execution.event(JobState.COMPLETE, self._sources(readers, self.versions.used), outputs))

    def handler(self) -> EmitLineage | None:
        """Return the handler of the run's events, None if no receiver is set; call this once the data are prepared.

        The run reads the prepared versions; a run that streams its data reads the sources.
        """
        if self._queue is None:
            return None
        prepared = [_of_version(version, self.versions.folder) for version in self.versions.used]
        outputs = [LineageDataset(*dataset_names(str(self._directory)))]
        job = f"{self._settings.run.name}.train"
        return EmitLineage(self._queue.emit, job, prepared or self._sources([]), outputs, mask_text)

    def close(self) -> None:
        """Wait a few seconds for the events that have not been sent yet."""
        if self._queue is not None:
            self._queue.close()

    def _sources(
        self, readers: Sequence[TextReader], versions: Sequence[DatasetVersion] = ()
    ) -> Sequence[LineageDataset]:
        sections = [section for _, section in source_sections(self._settings.data)]
        found: dict[tuple[str, str], LineageDataset] = {}
        for number in range(max(len(readers), len(sections))):
            section = sections[min(number, len(sections) - 1)]
            files = readers[number].source.files() if number < len(readers) else None  # files of tokens have no reader
            places = places_of(files, section) or [f"{section['kind']}://"]
            totals = versions[number].totals if number < len(versions) and len(places) == 1 else None
            for place in places:
                names = dataset_names(place)
                if section["kind"] == "huggingface" and not Path(place).exists():
                    names = ("hf://datasets", place)
                known = LineageDataset(*names)
                if totals is not None:
                    known = replace(known, records=totals.records, num_bytes=totals.num_bytes, files=totals.files)
                found.setdefault(names, known)
        return list(found.values())


def _of_version(version: DatasetVersion, cache: Path) -> LineageDataset:
    return LineageDataset(
        *dataset_names(str(cache / version.dataset)),
        version=version.id,
        records=version.totals.documents,
        fields=_FIELDS,
    )


def _sink(chosen: LineageSettings) -> Callable[..., object]:
    sink: Callable[..., object] = lazy("holdfast.adapters.shared.openlineage:OpenLineageSink")(
        url=chosen.url,
        file=None if chosen.file is None else expanded(chosen.file),
        token=None if chosen.token_from is None else _token(chosen.token_from),
    )
    return sink


def _token(place: str) -> str:
    kind, _, where = place.partition(":")
    try:
        token = os.environ[where] if kind == "env" else expanded(where).read_text("utf-8")
    except (OSError, KeyError, UnicodeDecodeError) as error:
        what = "the variable" if kind == "env" else "the file"
        msg = f"data.lineage.token_from names {what} {where}, which cannot be read: set it, or leave the token out"
        raise ConfigurationError(msg) from error
    return token.strip()
