"""Chooses the files of a folder that are data of one kind, and names the others."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, final

from holdfast.domain.counting import counted
from holdfast.domain.urls import without_secrets
from holdfast.ports.data_source import Remark

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.adapters.data_source.file_reader import SourceFile
    from holdfast.adapters.data_source.listed_file import ListedFile

_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_WORD = re.compile(r"[^-._ 0-9]+")
_MOST_NAMES = 3
_MOST_PATHS = 8


@final
@dataclass(slots=True)
class FolderChoice:
    """What the folder ``path`` holds: the names of the files that are not read, by the reason."""

    path: str
    unknown: list[str] = field(default_factory=list)
    dangling: list[str] = field(default_factory=list)
    objects: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    prose: list[str] = field(default_factory=list)
    other_splits: dict[str, list[str]] = field(default_factory=dict)
    is_without_train: bool = False

    def choose(self, files: Sequence[SourceFile]) -> list[SourceFile]:
        """Return those of ``files`` that are trained on, and remember the others.

        Plain text is left out beside records, and so are the files of other splits beside those of a split ``train``,
        as far as names of files and folders tell.
        """
        self.empty += [_name(file.stored) for file in files if file.stored.unit.size == 0]
        if any(file.format != "txt" and file.stored.unit.size for file in files):
            self.prose += [_name(file.stored) for file in files if file.format == "txt"]
            files = [file for file in files if file.format != "txt"]
        splits = [_split_of(file) for file in files]
        self.is_without_train = "train" not in splits
        for file, split in zip(files, splits, strict=True):
            if split not in ("", "train"):
                self.other_splits.setdefault(split, []).append(_name(file.stored))
        if self.is_without_train:
            return list(files)
        return [file for file, split in zip(files, splits, strict=True) if split in ("", "train")]

    def remarks(self) -> Iterator[Remark]:
        """Yield what is not read, one sentence for each reason, and other splits that are read without one to train."""
        place = without_secrets(self.path)
        lists = (
            (self.unknown, "not read, as the suffix is not that of a format", ""),
            (self.objects, "not read, as it is neither a JSON array of records nor an object on each line", ""),
            (self.dangling, "not read, as the link leads to no file", ""),
            (self.empty, "empty", ""),
            (self.prose, "plain text beside records and not read", "; list what is to be read in the path too"),
        )
        for names, reason, remedy in lists:
            if names:
                yield Remark(
                    f"{_files(names)} in {place} {_is(names)} {reason}: {shown_names(names)}{remedy}", len(names)
                )
        for split, names in sorted(self.other_splits.items()):
            subject = f"{_files(names)} in {place} {_is(names)}"
            if self.is_without_train:
                reason = "read, as no file is called train, and may be of the split"
                yield Remark(f"{subject} {reason} {split}: {shown_names(names)}")
                continue
            setting = f"evaluation.sets.{split}.path={self._path_of(names)}"
            reason = f"of the split {split} and not trained on: {shown_names(names)}; evaluate on it with {setting}"
            yield Remark(f"{subject} {reason}", len(names))

    def _path_of(self, names: Sequence[str]) -> str:
        """Return what to write for a path that holds the files of ``names`` and no other file that is read."""
        base = without_secrets(self.path).rstrip("/")
        paths = [f"{base}/{name}" for name in sorted(names)]
        if len(paths) == 1:
            return paths[0]
        if len(paths) <= _MOST_PATHS:
            return f"[{','.join(paths)}]"
        first = PurePosixPath(names[0])
        number = next((at for at, part in enumerate(first.parts) if _word_of(part)), len(first.parts) - 1)
        pattern = f"*{_word_of(first.parts[number])}*"
        return "/".join([base, *first.parts[:number], pattern if number == len(first.parts) - 1 else f"{pattern}/**"])


def _split_of(file: SourceFile) -> str:
    """Return the split that the name of ``file``, or else the nearest folder above it, tells; empty for none."""
    path = PurePosixPath(_name(file.stored).lower())
    if file.format != "txt":
        return next((_SPLITS[word] for part in reversed(path.parts) if (word := _word_of(part))), "")
    if not {".txt", ".text"} & set(path.suffixes[-2:]):
        return ""  # programs are called test, too
    # texts have titles of several words
    stems = [path.name.partition(".")[0], *reversed(path.parts[:-1])]
    return next((_SPLITS[word] for stem in stems if (word := _word_of(stem)) and _WORD.findall(stem) == [word]), "")


def _word_of(part: str) -> str:
    return next((word for word in _WORD.findall(part) if word.lower() in _SPLITS), "")


def _name(file: ListedFile) -> str:
    return file.below.lstrip("/")


def _files(names: Sequence[str]) -> str:
    return counted(len(names), "file")


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def shown_names(names: Sequence[str]) -> str:
    """Return the first of ``names`` for a sentence."""
    return ", ".join(sorted(names)[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
