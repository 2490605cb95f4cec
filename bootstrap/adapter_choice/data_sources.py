"""Builds data sources from the settings."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

from typing_extensions import override

from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.configs.sections.data import MixtureDataSettings
from holdfast.configs.sections.sources import FilesSource, HuggingFaceSource
from holdfast.domain.data.data_files import LATEST_RULES
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.domain.fault_tolerance.restart_policy import RetryPolicy
from holdfast.ports.basic import BasicDataSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from holdfast.configs.sections.data import FeedSettings
    from holdfast.configs.sections.sources import PythonLibrarySource
    from holdfast.ports.data_source import DataSource, Document, Rejected, Unit
    from holdfast.ports.token_source import TokenSource

NO_TEXT = "data.kind=tokens has no text to train a tokenizer on: set tokenizer.path to the tokenizer of these tokens"


@final
class NoText(BasicDataSource):
    """Takes the place of a text source when the data are tokens already; each method raises ``ConfigurationError``."""

    @override
    def units(self) -> Sequence[Unit]:
        raise ConfigurationError(NO_TEXT)

    @override
    def read(self, unit: Unit, start: int | None = None) -> Iterator[Document | Rejected]:
        raise ConfigurationError(NO_TEXT)

    @override
    def fingerprint(self) -> str:
        raise ConfigurationError(NO_TEXT)


def no_text(*_arguments: object) -> DataSource:
    """Return what takes the place of a text source when the data are tokens already."""
    return NoText()


def python_library(*_arguments: object) -> DataSource:
    """Return the source code of Python's standard library on this machine."""
    source: DataSource = lazy("holdfast.adapters.data_source.python_library:PythonLibraryDataSource")()
    return source


def hub_dataset(
    data: HuggingFaceSource, _places: Mapping[str, Sequence[str]], rules: int, fields: Sequence[str], task: str
) -> DataSource:
    """Return the Hugging Face dataset that the settings name, which has no places."""
    return open_dataset(data, rules, fields, task)


def mix(
    data: FeedSettings,
    places: Mapping[str, Sequence[str]],
    rules: int,
    fields: Sequence[str] = (),
    task: str = "text",
) -> DataSource:
    """Return the weighted sources of a mixture as one source; ``places`` are as in ``open_files``, by source name."""
    assert isinstance(data, MixtureDataSettings)
    sources = {
        name: open_source(section, {"": places.get(name, ())}, rules, fields, task)
        for name, section in data.giving.items()
    }
    mixed: DataSource = lazy("holdfast.adapters.data_source.mixture:MixtureDataSource")(sources)
    return mixed


def open_source(
    section: PythonLibrarySource | FilesSource | HuggingFaceSource,
    places: Mapping[str, Sequence[str]] = MappingProxyType({}),
    rules: int = LATEST_RULES,
    fields: Sequence[str] = (),
    task: str = "text",
) -> DataSource:
    """Return the source that the settings name; ``places`` and ``rules`` are as in ``open_files``."""
    match section:
        case FilesSource():
            return open_files(section, places, rules, fields, task)
        case HuggingFaceSource():
            return open_dataset(section, rules, fields, task)
        case _:
            return python_library()


def open_files(
    section: FilesSource,
    places: Mapping[str, Sequence[str]] = MappingProxyType({}),
    rules: int = LATEST_RULES,
    fields: Sequence[str] = (),
    task: str = "text",
) -> DataSource:
    """Return the files in the settings, in the order of ``places``, the paths that they had when the run began.

    They are chosen and read by ``rules``, those of the time when the run began. Their documents are of ``task`` and
    carry ``fields``.
    """
    reading = lazy("holdfast.adapters.data_source.formats.records:Reading")(
        rules=rules,
        encoding=section.encoding,
        delimiter=section.delimiter,
        quote=section.quote,
        document_bytes=section.document_bytes,
        separator=section.document_separator,
    )
    source = lazy("holdfast.adapters.data_source.files:FilesDataSource")(
        placed(section.path, places),
        format=section.format,
        compression=section.compression,
        text_field=section.text_field,
        filter=section.filter,
        limits=lazy("holdfast.adapters.data_source.formats.records:Limits")(record_bytes=section.record_bytes),
        access=lazy("holdfast.adapters.data_source.file_access:FileAccess")(
            RetryPolicy(deadline=section.retry.deadline_seconds), section.retry.stall_seconds
        ),
    )
    return _carrying(source.with_reading(reading), fields, task)


def _carrying(source: Any, fields: Sequence[str], task: str) -> DataSource:
    """Return ``source`` with documents of ``task`` that carry ``fields``."""
    source = source if task == "text" else source.with_task(task)
    found: DataSource = source.with_fields(fields) if fields else source
    return found


def report_remarks(source: DataSource, data: FeedSettings, report: Callable[[str], object]) -> None:
    """Report what a person should know of the files of ``source``; raises ``DataError`` for unused ones if strict."""
    remarks = source.remarks()
    for remark in remarks:
        report(remark.sentence)
    if data.strict and (unused := [remark for remark in remarks if remark.unused]):
        msg = f"data.strict is true, but {unused[0].sentence}: name only what is used, or leave data.strict out"
        raise DataError(msg)


def placed(paths: Sequence[str], places: Mapping[str, Sequence[str]]) -> Sequence[str] | Mapping[str, str]:
    """Return ``paths``, each with the path that it had when the order of the files was chosen, if that is known."""
    before = places.get("", ())
    is_known = len(before) == len(paths) == len(set(paths))
    return dict(zip(paths, before, strict=True)) if is_known else paths


def open_dataset(
    section: HuggingFaceSource, rules: int = LATEST_RULES, fields: Sequence[str] = (), task: str = "text"
) -> DataSource:
    """Return the Hugging Face dataset that the settings name; its documents are of ``task`` and carry ``fields``."""
    source = lazy("holdfast.adapters.data_source.huggingface:HuggingfaceDataSource")(
        section.path,
        name=section.name,
        split=section.split,
        revision=section.revision,
        text_field=section.text_field,
        filter=section.filter,
        limits=lazy("holdfast.adapters.data_source.formats.records:Limits")(record_bytes=section.record_bytes),
    )
    return _carrying(source.with_rules(rules), fields, task)


def open_tokens(rules: int, paths: Sequence[str] | Mapping[str, str], **options: Any) -> TokenSource:
    """Return the files of token ids at ``paths``, read by ``rules``."""
    source: TokenSource = lazy("holdfast.adapters.token_source.files:FilesTokenSource")(paths, **options).with_rules(
        rules
    )
    return source
