"""Reads the settings from their layers: defaults, files, environment, command line; later layers win."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from holdfast.configs.aliases import renamed, with_current_names
from holdfast.configs.error_messages import Origins, dotted, explain_all, one_line, refuse, refuse_all, unknown
from holdfast.configs.plain import leaves, to_plain
from holdfast.configs.ready_configurations import FORMER_HOLDOUT, find_file, meant_file, shown_name
from holdfast.configs.run_names import names_itself, run_name
from holdfast.configs.secret_masking import MASK
from holdfast.configs.sections.tokenizer import FORMER_VALUES
from holdfast.configs.settings import TrainSettings
from holdfast.configs.settings_catalog import built_in_kinds, fields_of, settings_by_name, takes_null, takes_only_text
from holdfast.configs.settings_tree import (
    Leaf,
    Tree,
    lay,
    leaves_of,
    merge,
    plant,
    plant_at,
    replaced_config,
    values_of,
)
from holdfast.configs.strict_yaml import MAX_DEPTH, StrictYamlError, read_scalar, read_yaml
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.size_rules import (
    TOKENS_PER_PARAMETER,
    LlamaShape,
    best_batch_tokens,
    best_learning_rate,
    rows_of_batch,
    training_flops,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")

MAX_FILE_BYTES = 1024 * 1024
COMMAND_LINE = "command line"
PREFIX = TrainSettings.model_config["env_prefix"]
DELIMITER = TrainSettings.model_config["env_nested_delimiter"] or "__"
_OTHER_SECTIONS = ("training", "pipeline", "optimization")  # of holdfast.configs.aliases


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings and the origin of each value.

    ``origins`` maps every dotted name to ``default``, the path of a file, ``environment HOLDFAST_...`` or
    ``command line``. ``notes`` are sentences on former names of settings, and on sections
    that a higher layer replaced as a whole.
    """

    settings: TrainSettings
    origins: Mapping[str, str]
    notes: Sequence[str] = ()

    @property
    def chosen_origins(self) -> Mapping[str, str]:
        """Return the origins of the settings that are not defaults."""
        return {name: origin for name, origin in self.origins.items() if origin != "default"}


def load_settings(
    files: Sequence[str | Path],
    overrides: Sequence[str],
    environ: Mapping[str, str],
    *,
    chosen: Sequence[str] = (),
    chosen_by: str = "",
) -> Resolved:
    """Return the settings from YAML ``files`` (later files win), ``environ`` and ``key.path=value`` overrides.

    ``chosen`` are further overrides, above all others, of which ``chosen_by`` is the origin. Raises one
    ``ConfigurationError`` for all problems, each with its key, its layer and the probable correction.
    """
    problems: list[str] = []
    texts = [*filter(None, (_attempt(problems, _from_file, Path(file)) for file in files))]
    if problems:  # what a file would have said decides what else is wrong
        refuse_all(problems)
    layers = [*texts, _from_environment(environ, problems), _from_overrides(overrides, problems)]
    layers += [_from_overrides(chosen, problems, chosen_by)] if chosen else []
    tree, notes = Tree(), list[str]()
    current = [renamed(layer, problems, notes) for layer in layers]
    for layer in current:
        higher = infer_kinds(layer, tree)
        notes += filter(None, [replaced_config(tree, higher)])
        tree = lay(tree, higher)
    tree = infer_kinds(tree)
    tree = lay(_attempt(problems, settings_of_size, tree) or {}, tree)
    for path, leaf in leaves_of(tree):
        _attempt(problems, _check_text, path, leaf)
    return replace(_resolve(tree, problems), notes=notes)


def _attempt(problems: list[str], step: Callable[..., T], *arguments: Any) -> T | None:
    try:
        return step(*arguments)
    except ConfigurationError as error:
        problems.append(str(error))
        return None


def restore_settings(plain: object, origin: str = "run.json") -> TrainSettings:
    """Return the settings from the result of ``dump_settings``, also of an earlier version.

    Raises ``ConfigurationError`` that names ``origin``.
    """
    if not isinstance(plain, dict):
        refuse(f"{origin}: it must hold sections such as 'run', not a {type(plain).__name__}")
    current = with_current_names(plain)
    tokenizer = current.get("tokenizer")
    if isinstance(tokenizer, dict) and tokenizer.get("kind") in ("huggingface", "train"):
        current["tokenizer"] = {**FORMER_VALUES, **tokenizer}
    data = current.get("data")
    if isinstance(data, dict) and data.get("kind") == "python_library":
        current["data"] = {**FORMER_HOLDOUT, **data}
    return _resolve(plant(current, origin)).settings


def _resolve(tree: Tree, problems: Sequence[str] = ()) -> Resolved:
    values = values_of(tree)
    layers = {path: leaf.origin for path, leaf in leaves_of(tree)}
    origins = Origins(layers)
    # BaseSettings would take keys such as `_env_file` for instructions of its own.
    strangers = [key for key in values if key not in TrainSettings.model_fields]
    known = {key: value for key, value in values.items() if key in TrainSettings.model_fields}
    sentences = [*problems, *(unknown((stranger,), origins) for stranger in strangers)]
    try:
        settings = TrainSettings.model_validate(known)
    except ValidationError as error:
        sentences += explain_all(error.errors(include_url=False), origins, values)
    if sentences:
        refuse_all(sentences)
    if getattr(settings.tokenizer, "follows_model", False):
        followed = f"that of model.path ({origins.of(('model', 'path'))})"
        layers |= {("tokenizer", name): followed for name in ("kind", "path", "revision")}
    if settings.optimizer.batch_size is None and ("optimizer", "batch_size") not in layers:
        layers[("optimizer", "batch_size")] = (
            f"from optimizer.batch_tokens ({origins.of(('optimizer', 'batch_tokens'))})"
        )
    if ("run", "name") not in layers and names_itself(settings):
        name = run_name(settings, restore_settings)
        settings = settings.model_copy(update={"run": settings.run.model_copy(update={"name": name})})
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
        with find_file(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        listed = "those that come with this package are listed by config --list"
        refuse(f"{place}: no such file; {listed}{meant_file(path)}")
    except IsADirectoryError:
        refuse(f"{place}: it is a folder, name a file in it")
    except (OSError, ValueError) as error:
        refuse(f"{place}: it cannot be read ({getattr(error, 'strerror', None) or error})")
    if len(content) > MAX_FILE_BYTES:
        refuse(f"{place}: it is larger than {MAX_FILE_BYTES} bytes, too large for settings")
    try:
        return _parsed_file(content.decode("utf-8-sig"), shown_name(path))
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


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> Tree:
    tree: Tree = {}
    for name, path in _variables_of(environ):
        branch = _attempt(problems, _branch, path, environ[name], f"environment {one_line(name, 200)}")
        tree = merge(tree, branch or {})
    return tree


def _from_overrides(overrides: Sequence[str], problems: list[str], origin: str = COMMAND_LINE) -> Tree:
    tree: Tree = {}
    for override in overrides:
        tree = merge(tree, _attempt(problems, _from_override, override, origin) or {})
    return tree


def _from_override(override: str, origin: str) -> Tree:
    name, equals, text = override.partition("=")
    if not equals:
        wanted = f"{name}=VALUE" if name in settings_by_name() else "section.key=value"
        refuse(f"{one_line(override, 80)} ({origin}) sets nothing: write {wanted}")
    return _branch(tuple(name.strip().split(".")), text, origin)


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


def _variables_of(environ: Mapping[str, str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the names that have the form of a setting, each with its path.

    The form is ``HOLDFAST_SECTION__KEY``, or ``HOLDFAST_SECTION`` for a whole section. A name without ``__`` also
    counts if it is probably a misspelling of such a name; other names, such as ``HOLDFAST_KEY`` with a key for
    encryption, do not set settings.
    """
    # Shallow names first, so that HOLDFAST_MODEL__PATH refines HOLDFAST_MODEL.
    names = sorted(environ, key=lambda name: (name.count(DELIMITER), name))
    pairs = ((name, name.removeprefix(PREFIX).lower()) for name in names if name.startswith(PREFIX))
    return [(name, tuple(rest.split(DELIMITER))) for name, rest in pairs if _is_setting(rest)]


def _is_setting(rest: str) -> bool:
    if DELIMITER in rest:
        return True
    slips = {name.replace(".", "_") for name in settings_by_name()}
    return rest in slips or bool(
        get_close_matches(rest, [*TrainSettings.model_fields, *_OTHER_SECTIONS], n=1, cutoff=0.8)
    )


_BY_LOOK = ""
# the fields that imply a kind; the first one that is set counts
_TELLING: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "data": (
            *(("sources", "mixture"), ("stages", "mixture"), ("dtype", "tokens"), ("column", "tokens")),
            *(("split", "huggingface"), ("revision", "huggingface"), ("name", "huggingface")),
            *(("format", "files"), ("compression", "files"), ("path", _BY_LOOK)),
        ),
        "tokenizer": (("path", "huggingface"),),
        "ledger": (("dsn", "postgres"),),
        "optimizer": (("stage", "deepspeed"), ("offload_parameters", "deepspeed"), ("config", "deepspeed")),
    }
)
_TOKENS = (".npy", ".bin")
_SAVED_DATASET = ("dataset_info.json", "dataset_dict.json", "state.json")
_NAME_ON_THE_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def infer_kinds(tree: Tree, lower: Tree | None = None) -> Tree:
    """Return ``tree`` with a kind for each section without one, if a field of the section belongs to one kind only.

    If there is a ``lower`` layer, this happens only if the kind chosen in it does not have that field.
    """
    inferred = dict(tree)
    for section, telling in _TELLING.items():
        node, below = tree.get(section), {} if lower is None else lower.get(section)
        if isinstance(node, dict) and (lower is None or (isinstance(below, dict) and _cannot_be(section, below, node))):
            inferred[section] = _with_kind(section, node, telling)
    data = inferred.get("data")
    if lower is None and isinstance(data, dict) and isinstance(sources := data.get("sources"), dict):
        parts = {name: _part(name, part) for name, part in sources.items()}
        inferred["data"] = {**data, "sources": parts}
    return inferred


def _cannot_be(section: str, lower: Tree, higher: Tree) -> bool:
    kind = lower.get("kind")
    if not isinstance(kind, Leaf) or kind.value not in built_in_kinds(section):
        return False
    telling = {field for field, _ in _TELLING[section] if field in higher}
    return bool(telling) and not telling & fields_of(section, kind.value)


def _part(name: str, part: Tree | Leaf) -> Tree | Leaf:
    return _with_kind(f"data.sources.{name}", part, _TELLING["data"][2:]) if isinstance(part, dict) else part


def _with_kind(place: str, section: Tree, telling: tuple[tuple[str, str], ...]) -> Tree:
    field, kind = next(((field, kind) for field, kind in telling if _is_set(section.get(field))), (None, None))
    if "kind" in section or field is None:
        return section
    node = section[field]
    origin = node.origin if isinstance(node, Leaf) else [*leaves_of(node)][-1][1].origin
    if kind == _BY_LOOK:
        kind = _look(node.value) if isinstance(node, Leaf) else None
    if kind is None:
        return section
    return {"kind": Leaf(kind, f"inferred from {place}.{field} ({origin})", is_inferred=True), **section}


def _is_set(node: Tree | Leaf | None) -> bool:
    return node.value is not None if isinstance(node, Leaf) else bool(node)


def _look(value: Any) -> str | None:
    """Return the kind of data at a path; None if the name may be a dataset on the hub or a missing folder."""
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list) or not all(isinstance(path, str) and path for path in paths):
        return "files"
    if all(path.endswith(_TOKENS) for path in paths):
        return "tokens"
    if len(paths) != 1 or "\0" in paths[0]:
        return "files"
    place = Path(os.path.expanduser(paths[0]))  # noqa: PTH111  that of Path raises for an unknown user
    if any((place / name).is_file() for name in _SAVED_DATASET):
        return "huggingface"
    is_named = _NAME_ON_THE_HUB.fullmatch(paths[0]) and not place.suffix
    return None if is_named and not place.exists() else "files"


_WARMUP_SHARE = 100  # of the steps of the training: one for the warm-up
SIZES: Mapping[str, tuple[LlamaShape, int]] = MappingProxyType(
    {
        "10M": (LlamaShape(256, 704, 10, 4, 4, 8192, tie_word_embeddings=True), 512),
        "124M": (LlamaShape(768, 2048, 12, 12, 12, 50304, tie_word_embeddings=True), 1024),
        "350M": (LlamaShape(1024, 2736, 24, 16, 16, 50304, tie_word_embeddings=True), 1024),
        "1B": (LlamaShape(2048, 8192, 16, 32, 8, 65536, tie_word_embeddings=True), 2048),
        "3B": (LlamaShape(3072, 8192, 28, 24, 8, 65536, tie_word_embeddings=True), 2048),
        "8B": (LlamaShape(4096, 14336, 32, 32, 8, 128256, tie_word_embeddings=False), 4096),
    }
)
"""The shape and the length of a row of each size.

124M and 350M have the width, depth and heads of GPT-2 small and medium, 1B and 3B those of Llama 3.2, and 8B those of
Llama 3 (arXiv 2407.21783). 10M has the width of the smallest models of TinyStories (arXiv 2305.07759).
"""


def settings_of_size(tree: Tree) -> Tree:
    """Return the settings that the ``model.size`` of ``tree`` stands for, a layer below all others; empty without one.

    Settings of ``tree`` that take the place of one of them leave it out: a budget of the user, or epochs of the data,
    replace the budget of the size. Raises ``ConfigurationError`` if the model has another shape already. An unknown
    size is left to validation.
    """
    leaf = _leaf(tree, "model", "size")
    if leaf is None or leaf.value not in SIZES:
        return {}
    _check_is_free(tree, leaf)
    shape, length = SIZES[leaf.value]
    chosen = _leaf(tree, "data", "sequence_length")
    length = chosen.value if chosen is not None and type(chosen.value) is int and chosen.value > 0 else length
    return plant(_settings(tree, shape, length), f"model.size={leaf.value} ({leaf.origin})")


def _settings(tree: Tree, shape: LlamaShape, length: int) -> dict[str, Any]:
    tokens = TOKENS_PER_PARAMETER * shape.parameters
    flops = training_flops(shape, tokens, length)
    settings: dict[str, Any] = {
        "model": {
            "config": {
                "hidden_size": shape.hidden_size,
                "intermediate_size": shape.intermediate_size,
                "num_hidden_layers": shape.num_hidden_layers,
                "num_attention_heads": shape.num_attention_heads,
                "num_key_value_heads": shape.num_key_value_heads,
                "tie_word_embeddings": shape.tie_word_embeddings,
                "max_position_embeddings": max(2048, length),
            }
        },
        "data": {"sequence_length": length},
        "optimizer": {"learning_rate": best_learning_rate(flops)},
    }
    rows, others = rows_of_batch(best_batch_tokens(flops), length), _section(tree, "optimizer").keys()
    if not {"batch_size", "batch_tokens"} & others:
        settings["optimizer"]["batch_size"] = rows
        if "schedule" not in others:
            settings["optimizer"]["schedule"] = {"warmup_steps": tokens // (rows * length) // _WARMUP_SHARE}
    epochs = _leaf(tree, "data", "epochs")
    if "budget" not in _section(tree, "run") and (epochs is None or epochs.value is None):
        settings["run"] = {"budget": {"steps": None, "tokens": int(float(f"{tokens:.2g}"))}}
    if not {"kind", "path"} & _section(tree, "tokenizer").keys():
        settings["tokenizer"] = {"vocabulary_size": shape.vocabulary}
    return settings


def _check_is_free(tree: Tree, size: Leaf) -> None:
    for path, leaf in leaves_of({"model": _section(tree, "model")}):
        is_other = path == ("model", "path") or (path == ("model", "config", "model_type") and leaf.value != "llama")
        if is_other and leaf.value is not None:
            refuse(
                f"model.size ({size.origin}) is that of a new Llama, but {'.'.join(path)} ({leaf.origin}) chooses "
                "another model: keep one of them"
            )


def _section(tree: Tree, name: str) -> Tree:
    node = tree.get(name)
    return node if isinstance(node, dict) else {}


def _leaf(tree: Tree, section: str, key: str) -> Leaf | None:
    node = _section(tree, section).get(key)
    return node if isinstance(node, Leaf) else None
