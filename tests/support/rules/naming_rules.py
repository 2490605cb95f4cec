"""Rules on how modules, classes and files are called and introduced; each yields one line a violation."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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


def shared_class_names(modules: Iterable[Module]) -> Iterator[str]:
    """Yield the classes whose name another class at the top of a module has too."""
    places = defaultdict(list)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module.path)
    yield from (f"{path} {name}" for name, paths in places.items() if len(paths) > 1 for path in paths)
