"""Writes the settings out, without their secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.configs.error_messages import one_line
from holdfast.configs.plain import to_plain
from holdfast.configs.secret_masking import mask, mask_url
from holdfast.configs.strict_yaml import write_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.configs.settings import TrainSettings
    from holdfast.configs.settings_layers import Resolved


def dump_settings(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings as nested data fit for JSON, secrets masked; ``restore_settings`` reads it back."""
    plain: dict[str, Any] = mask(to_plain(settings), mask_url)
    return plain


def render(resolved: Resolved, *, only_changed: bool = False) -> str:
    """Return the settings as YAML that ``--config`` reads, each value with its origin in a comment, secrets masked.

    With ``only_changed`` it contains only the settings that a layer set; ``--config`` reads this YAML too.
    """
    plain = dump_settings(resolved.settings)
    if only_changed:
        plain = _changed(plain, (), resolved.origins)
    notes = (f"# {one_line(note)}" for note in resolved.notes)
    return "\n".join([*notes, *_lines(plain, (), resolved.origins)]) + "\n"


def _changed(values: Mapping[str, Any], path: tuple[str, ...], origins: Mapping[str, str]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            if below := _changed(value, (*path, key), origins):
                kept[key] = below
        elif origins[".".join((*path, key))] != "default":
            kept[key] = value
    return kept


def _lines(values: Mapping[str, Any], path: tuple[str, ...], origins: Mapping[str, str]) -> Iterator[str]:
    for key, value in values.items():
        start = f"{'  ' * len(path)}{write_yaml(key)}:"
        if isinstance(value, dict) and value:
            yield start
            yield from _lines(value, (*path, key), origins)
        else:
            yield f"{start} {write_yaml(value)}  # {one_line(origins['.'.join((*path, key))])}"
