"""Records which versions of datasets a run or `prepare` has made tokens of, or has found tokens of."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.files.file_operations import replace_file
from holdfast.adapters.shared.files.regular_file import parse_json, read_regular
from holdfast.adapters.shared.token_store.token_folder import VERSIONS
from holdfast.application.data.shard_meta import SupervisedTokens, total_drops, total_supervised
from holdfast.bootstrap.run_folder.folder import versions_read
from holdfast.configs.plain import to_plain
from holdfast.configs.secret_masking import mask
from holdfast.configs.sections.data import MixtureDataSettings, PluginDataSettings
from holdfast.configs.sections.sources import FilesSource, HuggingFaceSource, PythonLibrarySource
from holdfast.domain.data.dataset_version import (
    DatasetVersion,
    Step,
    VersionFile,
    VersionSource,
    VersionTotals,
    digest,
    version_id,
)
from holdfast.domain.urls import without_secrets
from holdfast.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from pydantic import BaseModel

    from holdfast.application.data.text_reader import TextReader
    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.bootstrap.stages.prepare.dataset_registry import Datasets
    from holdfast.configs.sections.data import FeedSettings
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.data.data_files import DataFiles
    from holdfast.ports.token_cache import TokenCache


@final
class DatasetVersions:
    """Stores the version of each dataset in the token cache ``folder``, and knows those of this run (``used``).

    A version that is stored already stays as it is. The parent of a new one is the version that was stored last for the
    same name and places. In an encrypted cache a version holds counts and fingerprints, but neither names nor hashes of
    files nor options; its id depends on the names, sizes and times of the files, as hashes of contents would reveal
    them. ``report`` gets a line if a version cannot be stored.
    """

    def __init__(self, folder: Path, settings: TrainSettings, report: Callable[[str], object]) -> None:
        self.folder = folder
        self.used: list[DatasetVersion] = []
        self._settings = settings
        self._is_secret = settings.data.cache.encryption is not None
        self._report = report
        self._store = VersionStore(folder)

    def keep(self, readers: Sequence[TextReader], caches: Sequence[TokenCache], datasets: Datasets) -> None:
        """Store the version of each of ``readers``, whose tokens are in ``caches``, and remember all in ``used``."""
        sections = source_sections(self._settings.data)
        self.used = []
        for number, (reader, cache) in enumerate(zip(readers, caches, strict=True)):
            name, section = sections[min(number, len(sections) - 1)]
            added = number + 1 - len(sections)  # files that were added after the run began have a reader of their own
            name = self._name(name, section) + (f" (added {added})" if added > 0 else "")
            files = None if self._is_secret else reader.source.files()
            key = version_id(reader.fingerprints[1:], _content(reader, files))
            if (known := self._store.get(key)) is not None:
                self.used.append(known)
                continue
            version = DatasetVersion(
                id=key,
                created=datetime.now(UTC).isoformat(),
                parents=[],
                source=VersionSource(name, digest([name, list(places_of(reader.source.files(), section))])),
                dataset=datasets.name_of(reader),
                steps=steps_of(self._settings, section, reader, hides_options=self._is_secret),
                totals=_totals(cache, reader),
                is_encrypted=self._is_secret,
            )
            before = self._store.newest(version.source.origin)
            shown = version.source if files is None else replace(version.source, files=list(_files(files)))
            if not self._is_secret:
                shown = replace(shown, places=places_of(files, section))
            version = replace(version, parents=[] if before is None else [before.id], source=shown)
            self._add(version)
            self.used.append(version)

    def _name(self, name: str, section: Mapping[str, Any]) -> str:
        """Return the name of a source: of a mixture's part, the label, or the last part of the first path."""
        label = self._settings.data.label
        if name or label:
            return f"{label}/{name}" if name and label else name or str(label)
        paths = _paths(section)
        if self._is_secret or not paths:
            return str(section["kind"])
        parts = [part for part in PurePosixPath(paths[0].partition("?")[0]).parts if "*" not in part]
        return parts[-1] if parts else str(section["kind"])

    def _add(self, version: DatasetVersion) -> None:
        if not self.folder.is_dir():  # the cache is not on a disk
            return
        try:
            self._store.add(version)
        except OSError as error:
            self._report(f"the version {version.id} of the data could not be stored in {self.folder}: {error.strerror}")


def _content(reader: TextReader, files: DataFiles | None) -> Sequence[object]:
    if files is None or files.num_unknown_bytes:
        return [reader.source.fingerprint()]
    return [files.shape, [file.content for file in files.files]]


def places_of(files: DataFiles | None, section: Mapping[str, Any]) -> Sequence[str]:
    """Return the paths and URLs where a source with the settings ``section`` begins, without secrets."""
    if files is not None:
        return [without_secrets(place) for places in files.places.values() for place in places]
    return _paths(section)


def _paths(section: Mapping[str, Any]) -> Sequence[str]:
    path = section.get("path", ())
    return [without_secrets(path)] if isinstance(path, str) else [without_secrets(each) for each in path]


def _files(files: DataFiles) -> Iterable[VersionFile]:
    places = [place for places in files.places.values() for place in places]
    for file in files.files:
        name = without_secrets(file.name or (PurePosixPath(places[0]).name if places else ""))
        yield VersionFile(name, file.size, file.content, file.stamp if file.content is None else None)


def _totals(cache: TokenCache, reader: TextReader) -> VersionTotals:
    files, shards = reader.source.files(), cache.shards()
    records: int | None = 0
    drops: Counter[str] = Counter()
    supervised: list[SupervisedTokens] = []
    num_bytes = 0
    for shard in shards:  # one at a time, as the description of a shard may be large
        meta: Any = cache.meta(shard)
        records = None if records is None or "records" not in meta else records + int(meta["records"])
        drops.update(total_drops([meta]))
        num_bytes += int(meta["source_bytes"])
        supervised += filter(None, [total_supervised([meta])])
    return VersionTotals(
        records=records,
        documents=sum(shard.num_documents for shard in shards),
        tokens=sum(shard.num_tokens for shard in shards),
        num_bytes=num_bytes,
        files=len(reader.source.units() if files is None else files.files),
        drops=dict(sorted(drops.items())),
        supervised_tokens=sum(each.supervised for each in supervised) if supervised else None,
    )


def note_versions(folder: SharedRunFolder, versions: DatasetVersions) -> None:
    """Add the versions of data that this start reads to those that earlier starts have read, the newest last."""
    now = [{"id": each.id, "name": each.name, "cache": str(versions.folder.absolute())} for each in versions.used]
    if (record := folder.record) is not None and now:  # a stream has no tokens whose version could be named
        before = [entry for entry in versions_read(record) if entry["id"] not in {each["id"] for each in now}]
        folder.note_versions([*before, *now])


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


@final
class VersionStore:
    """The versions in ``<cache>/.versions``, as ``<id>.json``.

    ``damaged`` are the files that ``all`` could not read. A version is never changed or replaced.
    """

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.damaged: list[Path] = []
        self._folder = cache / VERSIONS

    def get(self, version_id: str) -> DatasetVersion | None:
        """Return the version with this id, None if there is none that can be read."""
        return _read(self._folder / f"{version_id}.json")

    def all(self) -> Sequence[DatasetVersion]:
        """Return all versions, the oldest first."""
        found, self.damaged = [], []
        for path in sorted(self._folder.glob("*.json")):
            if (version := _read(path)) is None:
                self.damaged.append(path)
            else:
                found.append(version)
        return sorted(found, key=lambda version: (version.created, version.id))

    def newest(self, origin: str) -> DatasetVersion | None:
        """Return the version of the source ``origin`` that was stored last, None if there is none."""
        return next((version for version in reversed(self.all()) if version.source.origin == origin), None)

    def add(self, version: DatasetVersion) -> None:
        """Store ``version`` atomically; raises ``OSError``."""
        self._folder.mkdir(exist_ok=True)
        content = json.dumps(version.to_json(), indent=1).encode()
        replace_file(self._folder / f"{version.id}.json", content, is_shared=True)


def _read(path: Path) -> DatasetVersion | None:
    try:
        return DatasetVersion.from_json(parse_json(read_regular(path)))
    except (OSError, ValueError, KeyError, TypeError):
        return None
