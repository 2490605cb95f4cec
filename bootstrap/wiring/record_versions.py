"""Records which versions of datasets a run or `prepare` has made tokens of, or has found tokens of."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, final

from holdfast.application.data.shard_meta import SupervisedTokens, total_drops, total_supervised
from holdfast.bootstrap.wiring.version_steps import source_sections, steps_of
from holdfast.bootstrap.wiring.version_store import VersionStore
from holdfast.domain.data.dataset_version import (
    DatasetVersion,
    VersionFile,
    VersionSource,
    VersionTotals,
    digest,
    version_id,
)
from holdfast.domain.urls import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from holdfast.application.data.text_reader import TextReader
    from holdfast.bootstrap.wiring.dataset_registry import Datasets
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
