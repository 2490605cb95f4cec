"""The JSON Schema of a YAML file with settings, by which editors complete and check it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from holdfast.configs.settings import TrainSettings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
