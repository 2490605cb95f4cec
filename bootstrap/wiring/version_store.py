"""The versions of the datasets in a token cache, one file each beside the tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.files.atomic_replace import replace_file
from holdfast.adapters.shared.files.regular_file import read_regular
from holdfast.adapters.shared.files.sealed_json import parse_json
from holdfast.adapters.shared.token_store.token_folder import VERSIONS
from holdfast.domain.data.dataset_version import DatasetVersion

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


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
