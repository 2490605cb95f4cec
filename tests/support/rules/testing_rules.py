"""Rules on tests; each yields one line a violation."""

from __future__ import annotations

import ast
import re
from itertools import chain
from typing import TYPE_CHECKING

from tests.support.rules.source_tree import last_name, type_of_function

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.support.rules.source_tree import Module

_CHECKS = {"raises", "warns", "fail", "refuse"}
_CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
_MARKS = {"slow", "gpu", "network"}  # of tests that no default run makes
_GENEROUS = 30.0  # seconds
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


def hasty_tests(modules: Iterable[Module]) -> Iterator[str]:
    """Yield what asserts, in a default test, that less than some seconds have passed."""
    for module in modules:
        if _is_marked(module.tree.body):
            continue
        limits = {
            node.targets[0].id: node.value.value
            for node in module.tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_number(node.value)
        }
        for function in module.nodes(*type_of_function):
            if not _MARKS.intersection(map(last_name, function.decorator_list)):
                yield from (f"{module.at(node)} {function.name}" for node in _short_limits(function, limits))


def _short_limits(function: ast.AST, limits: dict[str, float]) -> Iterator[ast.AST]:
    nodes = list(ast.walk(function))
    assigned = [node for node in nodes if isinstance(node, ast.Assign) and _is_elapsed(node.value, ())]
    spans = {last_name(node.targets[0]) for node in assigned}
    asserted = chain.from_iterable(ast.walk(node.test) for node in nodes if isinstance(node, ast.Assert))
    for node in asserted:
        if isinstance(node, ast.Compare):
            sides = zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)
            for left, operator, right in sides:
                less, more = (left, right) if isinstance(operator, (ast.Lt, ast.LtE)) else (right, left)
                limit = limits.get(last_name(more)) if isinstance(more, ast.Name) else getattr(more, "value", None)
                is_order = isinstance(operator, (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
                if is_order and _is_elapsed(less, spans) and isinstance(limit, (int, float)) and limit < _GENEROUS:
                    yield node


def _is_elapsed(node: ast.AST, spans: Iterable[str]) -> bool:
    is_difference = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)
    if is_difference and isinstance(node.left, ast.Call):
        return last_name(node.left) in _CLOCKS
    return isinstance(node, ast.Name) and node.id in spans


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def _is_marked(statements: Iterable[ast.stmt]) -> bool:
    """Return whether ``pytestmark`` among ``statements`` keeps the tests of a file out of a default run."""
    marks = [node for node in statements if isinstance(node, ast.Assign) and last_name(node.targets[0]) == "pytestmark"]
    return any(last_name(found) in _MARKS for mark in marks for found in ast.walk(mark.value))


def _tests(module: Module) -> Iterator[ast.FunctionDef]:
    return (node for node in module.nodes(*type_of_function) if node.name.startswith("test"))


def _checks(function: ast.AST, biting: set[str]) -> bool:
    return any(_is_check(node, biting) for node in ast.walk(function))


def _is_check(node: ast.AST, biting: set[str]) -> bool:
    if isinstance(node, ast.Assert):
        return True
    name = last_name(node) if isinstance(node, ast.Call) else ""
    return name in _CHECKS or name in biting or name.startswith("assert")
