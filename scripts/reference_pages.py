"""Writes the generated parts of the reference in docs/: settings, exit codes, metrics, events, commands, ports, API."""

from __future__ import annotations

import ast
import itertools
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.process.exit_codes import STOPPING_SIGNALS, code_of_signal
from holdfast.configs.settings_catalog import built_in_kinds, described_settings
from holdfast.domain.training.metric_catalog import EVALUATION_METRICS, STEP_METRICS, SUITE_METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from holdfast.domain.training.metric_catalog import CatalogedMetric

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_WIDTH = 80
"""Characters of a line of code that the site shows without scrolling."""
_SPECIAL = {"__call__", "__enter__", "__exit__", "__aiter__", "__anext__"}
_FIRST_PORTS = ("data_source", "model_factory", "optimizer", "state_store", "monitor")
_SECTIONS = {
    "data_source": "data",
    "model_factory": "model",
    "optimizer": "optimizer",
    "state_store": "state_store",
    "monitor": "monitors",
    "tokenizer": "tokenizer",
    "event_bus": "event_bus",
    "process_group": "distributed",
    "ledger": "ledger",
}
_API = {
    "bootstrap/run.py": ("build", "Run"),
    "bootstrap/adapter_choice/part_overrides.py": ("Overrides", "RunOptions"),
    "configs/settings_layers.py": ("load_settings", "Resolved"),
    "bootstrap/async_run.py": ("build_async", "AsyncRun", "EventStream"),
}
_ENUMERATIONS = {
    "SaveReason": "domain/commands.py",
    "Knob": "domain/resources/balance_policy.py",
    "Tier": "domain/checkpoints/tiers.py",
    "PreparationPhase": "domain/phase.py",
}


def outdated() -> Iterator[Path]:
    """Yield each page of docs/ whose generated parts differ from the code."""
    for page in sorted((ROOT / "docs").glob("*.md")):
        if refreshed(page.read_text(encoding="utf-8")) != page.read_text(encoding="utf-8"):
            yield page


def refreshed(text: str) -> str:
    """Return the page ``text`` with each block between ``<!-- generated: NAME -->`` and ``<!-- end -->`` made anew."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{BLOCKS[block['name']]().strip()}\n\n{block[3]}", text)


def settings() -> str:
    """Return the tables of all settings, by section, with what ``config --describe`` prints."""
    sections: dict[str, list[tuple[str, ...]]] = {}
    for name, default, kinds, description in described_settings():
        row = (f"`{name}`", default and f"`{default}`", kinds, _escaped(description or ""))
        sections.setdefault(name.partition(".")[0], []).append(row)
    head = ("setting", "default", "of", "description")
    return "\n\n".join(f"## {section}\n\n{_table(head, rows)}" for section, rows in sections.items())


def exit_codes() -> str:
    """Return the table of the exit codes, from ``ExitCode`` and the signals at which a run stops."""
    body = _classes("bootstrap/process/exit_codes.py")["ExitCode"].body
    rows = [
        (str(ast.literal_eval(member.value)), _name_of(member), _one_line(_markdown(meaning.value.value)))
        for member, meaning in itertools.pairwise(body)
        if isinstance(member, ast.Assign) and isinstance(meaning, ast.Expr) and isinstance(meaning.value, ast.Constant)
    ]
    rows += [(str(code_of_signal(each)), each.name, f"Stopped by {each.name}.") for each in sorted(STOPPING_SIGNALS)]
    return _table(("code", "name", "meaning"), rows)


def metrics(entries: Sequence[CatalogedMetric]) -> str:
    """Return the table of the metrics of one kind of record."""
    rows = [
        (f"`{entry.name}`", entry.unit, _escaped(entry.meaning) + (f" ([more]({entry.page}))" if entry.page else ""))
        for entry in entries
    ]
    return _table(("name", "unit", "meaning"), rows)


def messages(path: str, base: str) -> str:
    """Return the table of the dataclasses in the file ``path`` that derive from ``base``."""
    rows = [
        (f"`{name}`", ", ".join(f"`{field}`" for field in _fields(node)), _one_line(_markdown(ast.get_docstring(node))))
        for name, node in _classes(path).items()
        if any(isinstance(each, ast.Name) and each.id == base for each in node.bases)
    ]
    return _table((base.lower(), "fields", "meaning"), rows)


def picture() -> str:
    """Return the picture of the loop in the docstring of the events."""
    parts = (ast.get_docstring(_module("domain/events.py")) or "").split("\n\n")
    drawn = next(part for part in parts if part.startswith("    "))
    return f"```text\n{re.sub('^    ', '', drawn, flags=re.MULTILINE)}\n```"


def enumerations() -> str:
    """Return the table of the enumerations in the fields of events and commands."""
    rows = []
    for name, path in _ENUMERATIONS.items():
        node = _classes(path)[name]
        values = [f"`{ast.literal_eval(each.value)}`" for each in node.body if isinstance(each, ast.Assign)]
        rows.append((f"`{name}`", ", ".join(values), _one_line(_markdown(ast.get_docstring(node)))))
    return _table(("type", "values", "meaning"), rows)


def ports() -> str:
    """Return a section for each file of ports/."""
    found = {path.stem for path in (ROOT / "ports").glob("*.py")} - {"__init__", "basic"}
    names = [*_FIRST_PORTS, *sorted(found - {*_FIRST_PORTS})]
    return "\n\n".join(part for name in names for part in _port(name))


def _port(name: str) -> Iterator[str]:
    path = f"ports/{name}.py"
    title = "".join(part.capitalize() for part in name.split("_"))
    yield f"## {title}"
    about = f"[{path}](../{path}), with the contract suite [ports/testing/{name}.py](../ports/testing/{name}.py)."
    if kinds := built_in_kinds(_SECTIONS.get(name, "")):
        listed = ", ".join(f"`{kind}`" for kind in kinds)
        about += f" Built-in kinds of the section `{_SECTIONS[name]}` of the settings: {listed}."
    yield about
    classes = _classes(path)
    yield from _described_class(classes.pop(title))
    for node in (*classes.values(), *_functions(path).values()):
        if not node.name.startswith("_"):
            yield f"### {node.name}"
            yield from _described_class(node) if isinstance(node, ast.ClassDef) else _described_function(node)


def api() -> str:
    """Return a section for each function and class that a host program uses."""
    parts: list[str] = []
    for path, names in _API.items():
        found: Mapping[str, ast.ClassDef | ast.FunctionDef] = {**_classes(path), **_functions(path)}
        for name in names:
            node = found[name]
            parts += [f"## {name}", f"In [{path}](../{path})."]
            parts += _described_class(node) if isinstance(node, ast.ClassDef) else _described_function(node)
    return "\n\n".join(parts)


def _described_function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    signature = _signature(node)
    if len(signature) > _WIDTH:
        arguments = "".join(f"    {argument},\n" for argument in _arguments(node.args))
        signature = f"{signature.partition('(')[0]}(\n{arguments}){signature[signature.rindex(' -> ') :]}"
    yield f"```python\n{signature}\n```"
    yield _markdown(ast.get_docstring(node))


def _described_class(node: ast.ClassDef) -> Iterator[str]:
    yield _markdown(ast.get_docstring(node))
    if fields := _fields(node):
        yield "Fields: " + ", ".join(f"`{field}`" for field in fields) + "."
    lines = [
        f"- `{_signature(method)}`: {_one_line(_markdown(ast.get_docstring(method)))}"
        for method in node.body
        if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (not method.name.startswith("_") or method.name in _SPECIAL)
        and ast.get_docstring(method)
    ]
    if lines:
        yield "Methods:"
        yield "\n".join(lines)


def _fields(node: ast.ClassDef) -> Sequence[str]:
    return [
        ast.unparse(each).partition(" = ")[0]
        for each in node.body
        if isinstance(each, ast.AnnAssign) and not ast.unparse(each.annotation).startswith("ClassVar")
    ]


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    returns = ast.unparse(node.returns) if node.returns else "None"
    if any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list):
        return f"{node.name}: {returns}"
    begin = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{begin}{node.name}({', '.join(_arguments(node.args))}) -> {returns}"


def _arguments(arguments: ast.arguments) -> Iterator[str]:
    """Yield each argument but ``self``, with its type and its default."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    for number, (each, default) in enumerate(zip(positional, defaults, strict=True), 1):
        if each.arg != "self":
            yield _argument(each, default)
        if number == len(arguments.posonlyargs):
            yield "/"
    if arguments.vararg:
        yield f"*{_argument(arguments.vararg, None)}"
    elif arguments.kwonlyargs:
        yield "*"
    yield from map(_argument, arguments.kwonlyargs, arguments.kw_defaults)
    if arguments.kwarg:
        yield f"**{_argument(arguments.kwarg, None)}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + ("" if default is None else f" = {ast.unparse(default)}")


@cache
def _module(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def _classes(path: str) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in _module(path).body if isinstance(node, ast.ClassDef)}


def _functions(path: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in _module(path).body if isinstance(node, ast.FunctionDef)}


def _name_of(member: ast.Assign) -> str:
    return ast.unparse(member.targets[0])


def _markdown(docstring: str | None) -> str:
    return _escaped((docstring or "").replace("``", "`").strip())


def _escaped(text: str) -> str:
    """Return ``text`` in which no ``<`` begins a tag, those in code left as they are."""
    parts = text.split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([_in_cell(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "settings": settings,
    "exit-codes": exit_codes,
    "step-metrics": lambda: metrics(STEP_METRICS),
    "evaluation-metrics": lambda: metrics(EVALUATION_METRICS),
    "suite-metrics": lambda: metrics(SUITE_METRICS),
    "picture": picture,
    "events": lambda: messages("domain/events.py", "Event"),
    "commands": lambda: messages("domain/commands.py", "Command"),
    "enumerations": enumerations,
    "ports": ports,
    "api": api,
}
"""The generated parts of pages by name."""


if __name__ == "__main__":
    for outdated_page in outdated():
        outdated_page.write_text(refreshed(outdated_page.read_text(encoding="utf-8")), encoding="utf-8")
