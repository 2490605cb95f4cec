"""Rules on single files of code; each yields one line a violation."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tests.support.rules.source_tree import last_name, name_of, type_of_function

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.support.rules.source_tree import Module

LONGEST_FUNCTION = 40
LONGEST_FILE = 600
MOST_PARAMETERS = 8
MOST_LOOKUPS = 10
MAY_TAKE_CONTAINER = {"bootstrap/adapter_choice/table.py"}
MAY_CATCH_ALL = {"application/data/prefetch.py": 1}
MAY_TRUST_CODE = {"adapters/model_factory/huggingface.py": "self._trusts_code"}  # only where a user names the model
MAY_UNPICKLE = {"adapters/model_factory/loaded_weights.py": "torch.load"}  # with weights_only=True written out

_UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "jsonpickle", "joblib", "marshal", "shelve"}
_UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}
_UNSAFE_NAMES = {
    *("torch.load", "torch.save", "os.system", "os.popen"),
    *("yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load"),
}
_MUST_BE_FALSE = {"shell", "trust_remote_code", "allow_pickle"}
_LEFTOVERS = re.compile(rf"\b({'todo|fixme|xxx|hack|wip'.upper()})\b")  # small letters: this file has none itself


def long_functions(modules: Iterable[Module]) -> Iterator[str]:
    for module in modules:
        for node in module.nodes(*type_of_function):
            if (lines := node.end_lineno - node.lineno + 1) > LONGEST_FUNCTION:
                yield f"{module.at(node)} {node.name} has {lines} lines"


def long_files(modules: Iterable[Module]) -> Iterator[str]:
    for module in modules:
        if (lines := len(module.text.splitlines())) > LONGEST_FILE:
            yield f"{module.path} has {lines} lines"


def early_starts(modules: Iterable[Module]) -> Iterator[str]:
    """Yield each program that starts before all names of its module are there."""
    for module in modules:
        for node in module.tree.body[:-1]:
            if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
                yield module.at(node)


def container_parameters(modules: Iterable[Module]) -> Iterator[str]:
    for module in modules:
        for node in module.nodes(*type_of_function):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if module.path not in MAY_TAKE_CONTAINER and any(argument.arg == "container" for argument in arguments):
                yield f"{module.at(node)} {node.name} takes the container"


def lookups_by_name(modules: Iterable[Module]) -> Iterator[str]:
    """Yield each ``getattr`` and ``hasattr`` of bootstrap, if they are more than ``MOST_LOOKUPS``."""
    found = [
        f"{module.at(node)} {name_of(node.func)}"
        for module in modules
        if module.parts[0] == "bootstrap"
        for node in module.nodes(ast.Call)
        if name_of(node.func) in {"getattr", "hasattr"}
    ]
    yield from found if len(found) > MOST_LOOKUPS else ()


def crowded_constructors(modules: Iterable[Module]) -> Iterator[str]:
    for module in modules:
        for node in module.nodes(ast.ClassDef):
            if (parameters := _num_parameters(node)) > MOST_PARAMETERS:
                yield f"{module.at(node)} {node.name} takes {parameters} parameters"


def _num_parameters(node: ast.ClassDef) -> int:
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            arguments = member.args
            return len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]) - 1
    if not any(last_name(decorator) == "dataclass" for decorator in node.decorator_list):
        return 0
    fields = [member for member in node.body if isinstance(member, ast.AnnAssign)]
    return sum("ClassVar" not in ast.dump(field.annotation) and not _is_no_parameter(field.value) for field in fields)


def _is_no_parameter(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and any(
        keyword.arg == "init" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        for keyword in value.keywords
    )


def unsafe_code(modules: Iterable[Module]) -> Iterator[str]:
    for module in modules:
        excused = set(_loads_of_weights(module)) if module.path in MAY_UNPICKLE else set()
        for node in ast.walk(module.tree):
            if node in excused:
                continue
            for name in _unsafe_in(node, trusting=MAY_TRUST_CODE.get(module.path)):
                yield f"{module.at(node)} uses {name}"


def _loads_of_weights(module: Module) -> Iterator[ast.AST]:
    """Yield the name in each call of what the module may unpickle with, where the call allows tensors only."""
    for node in module.nodes(ast.Call):
        options = {keyword.arg: keyword.value for keyword in node.keywords}
        is_bound = isinstance(only := options.get("weights_only"), ast.Constant) and only.value is True
        if is_bound and name_of(node.func) == MAY_UNPICKLE[module.path]:
            yield node.func


def _unsafe_in(node: ast.AST, *, trusting: str | None) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names if alias.name.split(".")[0] in _UNSAFE_MODULES)
        case ast.ImportFrom(module=str(source), names=names):
            if source.split(".")[0] in _UNSAFE_MODULES:
                yield source
            yield from (dotted for alias in names if (dotted := f"{source}.{alias.name}") in _UNSAFE_NAMES)
        case ast.Attribute() if (dotted := name_of(node)) in _UNSAFE_NAMES:
            yield dotted
        case ast.Call(func=function, keywords=keywords):
            if isinstance(function, ast.Name) and function.id in _UNSAFE_CALLS:
                yield f"{function.id}()"
            yield from (f"{keyword.arg}=True" for keyword in keywords if _is_unsafe_option(keyword, trusting))


def _is_unsafe_option(keyword: ast.keyword, trusting: str | None) -> bool:
    if keyword.arg == "trust_remote_code" and ast.unparse(keyword.value) == trusting:
        return False
    is_false = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
    return keyword.arg in _MUST_BE_FALSE and not is_false


def catch_alls(modules: Iterable[Module]) -> Iterator[str]:
    for module in modules:
        found = [node for node in module.nodes(ast.ExceptHandler, ast.Call) if _keeps_all(node)]
        if len(found) > MAY_CATCH_ALL.get(module.path, 0):
            yield from (f"{module.at(node)} keeps KeyboardInterrupt and SystemExit to itself" for node in found)


def _keeps_all(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        catches_all = node.type is None or any(last_name(kind) == "BaseException" for kind in kinds)
        passes_on = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
        return catches_all and not passes_on
    return last_name(node) == "suppress" and any(last_name(kind) == "BaseException" for kind in node.args)


def undocumented(modules: Iterable[Module]) -> Iterator[str]:
    for module in modules:
        if not ast.get_docstring(module.tree):
            yield f"{module.path}:1 the module"
        yield from (f"{module.at(node)} {node.name}" for node in _public(module.tree) if not _is_documented(node))


def _public(parent: ast.Module | ast.ClassDef) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    for node in parent.body:
        if isinstance(node, (ast.ClassDef, *type_of_function)) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node)


def _is_documented(node: ast.ClassDef | ast.FunctionDef) -> bool:
    inherits_it = any(last_name(decorator) in {"override", "overload", "setter"} for decorator in node.decorator_list)
    return inherits_it or bool(ast.get_docstring(node))


def leftovers(texts: Iterable[tuple[str, str]]) -> Iterator[str]:
    for path, text in texts:
        for number, line in enumerate(text.splitlines(), 1):
            if found := _LEFTOVERS.search(line):
                yield f"{path}:{number} says {found[0]}"
