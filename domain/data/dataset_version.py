"""Versions of a dataset: its content, the steps that made its tokens, and the version before."""

from __future__ import annotations

import json
import os.path
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Self, final
from urllib.parse import urlsplit
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SCHEMA = 1
_DIGITS = 12


@final
@dataclass(frozen=True, slots=True)
class VersionFile:
    """A file that a version was made of: its name below the place of the data, and its ``size`` in bytes.

    ``content`` is a hash of its bytes. While that is unknown, ``stamp`` identifies the file: it is made of its name and
    of its etag or the time when it was written.
    """

    name: str
    size: int
    content: str | None = None
    stamp: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Step:
    """A step between the source and the tokens, such as a transform or the tokenizer.

    ``package`` and ``version`` name the distribution with its code, and ``options`` are the settings that differ from
    the defaults. ``fingerprint`` is a digest of all that the result of the step depends on.
    """

    name: str
    package: str
    version: str
    fingerprint: str
    options: Mapping[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True)
class VersionTotals:
    """The numbers of a version: records that were read, ``drops`` of them by reason, and the rest.

    ``records`` is None if an earlier version of Holdfast tokenized some of them without counting. ``num_bytes`` is the
    size of the source as stored. ``supervised_tokens`` counts the tokens that are trained on; without a loss mask it is
    None, which means all of them.
    """

    records: int | None
    documents: int
    tokens: int
    num_bytes: int
    files: int
    drops: Mapping[str, int] = field(default_factory=dict)
    supervised_tokens: int | None = None


@final
@dataclass(frozen=True, slots=True)
class VersionSource:
    """The source of a version: its ``name``, the ``places`` where its data begin, without secrets, and its files.

    ``origin`` is a digest of name and places, which is equal for the versions of one source.
    """

    name: str
    origin: str
    places: Sequence[str] = ()
    files: Sequence[VersionFile] = ()


@final
@dataclass(frozen=True, slots=True)
class DatasetVersion:
    """A state of a dataset.

    ``id`` depends on the content alone (``version_id``), and ``parents`` are the ids of the versions that it replaced.
    ``created`` is a time in UTC in ISO's form, and ``dataset`` the folder with the tokens in the cache. ``steps`` are
    in the order in which they are applied. A version of an encrypted cache has neither the places nor the files of its
    source nor the options of steps.
    """

    id: str
    created: str
    parents: Sequence[str]
    source: VersionSource
    dataset: str
    steps: Sequence[Step]
    totals: VersionTotals
    is_encrypted: bool = False

    @property
    def name(self) -> str:
        """Return the name of the source."""
        return self.source.name

    def to_json(self) -> dict[str, Any]:
        """Return the version as JSON, which ``from_json`` reads."""
        record = {"schema": _SCHEMA, **asdict(self)}
        if self.totals.supervised_tokens is None:  # earlier versions of Holdfast do not know the field
            del record["totals"]["supervised_tokens"]
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Return the version that ``to_json`` wrote; raises ``ValueError``, ``KeyError`` or ``TypeError`` otherwise."""
        if record["schema"] != _SCHEMA:
            msg = f"its schema is {record['schema']}, not {_SCHEMA}"
            raise ValueError(msg)
        source = record["source"]
        return cls(
            id=str(record["id"]),
            created=str(record["created"]),
            parents=[str(parent) for parent in record["parents"]],
            source=VersionSource(
                name=str(source["name"]),
                origin=str(source["origin"]),
                places=[str(place) for place in source["places"]],
                files=[VersionFile(**file) for file in source["files"]],
            ),
            dataset=str(record["dataset"]),
            steps=[Step(**step) for step in record["steps"]],
            totals=VersionTotals(**record["totals"]),
            is_encrypted=bool(record["is_encrypted"]),
        )


def version_id(steps: Sequence[str], content: Sequence[object]) -> str:
    """Return the id of the version: 12 hexadecimal digits of a hash.

    ``steps`` are the fingerprints of the tokenizer and the transforms, and ``content`` is JSON that identifies the
    documents.
    """
    return digest([list(steps), list(content)])


def digest(value: object) -> str:
    """Return 12 hexadecimal digits of a hash of ``value``, which is JSON."""
    return blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()[:_DIGITS]


_TOTALS = ("records", "documents", "tokens", "num_bytes", "files")


@final
@dataclass(frozen=True, slots=True)
class OptionChange:
    """An option of a step, or its package, with its values before and after; None means that it was not set."""

    step: str
    option: str
    before: Any
    after: Any


@final
@dataclass(frozen=True, slots=True)
class FileChanges:
    """The names of the files that were added, removed or changed, and the pairs of names of those that were renamed."""

    added: Sequence[str] = ()
    removed: Sequence[str] = ()
    changed: Sequence[str] = ()
    renamed: Sequence[tuple[str, str]] = ()


@final
@dataclass(frozen=True, slots=True)
class StepChanges:
    """The names of the steps that were added or removed, and the options of the others that were changed.

    ``is_reordered`` tells whether the steps that both versions have are in another order.
    """

    added: Sequence[str] = ()
    removed: Sequence[str] = ()
    options: Sequence[OptionChange] = ()
    is_reordered: bool = False


@final
@dataclass(frozen=True, slots=True)
class VersionDifference:
    """The differences between two versions.

    ``totals`` and ``drops`` have the figures before and after, where they differ. Files are not compared
    (``hides_files``) if one of the versions is of an encrypted cache.
    """

    files: FileChanges
    steps: StepChanges
    totals: Mapping[str, tuple[int | None, int | None]]
    drops: Mapping[str, tuple[int, int]]
    hides_files: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the differences as JSON."""
        return asdict(self)


def compare_versions(before: DatasetVersion, after: DatasetVersion) -> VersionDifference:
    """Return how ``after`` differs from ``before``."""
    hides = before.is_encrypted or after.is_encrypted
    drops = {
        reason: (before.totals.drops.get(reason, 0), after.totals.drops.get(reason, 0))
        for reason in sorted({*before.totals.drops, *after.totals.drops})
    }
    totals = {name: (getattr(before.totals, name), getattr(after.totals, name)) for name in _TOTALS}
    return VersionDifference(
        files=FileChanges() if hides else _files(before.source.files, after.source.files),
        steps=_steps(_numbered(before.steps), _numbered(after.steps)),
        totals={name: pair for name, pair in totals.items() if pair[0] != pair[1]},
        drops={reason: pair for reason, pair in drops.items() if pair[0] != pair[1]},
        hides_files=hides,
    )


def _steps(before: Mapping[str, Step], after: Mapping[str, Step]) -> StepChanges:
    return StepChanges(
        added=[name for name in after if name not in before],
        removed=[name for name in before if name not in after],
        options=[each for name in after if name in before for each in _options(name, before[name], after[name])],
        is_reordered=[name for name in before if name in after] != [name for name in after if name in before],
    )


def _files(before: Sequence[VersionFile], after: Sequence[VersionFile]) -> FileChanges:
    old, new = {file.name: file for file in before}, {file.name: file for file in after}
    gone = {file.content: name for name, file in old.items() if name not in new and file.content is not None}
    renamed = []
    for name, file in new.items():
        if name not in old and file.content is not None and file.content in gone:
            renamed.append((gone.pop(file.content), name))
    former, latter = {pair[0] for pair in renamed}, {pair[1] for pair in renamed}
    return FileChanges(
        added=[name for name in new if name not in old and name not in latter],
        removed=[name for name in old if name not in new and name not in former],
        changed=[name for name, file in new.items() if name in old and _differs(old[name], file)],
        renamed=renamed,
    )


def _differs(before: VersionFile, after: VersionFile) -> bool:
    if before.size != after.size:
        return True
    if before.content is None or after.content is None:
        return before.stamp != after.stamp
    return before.content != after.content


def _numbered(steps: Sequence[Step]) -> dict[str, Step]:
    """Return the steps by name; the second one of a name is called ``NAME (2)``."""
    seen: Counter[str] = Counter()
    named = {}
    for step in steps:
        seen[step.name] += 1
        named[step.name if seen[step.name] == 1 else f"{step.name} ({seen[step.name]})"] = step
    return named


def _options(name: str, before: Step, after: Step) -> list[OptionChange]:
    changes = [
        OptionChange(name, option, before.options.get(option), after.options.get(option))
        for option in sorted({*before.options, *after.options})
        if before.options.get(option) != after.options.get(option)
    ]
    packages = [f"{step.package} {step.version}" for step in (before, after)]
    if packages[0] != packages[1]:
        changes.append(OptionChange(name, "package", *packages))
    if not changes and before.fingerprint != after.fingerprint:
        changes.append(OptionChange(name, "fingerprint", before.fingerprint, after.fingerprint))
    return changes


class JobState(StrEnum):
    """The state that a job enters."""

    START = "START"
    COMPLETE = "COMPLETE"
    ABORT = "ABORT"
    FAIL = "FAIL"


@final
@dataclass(frozen=True, slots=True)
class LineageDataset:
    """A dataset by its ``namespace`` and ``name``, and what is known about it.

    ``records`` is the number of its records or documents, ``num_bytes`` its size in bytes, ``files`` the number of its
    files, and ``fields`` are the names and types of its columns.
    """

    namespace: str
    name: str
    version: str | None = None
    records: int | None = None
    num_bytes: int | None = None
    files: int | None = None
    fields: Sequence[tuple[str, str]] = ()


@final
@dataclass(frozen=True, slots=True)
class LineageEvent:
    """The change of a job to ``state``; ``run_id`` is a UUID, the same for all events of one execution of the job."""

    state: JobState
    job: str
    run_id: str
    time: datetime
    inputs: Sequence[LineageDataset]
    outputs: Sequence[LineageDataset]
    error: str | None = None


@final
class JobExecution:
    """One execution of ``job``, which makes its events; all have the same id."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._run_id = str(uuid4())

    def event(
        self,
        state: JobState,
        inputs: Sequence[LineageDataset],
        outputs: Sequence[LineageDataset],
        error: str | None = None,
    ) -> LineageEvent:
        """Return the event that the job has entered ``state`` now."""
        return LineageEvent(state, self._job, self._run_id, datetime.now(UTC), inputs, outputs, error)


def dataset_names(place: str) -> tuple[str, str]:
    """Return the namespace and the name of the dataset at ``place``, a path or a URL, without secrets.

    The names follow OpenLineage's conventions: ``file`` and an absolute path, or ``s3://bucket`` and a key. User names,
    passwords and parameters of a URL are left out.
    """
    if "://" not in place:
        return "file", os.path.abspath(place)  # noqa: PTH100  a name, which may be a pattern
    scheme, _, rest = place.partition("://")
    parts = urlsplit(f"//{rest.rpartition('@')[2]}")
    return f"{scheme}://{parts.netloc}", parts.path.lstrip("/") or "/"
