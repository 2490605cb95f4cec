"""Reads the settings from their layers: defaults, then files, environment and command line, each over the last."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from configs.aliases import renamed
from configs.catalog import takes_null, takes_only_text
from configs.masking import MASK
from configs.plain import leaves, to_plain
from configs.problems import Origins, dotted, explain, one_line, refuse, unknown
from configs.settings import TrainSettings
from configs.strict_yaml import MAX_DEPTH, StrictYamlError, read_scalar, read_yaml
from configs.tree import Leaf, Tree, lay, leaves_of, merge, plant, plant_at, values_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

MAX_FILE_BYTES = 1024 * 1024
COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings, and where each value came from.

    ``origins`` maps every dotted name to ``default``, the path of a file, ``environment HOLDFAST_...`` or
    ``command line``.
    """

    settings: TrainSettings
    origins: Mapping[str, str]


def load_settings(files: Sequence[Path], overrides: Sequence[str], environ: Mapping[str, str]) -> Resolved:
    """Return the settings out of YAML ``files`` (later ones win), ``environ`` and ``key.path=value`` overrides.

    Whatever is wrong raises ``ConfigurationError`` naming the key, the layer and what was probably meant.
    """
    layers = [*map(_from_file, files), _from_environment(environ), _from_overrides(overrides)]
    tree: Tree = reduce(lay, map(renamed, layers), {})
    for path, leaf in leaves_of(tree):
        _check_text(path, leaf)
    return _resolve(tree)


def restore_settings(plain: object, origin: str = "run.json") -> TrainSettings:
    """Return the settings that ``configs.rendering.dump_settings`` gave; ``ConfigurationError`` names ``origin``."""
    if not isinstance(plain, dict):
        refuse(f"{origin}: it must hold sections such as 'run', not a {type(plain).__name__}")
    return _resolve(plant(plain, origin)).settings


def _resolve(tree: Tree) -> Resolved:
    values = values_of(tree)
    layers = {path: leaf.origin for path, leaf in leaves_of(tree)}
    origins = Origins(layers)
    # BaseSettings would take keys such as `_env_file` for instructions of its own.
    strangers = [key for key in values if key not in TrainSettings.model_fields]
    known = {key: value for key, value in values.items() if key in TrainSettings.model_fields}
    try:
        settings = TrainSettings.model_validate(known)
    except ValidationError as error:
        errors = error.errors(include_url=False)
    else:
        errors = []
    if strangers:
        refuse(unknown((strangers[0],), origins), len(strangers) + len(errors) - 1)
    if errors:
        refuse(explain(errors[0], origins, values), len(errors) - 1)
    paths = [path for path, _ in leaves(to_plain(settings))]
    return Resolved(settings, MappingProxyType({".".join(path): layers.get(path, "default") for path in paths}))


def _check_text(path: tuple[str, ...], leaf: Leaf) -> None:
    text = json.dumps([*path, leaf.value], ensure_ascii=False)
    if MASK in text:
        refuse(f"{dotted(path)} ({leaf.origin}) has a masked secret: put the secret itself in its place")
    try:
        text.encode()
    except UnicodeEncodeError:
        refuse(f"{dotted(path)} ({leaf.origin}) must be valid Unicode text")


def _from_file(path: Path) -> Tree:
    place = f"--config {path}"
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        refuse(f"{place}: no such file")
    except IsADirectoryError:
        refuse(f"{place}: it is a folder, name a file in it")
    except (OSError, ValueError) as error:
        refuse(f"{place}: it cannot be read ({getattr(error, 'strerror', None) or error})")
    if len(content) > MAX_FILE_BYTES:
        refuse(f"{place}: it is larger than {MAX_FILE_BYTES} bytes, too large for settings")
    try:
        return _parsed_file(content.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError:
        refuse(f"{place}: it is not UTF-8 text")


def _parsed_file(text: str, origin: str) -> Tree:
    try:
        values = read_yaml(text)
    except StrictYamlError as error:
        refuse(f"--config {origin}, line {error.line}: {error}")
    if values is None:
        return {}
    if not isinstance(values, dict):
        refuse(f"--config {origin}: it must hold sections such as 'run:', not a {type(values).__name__}")
    return plant(values, origin)


def _from_environment(environ: Mapping[str, str]) -> Tree:
    prefix = TrainSettings.model_config["env_prefix"]
    delimiter = TrainSettings.model_config["env_nested_delimiter"] or "__"
    tree: Tree = {}
    # Shallow names first, so that HOLDFAST_MODEL__PATH refines HOLDFAST_MODEL.
    for name in sorted(environ, key=lambda name: (name.count(delimiter), name)):
        if name.startswith(prefix):
            path = tuple(name.removeprefix(prefix).lower().split(delimiter))
            tree = merge(tree, _branch(path, environ[name], f"environment {one_line(name, 200)}"))
    return tree


def _from_overrides(overrides: Sequence[str]) -> Tree:
    tree: Tree = {}
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals:
            refuse(f"{one_line(override, 80)} ({COMMAND_LINE}) sets nothing: write section.key=value")
        tree = merge(tree, _branch(tuple(name.strip().split(".")), text, COMMAND_LINE))
    return tree


def _branch(path: tuple[str, ...], text: str, origin: str) -> Tree:
    name = ".".join(path)
    if not all(path) or len(path) > MAX_DEPTH:
        refuse(f"{one_line(name, 80) or 'an empty name'} ({origin}) is not a setting: write section.key=value")
    try:
        value = _parsed(name, text)
    except StrictYamlError as error:
        refuse(f"{dotted(path)} ({origin}) begins like quoted text or a list but is none: {error}")
    return plant_at(path, value, origin)


def _parsed(name: str, text: str) -> Any:
    bare = text.strip()
    is_text = takes_only_text(name)
    if bare.startswith(("'", '"') if is_text else ("'", '"', "[", "{")):
        return read_yaml(bare)
    if is_text:
        return None if takes_null(name) and read_scalar(bare) is None else text
    scalar = read_scalar(bare)
    return text if isinstance(scalar, str) else scalar
