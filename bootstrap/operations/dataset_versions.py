"""Lists, shows and compares the versions of datasets."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.process.text_table import table, table_within
from holdfast.bootstrap.run_reading.formatting import moment
from holdfast.bootstrap.stages.prepare.dataset_versions import VersionStore
from holdfast.bootstrap.stages.prepare.named_version import find_version
from holdfast.configs.error_messages import one_line
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.data.dataset_version import compare_versions
from holdfast.domain.errors import DataError
from holdfast.domain.sizes import counted
from holdfast.domain.urls import expanded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from holdfast.bootstrap.stages.prepare.named_version import NamedVersion
    from holdfast.domain.data.dataset_version import DatasetVersion, VersionDifference

_MOST_FILES = 20
_OF_CACHES = ("HOLDFAST_RUN__CACHE_DIR", "HOLDFAST_DATA__CACHE__DIR")
_NAMES = {"num_bytes": "source bytes"}


def usual_caches(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the token caches that runs use if nothing but ``environ`` names others."""
    named = {name: value for name, value in environ.items() if name.upper().startswith(_OF_CACHES)}
    settings = load_settings([], [], named).settings
    if settings.data.cache.dir is not None:
        return [expanded(settings.data.cache.dir)]
    folder = settings.run.cache_directory
    return [folder / "tokens", folder / "encrypted-tokens"]


def list_versions(caches: Sequence[Path], *, as_json: bool, width: int) -> str:
    """Return a table of the versions in ``caches``, the oldest first; raises ``DataError`` if there are none.

    Its lines have at most ``width`` characters.
    """
    stores = [VersionStore(cache) for cache in caches]
    by_store = [(store, store.all()) for store in stores]
    if not any(versions or store.damaged for store, versions in by_store):
        msg = f"there are no versions in {' or '.join(map(str, caches))}: `prepare` and `train` make them"
        raise DataError(msg)
    if as_json:
        records = [{"cache": str(store.cache), **each.to_json()} for store, versions in by_store for each in versions]
        return json.dumps(records, indent=1)
    lines: list[str] = []
    for store, versions in by_store:
        if versions:
            header = ("version", "name", "created (UTC)", "parent", "documents", "tokens", "dropped", "bytes")
            rows = [header, *map(_row, versions)]
            title = f"{counted(len(versions), 'version')} in {store.cache}"
            lines += ["", title, "", *table_within(width, "<<<<>>>>", rows, (7, 2, 6, 4))]
        lines += [f"cannot be read: {path}" for path in store.damaged]
    return "\n".join(lines).strip("\n")


def show_version(name: str, caches: Sequence[Path], *, as_json: bool) -> str:
    """Return a text about the version that ``name`` names; raises as ``find_version`` does."""
    version = find_version(name, caches)
    if as_json:
        return json.dumps({"cache": str(version.cache), **version.version.to_json()}, indent=1)
    return "\n".join(_shown(version))


def diff_versions(before: str, after: str, caches: Sequence[Path], *, as_json: bool) -> str:
    """Return a text about the differences between two named versions; raises as ``find_version`` does."""
    old, new = find_version(before, caches).version, find_version(after, caches).version
    difference = compare_versions(old, new)
    if as_json:
        return json.dumps({"before": old.id, "after": new.id, **difference.to_json()}, indent=1)
    title = f"from {old.id} ({one_line(old.name)}) to {new.id} ({one_line(new.name)})"
    return "\n".join([title, *(_differences(difference) or ["", "nothing differs"])])


def _row(version: DatasetVersion) -> Sequence[str]:
    totals = version.totals
    return (
        version.id,
        one_line(version.name)[:40],
        moment(version.created),
        ", ".join(version.parents) or "-",
        f"{totals.documents:,}",
        f"{totals.tokens:,}",
        f"{sum(totals.drops.values()):,}",
        f"{totals.num_bytes:,}",
    )


def _shown(found: NamedVersion) -> list[str]:
    version, totals = found.version, found.version.totals
    places = [("" if number else "places", one_line(place)) for number, place in enumerate(version.source.places)]
    facts = [
        ("created (UTC)", moment(version.created)),
        ("parents", ", ".join(version.parents) or "-"),
        ("tokens in", str(found.tokens) + ("" if found.tokens.is_dir() else " (no longer there)")),
        *places,
        ("source", f"{totals.num_bytes:,} bytes in {counted(totals.files, 'file')}"),
        ("records", "not counted" if totals.records is None else f"{totals.records:,}"),
        ("documents", f"{totals.documents:,}"),
        ("tokens", f"{totals.tokens:,}"),
        *([] if totals.supervised_tokens is None else [("trained on", f"{totals.supervised_tokens:,} tokens")]),
        *(("dropped", f"{count:,} {one_line(reason)}") for reason, count in totals.drops.items()),
    ]
    steps = [(one_line(each.name), f"{each.package} {each.version}", _options(each.options)) for each in version.steps]
    lines = [f"version {version.id} of {one_line(version.name)}", "", *table("<<", facts)]
    lines += ["", *table("<<<", [("step", "package", "options"), *steps])]
    files = version.source.files[:_MOST_FILES]
    if files:
        rows = [(one_line(file.name), f"{file.size:,}", file.content or f"stamp {file.stamp}") for file in files]
        lines += ["", *table("<><", [("file", "bytes", "content"), *rows])]
        if (more := len(version.source.files) - len(files)) > 0:
            lines.append(f"and {counted(more, 'more file')}: --json lists all")
    elif version.is_encrypted:
        lines += ["", "the cache is encrypted, so the names and contents of the files are not recorded"]
    return lines


def _options(options: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in options.items()) or "-"


def _value(value: Any) -> str:
    return one_line(value if isinstance(value, str) else json.dumps(value))


def _differences(difference: VersionDifference) -> list[str]:
    sources = [
        *(f"  + {one_line(name)}" for name in difference.files.added),
        *(f"  - {one_line(name)}" for name in difference.files.removed),
        *(f"  ~ {one_line(name)}" for name in difference.files.changed),
        *(f"  > {one_line(old)} is now {one_line(new)}" for old, new in difference.files.renamed),
    ]
    changes = [
        f"  ~ {one_line(each.step)}: {one_line(each.option)} {_or_unset(each.before)} -> {_or_unset(each.after)}"
        for each in difference.steps.options
    ]
    steps = [
        *(f"  + {one_line(name)}" for name in difference.steps.added),
        *(f"  - {one_line(name)}" for name in difference.steps.removed),
        *changes,
        *(["  the order of the steps has changed"] if difference.steps.is_reordered else []),
    ]
    figures = [
        *((_NAMES.get(name, name), *pair) for name, pair in difference.totals.items()),
        *((f"dropped: {one_line(reason)}", *pair) for reason, pair in difference.drops.items()),
    ]
    lines = ["", "files", *_shortened(sources)] if sources else []
    if difference.hides_files:
        lines += ["", "files are not compared: a version of an encrypted cache does not name them"]
    lines += ["", "steps", *steps] if steps else []
    rows = [(name, _count(old), _count(new), _growth(old, new)) for name, old, new in figures]
    return lines + (["", *table("<>>>", [("figure", "before", "after", "change"), *rows])] if rows else [])


def _shortened(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _MOST_FILES
    return [*lines[:_MOST_FILES], *([f"  and {more:,} more: --json lists all"] if more > 0 else [])]


def _or_unset(value: Any) -> str:
    return "(not set)" if value is None else _value(value)


def _count(value: int | None) -> str:
    return "not counted" if value is None else f"{value:,}"


def _growth(before: int | None, after: int | None) -> str:
    return "-" if not before or after is None else f"{(after - before) / before:+.1%}"
