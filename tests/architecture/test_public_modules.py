"""The modules that Semantic Versioning covers, as docs/api.md lists them."""

from __future__ import annotations

import ast
import fnmatch
import re
from itertools import chain

import holdfast
from tests.support.rules.source_tree import ROOT, refuse

_CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ADAPTERS_OF_HOSTS = ("memory", "prometheus")


def _listed():
    """Return the names and patterns of the table."""
    table = (ROOT / "docs/api.md").read_text(encoding="utf-8").split("\n## Public modules\n")[1]
    rows = re.findall(r"^\| (`holdfast.*?) \|", table.partition("<!-- generated")[0], re.MULTILINE)
    found = re.findall(r"`([^`]+)`", "".join(rows))
    assert "holdfast" in found
    return found


def _modules():
    """Return the names of all modules of the package."""
    paths = chain.from_iterable((ROOT / name).rglob("*.py") for name in ("adapters", "application", "domain", "ports"))
    parts = [path.relative_to(ROOT).with_suffix("").parts for path in paths]
    return {".".join(("holdfast", *part)).removesuffix(".__init__") for part in parts} | {"holdfast"}


def _code_for_hosts():
    """Yield a name and the code of each example, and of each block of Python in a document."""
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield path.name, path.read_text(encoding="utf-8")
    for path in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for code in _CODE.findall(path.read_text(encoding="utf-8")):
            yield path.name, code


def _imported(code):
    """Yield the modules of Holdfast that ``code`` imports from; code that stands for a part of a file may not parse."""
    for line in code.splitlines():
        if match := re.match(r"\s*from (holdfast[\w.]*) import ", line):
            yield match[1]


def test_each_listed_module_is_there():
    """Each name, and each pattern at least once, is a module of the package that says what it is."""
    for pattern in _listed():
        found = fnmatch.filter(_modules(), pattern)
        assert found, pattern
        for name in found:
            path = ROOT / f"{name.removeprefix('holdfast.').replace('.', '/')}.py"
            assert name == "holdfast" or not path.exists() or ast.get_docstring(ast.parse(path.read_text("utf-8"))), (
                name
            )


def test_documents_and_examples_use_public_modules_only():
    """A program that follows the documents and the examples uses nothing that may change in any version."""
    listed = _listed()
    private = [
        f"{name}: {module}"
        for name, code in _code_for_hosts()
        if not code.startswith("# ")  # a piece of the source, as architecture.md shows
        for module in _imported(code)
        if not any(fnmatch.fnmatchcase(module, pattern) for pattern in listed)
    ]
    refuse(private, remedy="is not listed in docs/api.md: use a public module, or list it")


def test_what_the_package_offers_is_described():
    """Each name that ``holdfast`` offers can be imported and stands in docs/api.md."""
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    for name in set(holdfast.__all__) - {"__version__"}:
        assert getattr(holdfast, name).__name__ == name
        assert name == "TrainSettings" or f"\n## {name}\n" in page, name


def test_public_constructors_are_documented():
    """The docstring of each adapter for hosts names what it is constructed of."""
    bare: list[str] = []
    for module in sorted(_modules()):
        if not module.startswith("holdfast.adapters.") or module.rpartition(".")[2] not in _ADAPTERS_OF_HOSTS:
            continue
        tree = ast.parse((ROOT / f"{module.removeprefix('holdfast.').replace('.', '/')}.py").read_text("utf-8"))
        for node in (each for each in tree.body if isinstance(each, ast.ClassDef) and not each.name.startswith("_")):
            made = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
            arguments = [each.arg for one in made for each in (*one.args.args, *one.args.kwonlyargs)][1:]
            text = ast.get_docstring(node) or ""
            bare += [f"{module}.{node.name}: {name}" for name in arguments if f"``{name}``" not in text]
    refuse(bare, remedy="is an argument that the docstring of its class does not name: say what it is")
