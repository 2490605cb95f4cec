"""Describes the steps between a source and its tokens for the version of a dataset."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import TYPE_CHECKING, Any

from holdfast.configs.plain import to_plain
from holdfast.configs.secret_masking import mask
from holdfast.configs.sections.data import MixtureDataSettings, PluginDataSettings
from holdfast.configs.sections.sources import FilesSource, HuggingFaceSource, PythonLibrarySource
from holdfast.domain.data.dataset_version import Step, digest
from holdfast.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import BaseModel

    from holdfast.application.data.text_reader import TextReader
    from holdfast.configs.sections.data import FeedSettings
    from holdfast.configs.settings import TrainSettings

TOKENIZER = "tokenizer"
"""The name of the step that makes tokens; its fingerprint is a digest of that of the document encoder."""
_OURS = "holdfast-lm"
_LIBRARIES = {"huggingface": "datasets"}
_OF_SOURCES = {*FilesSource.model_fields, *HuggingFaceSource.model_fields, *PythonLibrarySource.model_fields}
_NOT_READING = {"retry"}  # settings of a source that change no document


def source_sections(data: FeedSettings) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Return the name of each source, empty for the only one, and those of its settings that are not the defaults.

    ``kind`` is always among them. Nothing is masked.
    """
    if isinstance(data, MixtureDataSettings):
        return [(name, _changed(source)) for name, source in data.giving.items()]
    if isinstance(data, PluginDataSettings):
        return [("", {"kind": data.kind, **data.options})]
    return [("", _changed(data))]


def _changed(section: BaseModel) -> dict[str, Any]:
    values = {name: value for name, value in section if name in _OF_SOURCES - _NOT_READING}
    fields = type(section).model_fields
    return {
        name: value
        for name, value in values.items()
        if name == "kind" or value != fields[name].get_default(call_default_factory=True)
    }


def steps_of(
    settings: TrainSettings, section: Mapping[str, Any], reader: TextReader, *, hides_options: bool
) -> Sequence[Step]:
    """Return the steps that make the tokens of ``reader`` from the source with the settings ``section``, in order.

    Secrets in options are masked. With ``hides_options`` they are left out.
    """
    source, tokenizer, *others = reader.fingerprints
    files = reader.source.files()
    validation = settings.data.validation
    changed = {} if validation is None else validation.model_dump(mode="json", exclude_defaults=True)
    between: list[tuple[str, str, Any]] = [] if validation is None else [("validation", "", changed)]
    between += [(each.kind, "transform", each.options) for each in settings.data.transforms]
    if len(others) > len(between):
        between.append(_duplicates(settings.data))
    reading = {name: value for name, value in section.items() if name != "path"}
    steps = [
        ("read", "data_source", reading, source if files is None else files.reading, str(section["kind"])),
        *((name, port, options, print_, name) for (name, port, options), print_ in zip(between, others, strict=False)),
        (TOKENIZER, "tokenizer", _of_tokenizer(settings), tokenizer, settings.tokenizer.kind),
    ]
    return [
        Step(name, *_package(port, kind), digest(fingerprint), {} if hides_options else _plain(options))
        for name, port, options, fingerprint, kind in steps
    ]


def _duplicates(data: FeedSettings) -> tuple[str, str, Any]:
    """Return the step that leaves documents out; without ``data.dedup`` those with repeated values of unique fields."""
    if data.dedup is None:
        return "unique", "", {}
    return "dedup", "", {"kind": data.dedup.kind, **data.dedup.model_dump(mode="json", exclude_defaults=True)}


def _of_tokenizer(settings: TrainSettings) -> Mapping[str, Any]:
    section: BaseModel = settings.tokenizer
    return {"kind": settings.tokenizer.kind, **section.model_dump(mode="json", exclude_defaults=True)}


def _plain(options: Any) -> dict[str, Any]:
    plain = mask(to_plain(options))
    if isinstance(plain, dict):
        return {key: value for key, value in plain.items() if value is not None}
    return {} if plain is None else {"kind": plain}


def _package(port: str, kind: str) -> tuple[str, str]:
    """Return the name and the version of the distribution that brings the adapter ``kind`` of ``port``."""
    for point in entry_points(group=f"holdfast.{port}", name=kind) if port else ():
        if point.dist is not None:
            return point.dist.name, point.dist.version
    name = "tokenizers" if port == "tokenizer" else _LIBRARIES.get(kind)
    try:
        return (_OURS, __version__) if name is None else (name, version(name))
    except PackageNotFoundError:  # a host may bring its own part under the name of another
        return _OURS, __version__
