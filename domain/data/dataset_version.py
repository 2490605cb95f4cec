"""Versions of a dataset: its content, the steps that made its tokens, and the version before."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Self, final

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
