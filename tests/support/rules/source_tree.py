"""The project's Python files as syntax trees, for the rules beside this file."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("domain", "ports", "adapters", "application", "bootstrap", "configs")

type_of_function = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Module:
    """One Python file: ``path`` relative to the root in POSIX form, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def parts(self) -> tuple[str, ...]:
        return Path(self.path).with_suffix("").parts

    @cached_property
    def _nodes(self) -> Sequence[ast.AST]:
        return list(ast.walk(self.tree))

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        return (node for node in self._nodes if isinstance(node, kinds))

    def at(self, node: ast.AST) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}"


@cache
def project() -> Sequence[Module]:
    """Return the modules of the packages that are shipped."""
    return modules_under(*PACKAGES)


@cache
def modules_under(*folders: str) -> Sequence[Module]:
    """Return the modules under ``folders`` of the repository; each is read and parsed once."""
    return [module for folder in folders for module in _modules_in(folder)]


@cache
def _modules_in(folder: str) -> Sequence[Module]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    return [Module(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


def within(modules: Iterable[Module], *packages: str) -> list[Module]:
    """Return those of ``modules`` that lie in one of ``packages``."""
    return [module for module in modules if module.parts[0] in packages]


def name_of(node: ast.AST | None) -> str:
    """Return the dotted name that ``node`` spells, subscripts and calls left out; empty if it is no name."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{name_of(value)}.{attr}"
        case ast.Subscript(value=value) | ast.Call(func=value):
            return name_of(value)
        case _:
            return ""


def last_name(node: ast.AST | None) -> str:
    """Return the last part of ``name_of``: ``final`` for ``typing.final``."""
    return name_of(node).rpartition(".")[-1]


def camel(name: str) -> str:
    """Return ``state_store`` as ``StateStore``."""
    return "".join(part.capitalize() for part in name.split("_"))


def refuse(violations: Iterable[str], *, remedy: str) -> None:
    """Fail with every violation and what to do about them."""
    found = sorted(violations)
    assert not found, "\n".join([remedy, *found])
