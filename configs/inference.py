"""Infers the kind of a section from its other settings, if they can belong to one kind only."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from holdfast.configs.settings_catalog import built_in_kinds, fields_of
from holdfast.configs.settings_tree import Leaf, leaves_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.configs.settings_tree import Tree

_BY_LOOK = ""
# the fields that imply a kind; the first one that is set counts
_TELLING: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "data": (
            *(("sources", "mixture"), ("stages", "mixture"), ("dtype", "tokens"), ("column", "tokens")),
            *(("split", "huggingface"), ("revision", "huggingface"), ("name", "huggingface")),
            *(("format", "files"), ("compression", "files"), ("path", _BY_LOOK)),
        ),
        "tokenizer": (("path", "huggingface"),),
        "ledger": (("dsn", "postgres"),),
        "optimizer": (("stage", "deepspeed"), ("offload_parameters", "deepspeed"), ("config", "deepspeed")),
    }
)
_TOKENS = (".npy", ".bin")
_SAVED_DATASET = ("dataset_info.json", "dataset_dict.json", "state.json")
_NAME_ON_THE_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def infer_kinds(tree: Tree, lower: Tree | None = None) -> Tree:
    """Return ``tree`` with a kind for each section without one, if a field of the section belongs to one kind only.

    If there is a ``lower`` layer, this happens only if the kind chosen in it does not have that field.
    """
    inferred = dict(tree)
    for section, telling in _TELLING.items():
        node, below = tree.get(section), {} if lower is None else lower.get(section)
        if isinstance(node, dict) and (lower is None or (isinstance(below, dict) and _cannot_be(section, below, node))):
            inferred[section] = _with_kind(section, node, telling)
    data = inferred.get("data")
    if lower is None and isinstance(data, dict) and isinstance(sources := data.get("sources"), dict):
        parts = {name: _part(name, part) for name, part in sources.items()}
        inferred["data"] = {**data, "sources": parts}
    return inferred


def _cannot_be(section: str, lower: Tree, higher: Tree) -> bool:
    kind = lower.get("kind")
    if not isinstance(kind, Leaf) or kind.value not in built_in_kinds(section):
        return False
    telling = {field for field, _ in _TELLING[section] if field in higher}
    return bool(telling) and not telling & fields_of(section, kind.value)


def _part(name: str, part: Tree | Leaf) -> Tree | Leaf:
    return _with_kind(f"data.sources.{name}", part, _TELLING["data"][2:]) if isinstance(part, dict) else part


def _with_kind(place: str, section: Tree, telling: tuple[tuple[str, str], ...]) -> Tree:
    field, kind = next(((field, kind) for field, kind in telling if _is_set(section.get(field))), (None, None))
    if "kind" in section or field is None:
        return section
    node = section[field]
    origin = node.origin if isinstance(node, Leaf) else [*leaves_of(node)][-1][1].origin
    if kind == _BY_LOOK:
        kind = _look(node.value) if isinstance(node, Leaf) else None
    if kind is None:
        return section
    return {"kind": Leaf(kind, f"inferred from {place}.{field} ({origin})", is_inferred=True), **section}


def _is_set(node: Tree | Leaf | None) -> bool:
    return node.value is not None if isinstance(node, Leaf) else bool(node)


def _look(value: Any) -> str | None:
    """Return the kind of data at a path; None if the name may be a dataset on the hub or a missing folder."""
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list) or not all(isinstance(path, str) and path for path in paths):
        return "files"
    if all(path.endswith(_TOKENS) for path in paths):
        return "tokens"
    if len(paths) != 1 or "\0" in paths[0]:
        return "files"
    place = Path(os.path.expanduser(paths[0]))  # noqa: PTH111  that of Path raises for an unknown user
    if any((place / name).is_file() for name in _SAVED_DATASET):
        return "huggingface"
    is_named = _NAME_ON_THE_HUB.fullmatch(paths[0]) and not place.suffix
    return None if is_named and not place.exists() else "files"
