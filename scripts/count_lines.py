"""Prints the lines of code of each package, without docstrings, comments and empty lines, and the share of imports."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_PRODUCT = ("adapters", "application", "bootstrap", "configs", "domain", "ports")
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def count(source: str) -> tuple[int, int]:
    """Return the lines of code in ``source``, and those of them that belong to imports."""
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    docstrings, imports = set[int](), set[int]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports |= _lines_of(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings |= _lines_of(node)
    return len(lines - docstrings), len(imports & lines)


def _lines_of(node: ast.stmt) -> set[int]:
    return {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def main() -> None:
    """Print modules, lines of code and the share of imports: of each package, of those inside it, and of all."""
    modules, code, imports = Counter[str](), Counter[str](), Counter[str]()
    for package in _PRODUCT:
        for path in sorted((_ROOT / package).rglob("*.py")):
            found = count(path.read_text(encoding="utf-8"))
            for name in {"all", package, "/".join(path.relative_to(_ROOT).parent.parts[:2])}:
                modules[name] += 1
                code[name] += found[0]
                imports[name] += found[1]
    for name in sorted(modules):
        share = imports[name] / code[name] if code[name] else 0.0
        sys.stdout.write(f"{name:32} {modules[name]:4} modules {code[name]:7,} lines {share:6.1%} imports\n")


if __name__ == "__main__":
    main()
