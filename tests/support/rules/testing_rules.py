"""Rules on tests; each yields one line a violation."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tests.support.rules.source_tree import last_name, type_of_function

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.support.rules.source_tree import Module

_CHECKS = {"raises", "warns", "fail", "refuse"}
_SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)[.!?]\s+[A-Z]")


def wordless_tests(modules: Iterable[Module]) -> Iterator[str]:
    for module in modules:
        for node in _tests(module):
            docstring = ast.get_docstring(node) or ""
            if not docstring.endswith(".") or "\n\n" in docstring or _SENTENCE_END.search(docstring):
                yield f"{module.at(node)} {node.name}"


def toothless_tests(modules: Iterable[Module]) -> Iterator[str]:
    for module in modules:
        functions = {node.name: node for node in module.nodes(*type_of_function)}
        biting = {name for name, node in functions.items() if _checks(node, set())}
        while grown := {name for name, node in functions.items() if name not in biting and _checks(node, biting)}:
            biting |= grown
        yield from (f"{module.at(node)} {node.name}" for node in _tests(module) if node.name not in biting)


def _tests(module: Module) -> Iterator[ast.FunctionDef]:
    return (node for node in module.nodes(*type_of_function) if node.name.startswith("test"))


def _checks(function: ast.AST, biting: set[str]) -> bool:
    return any(_is_check(node, biting) for node in ast.walk(function))


def _is_check(node: ast.AST, biting: set[str]) -> bool:
    if isinstance(node, ast.Assert):
        return True
    name = last_name(node) if isinstance(node, ast.Call) else ""
    return name in _CHECKS or name in biting or name.startswith("assert")
