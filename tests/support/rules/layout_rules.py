"""Rules on where code lies and what it may know; each yields one line a violation."""

from __future__ import annotations

import ast
import sys
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from tests.support.rules.source_tree import PACKAGES, camel, last_name, name_of, within

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tests.support.rules.source_tree import Module

ALLOWED = {
    "domain": {"domain", "numpy"},
    "ports": {"domain", "ports", "numpy"},
    "ports/basic.py": {"domain", "ports", "numpy", "typing_extensions"},
    "ports/forwarding": {"domain", "ports", "numpy", "typing_extensions"},
    "ports/testing": {"domain", "ports", "numpy", "pytest", "hypothesis"},
    "application": {"domain", "ports", "application", "numpy"},
    "application/__main__.py": {"bootstrap"},
}


def strange_imports(modules: Iterable[Module]) -> Iterator[str]:
    for module in within(modules, "domain", "ports", "application"):
        allowed = ALLOWED[_most_specific(module.path)] | sys.stdlib_module_names
        for node in module.nodes(ast.Import, ast.ImportFrom):
            for name in _imported(node):
                if name not in allowed:
                    yield f"{module.at(node)} imports {name}"


def _most_specific(path: str) -> str:
    return max((place for place in ALLOWED if f"{path}/".startswith(f"{place}/")), key=len)


def _imported(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (_package(alias.name) for alias in names)
        case ast.ImportFrom(level=0, module=str(source)):
            yield _package(source)
        case ast.ImportFrom():
            yield "a relative name"


def _package(name: str) -> str:
    """Return ``ports`` for ``holdfast.ports.monitor``, and the first part of any other name."""
    parts = name.split(".")
    return parts[1] if parts[0] == "holdfast" and len(parts) > 1 else parts[0]


def imports_without_prefix(modules: Iterable[Module]) -> Iterator[str]:
    """Yield the imports that name a folder of the repository and not the package that it is a part of."""
    for module in modules:
        for node in module.nodes(ast.Import, ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            if any(name.split(".")[0] in PACKAGES for name in names):
                yield module.at(node)


def folders_without_init(paths: Iterable[str]) -> Iterator[str]:
    files = {PurePosixPath(path) for path in paths}
    folders = {parent for path in files for parent in path.parents if parent.parts}
    yield from (str(folder) for folder in folders if folder / "__init__.py" not in files)


def port_names(modules: Iterable[Module]) -> list[str]:
    """Return the names of the files in ``ports/``, each of which is a port."""
    files = (module.parts for module in within(modules, "ports"))
    return [parts[1] for parts in files if len(parts) == 2 and parts[1] not in {"__init__", "basic"}]


def adapters_of(modules: Iterable[Module], port: str) -> Iterator[tuple[Module, ast.ClassDef]]:
    """Yield the classes under ``adapters/<port>/`` that answer the port itself."""
    for module in modules:
        if module.parts[:2] == ("adapters", port) and "holdfast.ports." in module.text:
            for node in module.nodes(ast.ClassDef):
                if {camel(port), f"Basic{camel(port)}"} & set(map(last_name, node.bases)):
                    yield module, node


def open_adapters(modules: Sequence[Module]) -> Iterator[str]:
    """Yield the classes under ``adapters/`` that answer anything of a port and may still be subclassed."""
    for module in within(modules, "adapters"):
        promised = {
            alias.asname or alias.name
            for node in module.nodes(ast.ImportFrom)
            if (node.module or "").startswith("holdfast.ports.")
            for alias in node.names
        }
        for node in module.nodes(ast.ClassDef):
            is_adapter = any(last_name(base) in promised for base in node.bases)
            if is_adapter and "final" not in map(last_name, node.decorator_list):
                yield f"{module.at(node)} {node.name}"


def misnamed_adapters(modules: Sequence[Module]) -> Iterator[str]:
    for port in port_names(modules):
        for module, node in adapters_of(modules, port):
            wanted = camel(module.parts[2]) + camel(port)
            if node.name.casefold() != wanted.casefold():
                yield f"{module.at(node)} {node.name} is not called {wanted}"


def ports_without_memory(modules: Sequence[Module]) -> Iterator[str]:
    for port in port_names(modules):
        if not any(module.parts[2] == "memory" for module, _ in adapters_of(modules, port)):
            yield f"adapters/{port}/memory.py does not answer ports/{port}.py"


def ports_without_suite(modules: Sequence[Module]) -> Iterator[str]:
    for port in port_names(modules):
        wanted = f"{camel(port)}Contract"
        suites = [module for module in modules if module.path == f"ports/testing/{port}.py"]
        if not any(node.name == wanted for suite in suites for node in suite.nodes(ast.ClassDef)):
            yield f"ports/testing/{port}.py has no class {wanted}"


def adapters_without_contract(modules: Sequence[Module], tests: Iterable[Module]) -> Iterator[str]:
    by_path = {module.path: module for module in tests}
    for port in port_names(modules):
        path = f"tests/contracts/test_{port}.py"
        on_ranks = f"tests/contracts/{port}_on_ranks.py"  # what needs several processes
        suites = [s for p in (path, on_ranks) for s in _contract_classes(by_path.get(p), f"{camel(port)}Contract")]
        for module, node in adapters_of(modules, port):
            if not any(_is_about(node.name, suite) for suite in suites):
                yield f"{module.at(node)} {node.name} is run by no {camel(port)}Contract subclass in {path}"


def _contract_classes(module: Module | None, suite: str) -> Iterator[ast.ClassDef]:
    known = {suite}
    for node in module.nodes(ast.ClassDef) if module is not None else ():
        if known & set(map(last_name, node.bases)):
            known.add(node.name)
            yield node


def _is_about(adapter: str, suite: ast.ClassDef) -> bool:
    is_named = adapter.casefold() in suite.name.casefold()
    return is_named or any(last_name(node) == adapter for node in ast.walk(suite) if isinstance(node, ast.expr))


def quiet_defaults(modules: Sequence[Module]) -> Iterator[str]:
    """Yield the methods of ports that are not abstract, so that a wrapper could forget them."""
    for module in within(modules, "ports"):
        for node in _ports_in(module) if len(module.parts) == 2 and module.parts[1] != "basic" else ():
            for method in _promised(node):
                if "abstractmethod" not in map(last_name, method.decorator_list):
                    yield f"{module.at(method)} {node.name}.{method.name}"


def forgotten_methods(modules: Sequence[Module]) -> Iterator[str]:
    """Yield the methods of ports that the forwarding base of the port does not pass on to the same one of ``inner``."""
    classes = {node.name: node for module in within(modules, "ports") for node in module.nodes(ast.ClassDef)}
    for module in within(modules, "ports"):
        for node in module.nodes(ast.ClassDef):
            if node.name.startswith("Forwarding"):
                forwarded = {method.name for method in _promised(node) if _asks_inner(method)}
                ports = _with_bases(classes[node.name.removeprefix("Forwarding")], classes)
                promised = {method.name for port in ports for method in _promised(port)}
                yield from (f"{module.at(node)} {node.name}.{name}" for name in promised - forwarded)


def _ports_in(module: Module) -> Iterator[ast.ClassDef]:
    for node in module.nodes(ast.ClassDef):
        decorators = [name for method in _promised(node) for name in method.decorator_list]
        if "abstractmethod" in map(last_name, decorators):
            yield node


def _promised(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and (
            not method.name.startswith("_") or method.name in {"__enter__", "__exit__", "__call__"}
        ):
            yield method


def _with_bases(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    yield node
    for base in map(last_name, node.bases):
        if base in classes:
            yield from _with_bases(classes[base], classes)


def _asks_inner(method: ast.FunctionDef) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr == method.name and name_of(node.value) == "self.inner"
        for node in ast.walk(method)
    )


def spelt_run_files(modules: Iterable[Module]) -> Iterator[str]:
    """Yield where ``bootstrap`` joins a path with the name of a file of a run folder that ``RunLayout`` has."""
    layout = "bootstrap/run_folder/layout.py"
    names = {
        name
        for module in modules
        if module.path == layout
        for node in module.nodes(ast.BinOp)
        for name in _joined(node)
    }
    for module in within(modules, "bootstrap"):
        if module.path not in {layout, "bootstrap/run_folder/post_mortem.py"}:  # its folder has names of its own
            for node in module.nodes(ast.BinOp):
                yield from (f"{module.at(node)} {name}" for name in _joined(node) if name in names)


def _joined(node: ast.BinOp) -> Iterator[str]:
    if isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
        yield str(node.right.value)
