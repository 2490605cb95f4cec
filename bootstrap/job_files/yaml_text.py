"""Plain data as the YAML of a job file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

_WIDTH = 110


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block, as people do."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def as_yaml(*documents: Mapping[str, Any]) -> str:
    """Return ``documents`` as YAML, one after the other, with collections of plain values on one line."""
    plain = [*documents]
    return yaml.dump_all(
        plain, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=_WIDTH, allow_unicode=True
    )
