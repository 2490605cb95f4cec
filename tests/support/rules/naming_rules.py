"""Rules on how modules, classes and files are called and introduced; each yields one line a violation."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING

from tests.support.rules.layout_rules import port_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.support.rules.source_tree import Module

QUESTIONS = {"What", "How", "Which", "Where", "When", "Whether", "Who"}
KINDS = {"memory", "disk", "files", "huggingface", "jsonl", "mixture", "decoder", "deepspeed"}
"""Values of ``kind`` in the settings: the adapter of each port is called by it, and its settings may be."""


def questions(modules: Iterable[Module]) -> Iterator[str]:
    """Yield the modules whose docstring opens with a question word in place of a noun or a verb."""
    for module in modules:
        words = (ast.get_docstring(module.tree) or "").split()
        if words and words[0].strip(",.:") in QUESTIONS:
            yield module.path


def shared_file_names(modules: Sequence[Module]) -> Iterator[str]:
    """Yield the files whose name another has too, unless a port or a kind is called so.

    Files of ``configs/sections`` are called by the sections of the settings.
    """
    ports, files = set(port_names(modules)), defaultdict(list)
    for module in modules:
        name, folder = module.parts[-1], "/".join(module.parts[:-1])
        is_port = name in ports and module.parts[0] == "ports"
        if not (name.startswith("__") or name in KINDS or is_port or folder == "configs/sections"):
            files[name].append(module.path)
    yield from (path for paths in files.values() if len(paths) > 1 for path in paths)


def shared_class_names(modules: Iterable[Module]) -> Iterator[str]:
    """Yield the classes whose name another class at the top of a module has too."""
    places = defaultdict(list)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module.path)
    yield from (f"{path} {name}" for name, paths in places.items() if len(paths) > 1 for path in paths)
