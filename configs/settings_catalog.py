"""Catalog of all settings: names, kinds, defaults and descriptions."""

from __future__ import annotations

import json
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from holdfast.configs.plain import to_plain
from holdfast.configs.sections.base import PLUGIN, Section
from holdfast.configs.sections.sources import FilesSource, HuggingFaceSource, MixtureSource
from holdfast.configs.settings import TrainSettings, usual_settings
from holdfast.configs.strict_yaml import write_yaml
from holdfast.configs.synonyms import meaning_of
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic.fields import FieldInfo

_ENTRIES: Mapping[str, tuple[type[Section], ...]] = {
    "data.sources": get_args(get_args(MixtureSource)[0]),
    "evaluation.sets": (FilesSource, HuggingFaceSource),
}


class DescribedSetting(NamedTuple):
    """A setting as ``config --describe`` shows it: once for each different default and description.

    ``default`` is in YAML, empty if there is none; ``kinds`` are the kinds that have it, empty if all do.
    """

    name: str
    default: str
    kinds: str
    description: str | None


@cache
def kinds_of(section: str) -> Mapping[str, type[Section]]:
    """Return the models of a section by kind, for plug-ins under ``PLUGIN``; empty if the section has no kinds."""
    field = TrainSettings.model_fields.get(section)
    union = field.annotation if field else None
    if get_origin(union) is tuple:
        union = next(iter(get_args(get_args(union)[0])), None)  # None for sections of one kind
    members = (get_args(member) for member in get_args(union))
    return {tag.tag: model for model, tag in members}


def built_in_kinds(section: str) -> tuple[str, ...]:
    """Return the kinds of a section that need no outside adapter, the default kind first."""
    return tuple(kind for kind in kinds_of(section) if kind != PLUGIN)


def fields_of(section: str, kind: object) -> frozenset[str]:
    """Return the names that a section of ``kind`` has."""
    kinds = kinds_of(section)
    return frozenset(kinds.get(kind if isinstance(kind, str) else PLUGIN, kinds[PLUGIN]).model_fields)


@cache
def settings_by_name() -> Mapping[str, Mapping[str, FieldInfo]]:
    """Return the fields of every setting by dotted name and by kind ("" if the section has no kinds)."""
    names: dict[str, dict[str, FieldInfo]] = {}
    for section, field in TrainSettings.model_fields.items():
        if get_origin(field.annotation) is tuple:
            names[section] = {"": field}
            continue
        models: Mapping[str, Any] = kinds_of(section) or {"": field.annotation}
        for kind, model in models.items():
            for name, leaf in _fields(model, section):
                names.setdefault(name, {})[kind] = leaf
    return names


def _fields(model: Any, prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        section = next((choice for choice in _choices(field.annotation) if _is_section(choice)), None)
        if section is not field.annotation:
            yield f"{prefix}.{name}", field
        if section is not None:
            yield from _fields(section, f"{prefix}.{name}")


def field_of_entry(name: str, kind: str) -> FieldInfo | None:
    """Return the field of a setting below a name of the user's choice, such as ``evaluation.sets.news.format``.

    ``kind`` is the kind of the source or set. None if there is no such setting, and for the kind of a mixture's source,
    which has no default.
    """
    for parent, models in _ENTRIES.items():
        inside = name.removeprefix(f"{parent}.").partition(".")[2]
        if not name.startswith(f"{parent}.") or (inside == "kind" and len(models) > 1):
            continue
        for model in models:
            if model.model_fields["kind"].default == kind:
                return dict(_fields(model, "")).get(f".{inside}")
    return None


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def takes_only_text(name: str) -> bool:
    """Return whether a setting is text (or null) in every kind, so that digits in it stay text."""
    fields = settings_by_name().get(name, {}).values()
    return bool(fields) and all(
        choice in (str, Path, NoneType) or isinstance(choice, str)
        for field in fields
        for choice in _choices(field.annotation)
    )


def takes_null(name: str) -> bool:
    """Return whether a setting may be null."""
    return any(NoneType in _choices(field.annotation) for field in settings_by_name().get(name, {}).values())


def takes_whole_numbers_only(name: str) -> bool | None:
    """Return whether the numbers that a setting takes are whole; None if it takes none, or any value."""
    choices = {choice for field in settings_by_name().get(name, {}).values() for choice in _choices(field.annotation)}
    return None if not choices & {int, float} else float not in choices


def choices_of(name: str) -> Sequence[str]:
    """Return the values that a setting may have if they can be listed, for a section's ``kind`` the built-in ones."""
    section, _, field = name.partition(".")
    choices = dict.fromkeys(built_in_kinds(section) if field == "kind" else ())
    for each in settings_by_name().get(name, {}).values():
        for choice in _choices(each.annotation):
            if choice is bool:
                choices |= {"true": None, "false": None}
            elif choice is NoneType:
                choices |= {"null": None}
            elif isinstance(choice, str):
                choices |= {choice: None}
    return list(choices)


def _choices(annotation: Any) -> list[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _choices(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [choice for member in get_args(annotation) for choice in _choices(member)]
    return list(get_args(annotation)) if origin is Literal else [annotation]


def nearest_name(name: str) -> str | None:
    """Return the setting or section that was probably meant by ``name``, which is neither."""
    name = name[:120].lower()
    if (meant := meaning_of(name, frozenset(TrainSettings.model_fields))) is not None:
        return meant
    known = {name.rsplit(".", cut)[0] for name in settings_by_name() for cut in range(name.count(".") + 1)}
    score, nearest = max((_likeness(name, candidate), candidate) for candidate in sorted(known, reverse=True))
    return nearest if score >= 0.68 else None


def _likeness(name: str, candidate: str) -> float:
    whole = SequenceMatcher(None, name, candidate).ratio()
    parts = zip(name.rpartition("."), candidate.rpartition("."), strict=True)
    section, _, last = (SequenceMatcher(None, ours, theirs).ratio() for ours, theirs in parts)
    # The last word says what is meant; a shared section alone makes `optimizer.lr` look like `optimizer.clip`.
    return max(0.3 * section + 0.7 * last, whole if whole >= 0.9 else 0.0)


def describe_settings(wanted: Sequence[str] = ()) -> str:
    """Return a line for each setting: name, default, the kinds that have it unless all do, and description.

    ``wanted`` names the sections and settings to describe; if it is empty, all are described. Raises
    ``ConfigurationError`` for an unknown name.
    """
    return "\n".join(
        f"{name}{default and f' = {default}'}{kinds and f' ({kinds})'}: {description}"
        for name, default, kinds, description in described_settings(wanted)
    )


def described_settings(wanted: Sequence[str] = ()) -> Sequence[DescribedSetting]:
    """Return the settings that ``describe_settings`` describes; raises as it does."""
    names = settings_by_name()
    for prefix in wanted:
        if not any(_is_below(name, prefix) for name in names):
            nearest = nearest_name(prefix)
            hint = (
                f"did you mean {nearest}?" if nearest else f"there are {', '.join(sorted(TrainSettings.model_fields))}"
            )
            msg = f"{prefix[:80]!r} is not a setting or a section; {hint}"
            raise ConfigurationError(msg)
    chosen = [name for name in names if not wanted or any(_is_below(name, prefix) for prefix in wanted)]
    return [described for name in chosen for described in _described(name, names[name])]


def _is_below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def _described(name: str, fields: Mapping[str, FieldInfo]) -> Iterator[DescribedSetting]:
    section = name.partition(".")[0]
    groups: dict[tuple[str, str | None], list[str]] = {}
    for kind, field in fields.items():
        groups.setdefault((_default(name, kind, field), field.description), []).append(kind)
    for (default, description), kinds in groups.items():
        yield DescribedSetting(name, default, _whose(section, name, kinds), description)


def _whose(section: str, name: str, kinds: list[str]) -> str:
    built_in = [kind for kind in kinds if kind != PLUGIN]
    if name == f"{section}.kind" or kinds == [""] or len(built_in) == len(built_in_kinds(section)):
        return ""
    return f"kind {', '.join(built_in)}" if built_in else "outside adapters"


def _default(name: str, kind: str, field: FieldInfo) -> str:
    if kind in ("", *built_in_kinds(name.partition(".")[0])[:1]):
        value = to_plain(usual_settings("files"))
        for key in name.split("."):
            if value is None:  # a section that is not set
                break
            value = value[key]
        else:
            return write_yaml(value)
    if field.is_required():
        return ""
    return write_yaml(to_plain(field.get_default(call_default_factory=True)))


_BY_NAME = ("DedupSettings", "TransformSettings")  # sections that may be written as their kind alone
_REFERENCE = "#/$defs/"


def schema_text() -> str:
    """Return the schema as text, the content of ``settings.schema.json`` in this package."""
    return json.dumps(settings_schema(), indent=1, ensure_ascii=False)


def settings_schema() -> dict[str, Any]:
    """Return the schema, in the form of JSON Schema 2020-12.

    A file is one layer of settings, so no setting is required. Rules between settings are not part of the schema: they
    are checked when the layers are joined.
    """
    schema = TrainSettings.model_json_schema(mode="validation")
    definitions = schema["$defs"]
    for node in _objects(schema):
        _loosen(node, definitions)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Settings of Holdfast"}


def _objects(node: Any) -> Iterator[dict[str, Any]]:
    """Yield each object of the schema, the inner ones first."""
    if isinstance(node, dict):
        for child in list(node.values()):
            yield from _objects(child)
        yield node
    elif isinstance(node, list):
        for child in node:
            yield from _objects(child)


def _loosen(node: dict[str, Any], definitions: Mapping[str, Any]) -> None:
    """Change ``node`` from a schema of complete settings into one of a layer."""
    if isinstance(node.get("title"), str):
        del node["title"]
    if "properties" in node and node.get("required") != ["kind"]:  # the kind of a plug-in tells it from the others
        node.pop("required", None)
    if "oneOf" in node:  # a section without its kind may belong to several
        node["anyOf"] = _members(node.pop("oneOf"), definitions)
    if node.get("$ref", "").removeprefix(_REFERENCE) in _BY_NAME:
        node["anyOf"] = [{"$ref": node.pop("$ref")}, {"type": "string"}]


def _members(members: list[dict[str, Any]], definitions: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the members of a section with a kind; that of plug-ins takes no kind of the others."""
    kinds = {member["$ref"]: _kind(member, definitions) for member in members}
    built_in = [kind for kind in kinds.values() if kind is not None]
    plug_in = {"properties": {"kind": {"not": {"enum": built_in}}}, "required": ["kind"]}
    return [{"allOf": [member, plug_in]} if kinds[member["$ref"]] is None else member for member in members]


def _kind(member: dict[str, Any], definitions: Mapping[str, Any]) -> str | None:
    kind: str | None = definitions[member["$ref"].removeprefix(_REFERENCE)]["properties"]["kind"].get("const")
    return kind
