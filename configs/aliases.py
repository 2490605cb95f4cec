"""Other names of settings: former names of our own, and those of the training configurations of LlamaHome and Vorox."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from holdfast.configs.error_messages import dotted, one_line
from holdfast.configs.settings_tree import Leaf, leaves_of, merge, plant_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.configs.settings_tree import Tree

    Path = tuple[str, ...]

ALIASES: Mapping[Path, Path] = MappingProxyType(
    {
        ("pipeline", "batch_size"): ("optimizer", "micro_batch"),
        ("pipeline", "prefetch"): ("data", "prefetch"),
        ("pipeline", "max_memory"): ("resources", "max_memory"),
        ("resources", "cpu_workers"): ("data", "workers"),
        ("optimization", "mixed_precision"): ("optimizer", "precision"),
        ("optimization", "gradient_checkpointing"): ("model", "gradient_checkpointing"),
        ("optimization", "compile_mode"): ("model", "compile"),
        ("data", "source", "urls"): ("data", "path"),
        ("data", "source", "name"): ("data", "label"),
        ("data", "settings", "prefetch_size"): ("data", "prefetch_samples"),
        ("data", "settings", "cache_dsn"): ("ledger", "dsn"),
    }
)
"""``training.`` may stand before those of LlamaHome, and before the settings of ``resources``, named the same there."""

RENAMED: Mapping[Path, Path] = MappingProxyType(
    {
        ("data", "memory"): ("data", "stream_buffer_bytes"),
        ("recovery", "health", "z"): ("recovery", "health", "spike_zscore"),
        ("recovery", "health", "rise"): ("recovery", "health", "spike_min_rise"),
        ("recovery", "health", "patience"): ("recovery", "health", "spike_steps"),
        ("resources", "manage"): ("resources", "auto_tune"),
        ("state_store", "archive", "keep_read_hours"): ("state_store", "archive", "restored_copy_hours"),
    }
)
"""Former names of settings, each in the same section as today's; run folders of earlier versions hold them."""

_VALUES: Mapping[Path, Mapping[object, Any]] = MappingProxyType(
    {
        ("data", "workers"): {"auto": None},
        ("optimizer", "precision"): {True: "bf16", False: "fp32"},
        ("model", "gradient_checkpointing"): {True: "full", False: "none"},
        ("model", "compile"): {None: "none"},
    }
)
_SHUFFLED: Path = ("data", "settings", "shuffle_buffer")


def renamed(layer: Tree, problems: list[str], notes: list[str]) -> Tree:
    """Return ``layer`` with the current names of this package.

    Adds to ``problems`` each setting that has no counterpart or is set under two names, and to ``notes`` one sentence
    for each former name, however many layers use it.
    """
    foreign = [path for path, leaf in leaves_of(layer) if _is_foreign(path, leaf, problems)]
    layer = _without(layer, foreign)
    targets = {path: _target(path) for path, _ in leaves_of(layer)}
    aliases = {path: target for path, target in targets.items() if target != path}
    own = _without(layer, aliases)
    taken = {path for path, _ in leaves_of(own)}
    for path, leaf in leaves_of(layer):
        if (target := aliases.get(path)) is None:
            continue
        if target in taken:
            other = f"another name of {dotted(target)}, which is set too"
            problems.append(one_line(f"{dotted(path)} ({leaf.origin}) is {other}: leave one out"))
            continue
        taken.add(target)
        if _bare(path) in RENAMED and (note := _note(path, target)) not in notes:
            notes.append(note)
        own = merge(own, plant_at(target, _value(target, leaf.value), f"{leaf.origin}, as {dotted(path)}"))
    return own


def current_name(name: str) -> str:
    """Return the current dotted name of a setting whose name may be a former one."""
    path = tuple(name.split("."))
    return ".".join(RENAMED.get(path, path))


def with_current_names(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested settings of ``run.json``, with current names in place of former names."""
    return _with_current_names(plain, ())


def _with_current_names(values: Mapping[str, Any], above: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        path = (*above, key)
        found[RENAMED.get(path, path)[-1]] = _with_current_names(value, path) if isinstance(value, dict) else value
    return found


def _note(path: Path, target: Path) -> str:
    return f"{dotted(path)} is now called {dotted(target)}; the old name still works"


def _is_foreign(path: Path, leaf: Leaf, problems: list[str]) -> bool:
    """Return whether ``path`` has no setting here; adds a problem unless its value asks for the only behavior."""
    if path == _SHUFFLED and leaf.value is not True:
        text = "can only be true, as training data are always shuffled here: leave it out"
        problems.append(one_line(f"{dotted(path)} ({leaf.origin}) {text}"))
    return path == _SHUFFLED


def _value(target: Path, value: Any) -> Any:
    values = _VALUES.get(target, {})
    return next((ours for theirs, ours in values.items() if theirs is value or (value == "auto" == theirs)), value)


def _bare(path: Path) -> Path:
    """Return ``path`` without the ``training.`` of LlamaHome."""
    is_prefixed = path[0] == "training" and path[1:2] in (("pipeline",), ("resources",), ("optimization",))
    return path[1:] if is_prefixed else path


def _target(path: Path) -> Path:
    bare = _bare(path)
    if bare in RENAMED:
        return RENAMED[bare]
    return ALIASES.get(bare, path if bare[0] in ("pipeline", "optimization") else bare)


def _without(tree: Tree, paths: Mapping[Path, Path] | list[Path], above: Path = ()) -> Tree:
    left: Tree = {}
    for key, node in tree.items():
        path = (*above, key)
        if isinstance(node, Leaf):
            if path not in paths:
                left[key] = node
        elif (below := _without(node, paths, path)) or not node:
            left[key] = below
    return left
