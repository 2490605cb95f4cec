"""Chooses the files of a folder that are data of one kind, and names the others."""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, final

import yaml

from holdfast.domain.counting import counted
from holdfast.domain.errors import DataError
from holdfast.domain.urls import without_secrets
from holdfast.ports.data_source import Remark

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.adapters.data_source.file_reader import FileReader, SourceFile
    from holdfast.adapters.data_source.listed_file import ListedFile

_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_WORD = re.compile(r"[^-._ 0-9]+")
_RESULT = re.compile(r"cache-[0-9a-f]{16}(_\d+_of_\d+)?\.arrow")  # of map and filter of the datasets library
_SHARD = re.compile(r"(?<=-)\d{5}(?=-of-\d{5}\b)")
_CARD = re.compile(rb"---\s*\n(.*?\n)---", re.DOTALL)
_MOST_NAMES = 3
_MOST_PATHS = 8


@final
@dataclass(slots=True)
class FolderChoice:
    """What the folder ``path`` holds: the names of the files that are not read, by the reason."""

    path: str
    unknown: list[str] = field(default_factory=list)
    dangling: list[str] = field(default_factory=list)
    objects: list[SourceFile] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    other_splits: dict[str, list[str]] = field(default_factory=dict)
    is_without_train: bool = False
    doubts: list[str] = field(default_factory=list)

    def choose(self, files: Sequence[SourceFile], reader: FileReader) -> list[SourceFile]:
        """Return those of ``files`` that are trained on, and remember the others.

        Plain text is left out beside records, and so are the files of other splits beside those of a split ``train``,
        as far as names of files and folders tell. So are Arrow files that are no part of a saved dataset, but results
        that the datasets library keeps or an earlier state of it.
        """
        stale = self._stale(files, reader)
        self.left_out["stale"] = [_name(file.stored) for file in stale]
        files = [file for file in files if file not in stale]
        chosen = self._of_train(files)
        self.doubts += _doubts(chosen, is_split=not self.is_without_train)
        records = [file for file in files if file.format != "txt"]
        for file in files if records else ():
            if _name(file.stored) == "README.md" and (doubt := _doubt_of_card(reader.begin(file), records, chosen)):
                self.doubts.append(doubt)
        return chosen

    def _stale(self, files: Sequence[SourceFile], reader: FileReader) -> list[SourceFile]:
        stale: list[SourceFile] = []
        rest: dict[str, list[SourceFile]] = {}
        for file in files:
            if file.format == "arrow" and _RESULT.fullmatch(_last_name(file)):
                stale.append(file)
            elif file.format == "arrow":
                rest.setdefault(_folder(file), []).append(file)
        for state in self.objects:
            beside = rest.get(_folder(state), [])
            listed = _listed_in(state, reader) if beside and _last_name(state) == "state.json" else set()
            others = [file for file in beside if _last_name(file) not in listed]
            if len(others) < len(beside):
                stale += others
            elif listed:
                names = [_name(file.stored) for file in beside]
                self.doubts.append(
                    f"{_name(state.stored)} lists other Arrow files than are there, so all of these are read: "
                    f"{shown_names(names)}"
                )
        return stale

    def _of_train(self, files: Sequence[SourceFile]) -> list[SourceFile]:
        self.left_out["empty"] = [_name(file.stored) for file in files if file.stored.unit.size == 0]
        if any(file.format != "txt" and file.stored.unit.size for file in files):
            self.left_out["prose"] = [_name(file.stored) for file in files if file.format == "txt"]
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
            (
                self.left_out.get("stale"),
                "no part of the saved dataset, but of work with it or of an older one, and not read",
                "",
            ),
            (
                [_name(file.stored) for file in self.objects],
                "not read, as it is neither a JSON array of records nor an object on each line",
                "",
            ),
            (self.dangling, "not read, as the link leads to no file", ""),
            (self.left_out.get("empty"), "empty", ""),
            (
                self.left_out.get("prose"),
                "plain text beside records and not read",
                "; list what is to be read in the path too",
            ),
        )
        for names, reason, remedy in lists:
            if names:
                yield Remark(
                    f"{_files(names)} in {place} {_is(names)} {reason}: {shown_names(names)}{remedy}", len(names)
                )
        yield from (Remark(f"{place}: {doubt}") for doubt in self.doubts)
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


def _doubts(chosen: Sequence[SourceFile], *, is_split: bool) -> Iterator[str]:
    """Yield what is read of a folder though it may be more than is meant; ``is_split`` if there is a split train."""
    others = [_name(file.stored) for file in chosen if is_split and not _split_of(file)]
    if others:
        yield f"{_files(others)} of no split {_is(others)} read beside those of the split train: {shown_names(others)}"
    records = [file for file in chosen if file.format != "txt" and file.stored.unit.size]
    sets: dict[str, set[str]] = {}
    for file in records:
        if _SHARD.search(name := _name(file.stored)):
            sets.setdefault(_folder(file), set()).add(_SHARD.sub("*", name))
    for several in sets.values():
        if len(several) > 1:
            yield (
                f"several sets of shards are read together: {shown_names([*several])}; if they are splits, or one is "
                "an earlier export, set data.path to one of them"
            )
    forms = Counter(f"{file.format}.{file.compression}".removesuffix(".none") for file in records)
    if len(forms) > 1:
        shown = ", ".join(f"{count} {form}" for form, count in sorted(forms.items()))
        yield f"files of several formats are read: {shown}; if they hold the same records, set data.path to one"


def _folder(file: SourceFile) -> str:
    return str(PurePosixPath(_name(file.stored)).parent)


def _listed_in(file: SourceFile, reader: FileReader) -> set[str]:
    """Return the names of the files of a saved dataset that ``file`` lists, nothing if it is no such list."""
    content = reader.begin(file, -1)
    if content != reader.begin(file, -1):  # nothing else would notice that a wrong list leaves out other files
        msg = f"{file.name} is not the same when it is read again: check the disk it is on"
        raise DataError(msg)
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        return {str(entry["filename"]) for entry in json.loads(content)["_data_files"]}
    return set()


def _doubt_of_card(card: bytes, records: Sequence[SourceFile], chosen: Sequence[SourceFile]) -> str:
    """Return what to say where a dataset's ``card`` names other files to train on than those ``chosen``."""
    configs = None
    with suppress(yaml.YAMLError, ValueError, AttributeError, RecursionError):
        configs = yaml.safe_load(head[1]).get("configs") if (head := _CARD.match(card)) else None
    configs = [each for each in configs if isinstance(each, dict)] if isinstance(configs, list) else []
    ours = {_name(file.stored) for file in chosen}
    names = [_name(file.stored) for file in records]
    choices = [
        {name for name in names if any(_matches(name, each) for each in _patterns_of(config))} for config in configs
    ]
    if ours in choices or not configs:
        return ""
    known = [name for config in configs if isinstance(name := config.get("config_name", "default"), str)]
    return (
        f"README.md names other files to train on, by configuration ({shown_names(known)}), and is not followed: "
        "data.kind=huggingface reads one, that of data.name"
    )


def _patterns_of(config: Mapping[str, object]) -> list[str]:
    """Return the globs of the files of the split train; entries that are no paths are left out."""
    given = config.get("data_files", "**")
    if isinstance(given, dict):
        given = given.get("train", [])
    paths: list[object] = []
    for entry in given if isinstance(given, list) else [given]:
        found = entry
        if isinstance(entry, dict):
            found = entry.get("path") if entry.get("split", "train") == "train" else None
        paths += found if isinstance(found, list) else [found]
    folder = config.get("data_dir")
    return [str(PurePosixPath(folder if isinstance(folder, str) else "", path)) for path in paths if type(path) is str]


def _matches(name: str, pattern: str) -> bool:
    if "**" not in pattern and name.count("/") != pattern.count("/"):
        return False
    return fnmatchcase(name, pattern) or fnmatchcase(name, pattern.replace("**/", ""))


def _name(file: ListedFile) -> str:
    return file.below.lstrip("/")


def _last_name(file: SourceFile) -> str:
    return PurePosixPath(_name(file.stored)).name


def _files(names: Sequence[str]) -> str:
    return counted(len(names), "file")


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def shown_names(names: Sequence[str]) -> str:
    """Return the first of ``names`` for a sentence."""
    return ", ".join(sorted(names)[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
