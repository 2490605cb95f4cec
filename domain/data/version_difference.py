"""The differences between two versions of a dataset."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.domain.data.dataset_version import DatasetVersion, Step, VersionFile

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
