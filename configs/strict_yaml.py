"""Reads and writes the subset of YAML for settings: plain data of bounded size.

Scalars follow YAML 1.2 (``1e-3`` is a number; ``yes``, ``1:30`` and dates are text). There are no anchors, aliases,
tags or merge keys; a key is text and occurs once.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import yaml
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DEPTH = 64
MAX_NODES = 20_000

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"([-+]?)\.(inf|Inf|INF|nan|NaN|NAN)")
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")


class StrictYamlError(ValueError):
    """The text is outside the supported subset of YAML; ``line`` counts from 1."""

    def __init__(self, problem: str, line: int) -> None:
        super().__init__(problem)
        self.line = line


class _StrictLoader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._nodes = 0

    @override
    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            msg = "anchors (&) and aliases (*) are not allowed, quote text that begins with one"
            raise StrictYamlError(msg, line)
        if event.tag is not None:
            msg = "tags (!) are not allowed, quote text that begins with one"
            raise StrictYamlError(msg, line)
        self._depth += 1
        self._nodes += 1
        if self._depth > MAX_DEPTH:
            msg = f"it is nested deeper than {MAX_DEPTH} levels"
            raise StrictYamlError(msg, line)
        if self._nodes > MAX_NODES:
            msg = f"it has more than {MAX_NODES} values"
            raise StrictYamlError(msg, line)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def read_yaml(text: str) -> Any:
    """Return the plain data of one YAML document, None if it is empty; raises ``StrictYamlError``."""
    try:
        loader = _StrictLoader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise StrictYamlError(error.problem or "it is not YAML", mark.line + 1 if mark else 1) from None
    except yaml.YAMLError:
        msg = "it has characters that YAML does not allow"
        raise StrictYamlError(msg, 1) from None
    return None if node is None else _value(node, "")


def _value(node: yaml.Node, path: str) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, f"{path}[{position}]") for position, item in enumerate(node.value)]
    if not (isinstance(node, yaml.ScalarNode) and node.style):
        return read_scalar(node.value)
    # JSON escapes what lies beyond 16 bits as two halves; a half alone is left for the caller to refuse.
    text: str = node.value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return text


def _mapping(node: yaml.MappingNode, path: str) -> dict[str, Any]:
    lines: dict[str, int] = {}
    values = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = _value(key_node, path)
        if not isinstance(key, str):
            msg = f"{path or 'a mapping'} has a key that is not text, quote it"
            raise StrictYamlError(msg, line)
        name = f"{path}.{key}" if path else key
        if key in lines:
            msg = f"{name} is there twice, first on line {lines[key]}"
            raise StrictYamlError(msg, line)
        lines[key] = line
        values[key] = _value(value_node, name)
    return values


def read_scalar(text: str) -> str | float | bool | None:
    """Return the value of an unquoted scalar: None, a boolean, a number, or the text itself."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    # Python refuses to read integers of thousands of digits, and no setting has any use for them.
    if len(text) <= 400 and _INT.fullmatch(text):
        return int(text)
    if len(text) <= 400 and _FLOAT.fullmatch(text):
        return float(text)
    if special := _SPECIAL.fullmatch(text):
        return float(special[1] + special[2])
    return text


def write_yaml(value: Any) -> str:
    """Return ``value`` on one line, from which ``read_yaml`` returns ``value`` again."""
    if isinstance(value, dict):
        return _flow_mapping(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(write_yaml(item) for item in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    if isinstance(value, int | float):
        return repr(value)
    return "null" if value is None else _quoted(str(value))


def _flow_mapping(mapping: Mapping[str, Any]) -> str:
    return f"{{{', '.join(f'{write_yaml(key)}: {write_yaml(value)}' for key, value in mapping.items())}}}"


def _quoted(text: str) -> str:
    if _PLAIN.fullmatch(text) and isinstance(read_scalar(text), str):
        return text
    return f'"{"".join(_escaped(character) for character in text)}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08x}"
