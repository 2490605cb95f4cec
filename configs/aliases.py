"""Names that another document gives to settings: LlamaHome's training configuration."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from configs.problems import dotted, refuse
from configs.tree import Leaf, leaves_of, merge, plant_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from configs.tree import Tree

    Path = tuple[str, ...]

ALIASES: Mapping[Path, Path] = MappingProxyType(
    {
        ("pipeline", "batch_size"): ("optimizer", "micro_batch"),
        ("pipeline", "prefetch"): ("data", "prefetch"),
        ("pipeline", "max_memory"): ("resources", "max_memory"),
        ("resources", "cpu_workers"): ("data", "workers"),
    }
)
"""``training.`` may stand before these, and before the settings of ``resources``, whose names are the same there."""


def renamed(layer: Tree) -> Tree:
    """Return ``layer`` with this package's names; raises ``ConfigurationError`` for one setting under two names."""
    targets = {path: _target(path) for path, _ in leaves_of(layer)}
    aliases = {path: target for path, target in targets.items() if target != path}
    own = _without(layer, aliases)
    taken = {path for path, _ in leaves_of(own)}
    for path, leaf in leaves_of(layer):
        if (target := aliases.get(path)) is None:
            continue
        if target in taken:
            other = f"another name of {dotted(target)}, which is set too"
            refuse(f"{dotted(path)} ({leaf.origin}) is {other}: leave one out")
        taken.add(target)
        value = None if target == ("data", "workers") and leaf.value == "auto" else leaf.value
        own = merge(own, plant_at(target, value, f"{leaf.origin}, as {dotted(path)}"))
    return own


def _target(path: Path) -> Path:
    bare = path[1:] if path[:2] in {("training", "pipeline"), ("training", "resources")} else path
    return ALIASES.get(bare, path if bare[0] == "pipeline" else bare)


def _without(tree: Tree, paths: Mapping[Path, Path], above: Path = ()) -> Tree:
    left: Tree = {}
    for key, node in tree.items():
        path = (*above, key)
        if isinstance(node, Leaf):
            if path not in paths:
                left[key] = node
        elif (below := _without(node, paths, path)) or not node:
            left[key] = below
    return left
