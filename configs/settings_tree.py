"""Nested settings in layers; each value is stored with its layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.configs.sections.base import PLUGIN
from holdfast.configs.settings_catalog import built_in_kinds, fields_of, kinds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that is not a mapping, and the layer that set it; ``is_inferred`` if it follows from other settings."""

    value: Any
    origin: str
    is_inferred: bool = False


Tree = dict[str, "Tree | Leaf"]


def plant(value: Mapping[str, Any], origin: str) -> Tree:
    """Return nested settings as a tree whose leaves all come from ``origin``."""
    return {key: _node(item, origin) for key, item in value.items()}


def plant_at(path: Sequence[str], value: Any, origin: str) -> Tree:
    """Return a tree of one branch."""
    node = _node(value, origin)
    for key in reversed(path[1:]):
        node = {key: node}
    return {path[0]: node}


def _node(value: Any, origin: str) -> Tree | Leaf:
    return plant(value, origin) if isinstance(value, dict) else Leaf(value, origin)


def leaves_of(tree: Tree, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Leaf]]:
    """Yield the leaves; within a mapping, those of higher layers come after those of lower layers."""
    for key, node in tree.items():
        if isinstance(node, Leaf):
            yield (*path, key), node
        else:
            yield from leaves_of(node, (*path, key))


def values_of(tree: Tree) -> dict[str, Any]:
    """Return the nested values without their origins."""
    return {key: node.value if isinstance(node, Leaf) else values_of(node) for key, node in tree.items()}


def merge(lower: Tree, higher: Tree) -> Tree:
    """Return the union of both layers, key by key; the higher layer wins."""
    merged = dict(lower)
    for key, node in higher.items():
        below = merged.pop(key, None)
        merged[key] = merge(below, node) if isinstance(below, dict) and isinstance(node, dict) else node
    return merged


def lay(lower: Tree, higher: Tree) -> Tree:
    """Merge two layers; a new choice in the higher layer drops the settings that belonged to the lower layer's choice.

    Another ``kind`` drops the fields that only the former kind has. Another ``path`` of a model or tokenizer drops its
    revision and the ``config`` that it replaces. Another ``model_type`` drops the fields of the former type.
    """
    return merge({section: _surviving(section, below, higher.get(section)) for section, below in lower.items()}, higher)


def _surviving(section: str, lower: Tree | Leaf, higher: Tree | Leaf | None) -> Tree | Leaf:
    if not (isinstance(lower, dict) and isinstance(higher, dict) and kinds_of(section)):
        return lower
    kept = _surviving_keys(section, lower, higher)
    return {key: node for key, node in lower.items() if key in kept}


def _surviving_keys(section: str, lower: Tree, higher: Tree) -> set[str]:
    dropped: set[str] = set()
    chosen = lower.get("kind")
    former = _value(lower, "kind", built_in_kinds(section)[0])
    if _value(higher, "kind", former) != former and not (isinstance(chosen, Leaf) and chosen.is_inferred):
        dropped |= fields_of(section, former) - (fields_of(section, PLUGIN) - {"options"})
    path = _value(higher, "path", None)
    if section in ("model", "tokenizer") and path is not None and path != _value(lower, "path", None):
        dropped |= {"revision", "config"}
    if section == "model" and _model_type(higher, None) not in (None, _model_type(lower, "llama")):
        dropped |= {"config"}
    return lower.keys() - dropped


def replaced_config(lower: Tree, higher: Tree) -> str | None:
    """Return a sentence on why ``lay`` drops ``model.config`` of the lower layer, None if it does not."""
    below, above = lower.get("model"), higher.get("model")
    if not (isinstance(below, dict) and isinstance(above, dict) and "config" in below):
        return None
    if "config" in _surviving_keys("model", below, above):
        return None
    origins = ", ".join(dict.fromkeys(leaf.origin for _, leaf in leaves_of({"config": below["config"]})))
    for path, leaf in leaves_of(above):
        if path in (("path",), ("config", "model_type"), ("kind",)) and not leaf.is_inferred:
            instead = f"model.{'.'.join(path)} ({leaf.origin})"
            return f"model.config ({origins}) is not used, because {instead} chooses another model"
    return None


def _value(tree: Tree, key: str, otherwise: Any) -> Any:
    node = tree.get(key)
    return node.value if isinstance(node, Leaf) else otherwise


def _model_type(model: Tree, otherwise: str | None) -> Any:
    config = model.get("config")
    return _value(config, "model_type", otherwise) if isinstance(config, dict) else otherwise
