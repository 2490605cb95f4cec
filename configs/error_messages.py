"""Error messages about settings, one sentence for each problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.configs.secret_masking import mask_text
from holdfast.configs.sections.base import nearest_kind
from holdfast.configs.settings import TrainSettings
from holdfast.configs.settings_catalog import built_in_kinds, fields_of, kinds_of, nearest_name, settings_by_name
from holdfast.configs.strict_yaml import write_yaml
from holdfast.configs.synonyms import FIELDS_OF_CONFIG, value_of
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic_core import ErrorDetails

_TEXTS = {
    "bool_type": "must be true or false",
    "dict_type": "must be a mapping",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_type": "must be a whole number",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be one of {expected}",
    "model_attributes_type": "must be a section with settings of its own",
    "model_type": "must be a section with settings of its own",
    "path_type": "must be a path",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must not be empty",
    "string_type": "must be text (in quotes, if it looks like something else)",
    "string_unicode": "must be valid Unicode text",
    "too_long": "must have at most {max_length} values",
    "too_short": "must have at least {min_length} values",
    "tuple_type": "must be a list",
}
Location = tuple[str | int, ...]


class Origins:
    """The layer of each value that was set."""

    def __init__(self, layers: Mapping[tuple[str, ...], str]) -> None:
        self._layers = layers

    def of(self, path: Location) -> str:
        """Return the layer of a value, of the last value below it, or of the nearest value above it."""
        for length in range(len(path), 0, -1):
            below = [layer for leaf, layer in self._layers.items() if leaf[:length] == path[:length]]
            if below:
                return below[-1]
        return "default"


def one_line(text: str, limit: int = 2000) -> str:
    """Return ``text`` as one printable line, without secrets in URLs, cut to ``limit`` characters."""
    text = mask_text(text)
    text = "".join(character if character.isprintable() else repr(character)[1:-1] for character in text[: limit + 1])
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def refuse(problem: str) -> NoReturn:
    """Raise a ``ConfigurationError`` that states one problem; no earlier error is chained to it."""
    raise ConfigurationError(one_line(problem)) from None


def refuse_all(problems: Sequence[str]) -> NoReturn:
    """Raise the ``ConfigurationError`` that states each problem, on a line of its own if there are several."""
    if len(problems) == 1:
        refuse(problems[0])
    lines = [f"{len(problems)} settings are wrong:", *map(one_line, problems)]
    raise ConfigurationError("\n  ".join(lines)) from None


def dotted(path: Location) -> str:
    """Return a path as it is written on the command line, with positions in brackets."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{one_line(key, 80)}" for key in path)
    return text.removeprefix(".")


def unknown(path: Location, origins: Origins, kind: object = None) -> str:
    """Return a sentence that ``path`` is not a setting, with the setting that was probably meant."""
    name, layer, section = dotted(path), origins.of(path), str(path[0])
    owners = [owner for owner in settings_by_name().get(name, {}) if owner in built_in_kinds(section)]
    if kind is not None and kind not in built_in_kinds(section):
        kinds = ", ".join(built_in_kinds(section))
        return (
            f"{name} ({layer}) is not a setting of {section}.kind={one_line(str(kind), 80)}, which is not built in "
            f"({kinds} are): put the arguments of an outside adapter under {section}.options"
        )
    if owners == ["decoder"] and path[1] in FIELDS_OF_CONFIG:
        field = f"model.config.{dotted(path[1:])}"
        return f"{name} ({layer}) belongs to model.kind=decoder, but model.kind is {kind}: set {field}, or both"
    if owners:
        return f"{name} ({layer}) belongs to {section}.kind={owners[0]}, but {section}.kind is {kind}: set both"
    return f"{name} ({layer}) is not a setting; {_hint(path, layer, kind)}"


def _hint(path: Location, layer: str, kind: object) -> str:
    nearest = nearest_name(dotted(path))
    if nearest in path:  # a name with dots as one key of a file
        first, *others = str(nearest).split(".")
        nested = "".join(f"{{{each}: " for each in others)
        return f"write its sections below each other, as {first}: {nested}...{'}' * len(others)}"
    if nearest is None:
        if path[:2] == ("data", "transforms"):
            return f"put the arguments of a transform under {dotted(path[:3])}.options"
        place = f"{dotted(path[:-1])} has" if len(path) > 1 else "there are"
        return f"{place} {', '.join(sorted(_siblings(path, kind)))}"
    if layer.startswith("environment "):
        delimiter = TrainSettings.model_config["env_nested_delimiter"] or "__"
        nearest = f"{TrainSettings.model_config['env_prefix']}{nearest.replace('.', delimiter).upper()}"
    return f"did you mean {nearest}?"


def _siblings(path: Location, kind: object) -> Iterable[str]:
    if len(path) == 1:
        return TrainSettings.model_fields
    if isinstance(path[1], int):
        return fields_of(str(path[0]), kind)
    prefix = f"{dotted(path[:-1])}."
    names = {name: kinds for name, kinds in settings_by_name().items() if name.startswith(prefix)}
    return {name.removeprefix(prefix).split(".")[0] for name, kinds in names.items() if kind is None or kind in kinds}


def explain_all(errors: Iterable[ErrorDetails], origins: Origins, tree: Mapping[str, Any]) -> list[str]:
    """Return pydantic's errors as sentences in terms of the settings, one for each wrong value."""
    places = _by_place(errors, tree)
    misspelt = {
        nearest_name(dotted(path)) for path, at_path in places.items() if at_path[0]["type"] == "extra_forbidden"
    }
    return [
        _explain(path, at_path, origins, tree)
        for path, at_path in places.items()
        if not any(path == other[: len(path)] for other in places if len(other) > len(path))
        and not (at_path[0]["type"] == "missing" and dotted(path) in misspelt)
    ]


def _explain(path: Location, errors: Sequence[ErrorDetails], origins: Origins, tree: Mapping[str, Any]) -> str:
    layer, error = origins.of(path), errors[0]
    context = error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden" if path == ("data", "path") and "kind" not in tree["data"]:
            text = f"is {one_line(str(error['input']), 80)}, which is not here: set data.kind=huggingface if it is the "
            text += "name of a dataset on the hub, or correct the path"
        case "extra_forbidden":
            return unknown(path, origins, _kind(tree, path))
        case "missing" if isinstance(path[-1], int):
            text = "has too few values"
            path = path[:-1]
        case "missing":
            return f"{dotted(path)} is missing: {_owner(path, tree)} ({layer}) needs it"
        case "union_tag_not_found" if len(path) == 1 or isinstance(path[1], int):
            return _bad_kind((*path, "kind"), error["input"], origins)
        case "union_tag_not_found":
            return f"{dotted(path)}.kind is missing: {dotted(path)} ({layer}) needs one"
        case "union_tag_invalid":
            path = (*path, "kind")
            text = f"must be one of {context['expected_tags']}, not {one_line(context['tag'], 80)}".replace("'", "")
        case "value_error":
            text = str(context["error"])
        case known if known in _TEXTS:
            text = _among_types(errors) + _instead_of(error["input"])
            meant = value_of(path, error["input"])
            text += f"; did you mean {meant}?" if meant else ""
        case _:
            text = f"is wrong ({error['msg']})"
    return f"{dotted(path)} ({layer}) {text}"


def _among_types(errors: Sequence[ErrorDetails]) -> str:
    """Return a clause that says which values are valid, for all types that the value may have."""
    literal = next((error for error in errors if error["type"] == "literal_error"), None)
    other = next((error for error in errors if error["type"] != "literal_error"), errors[0])
    text = _TEXTS.get(other["type"], "is wrong").format(**_shown(other.get("ctx", {})))
    if literal is None or literal is other:
        return text
    return f"{text}, or {_shown(literal.get('ctx', {}))['expected']}"


def _owner(path: Location, tree: Mapping[str, Any]) -> str:
    return f"{path[0]}.kind={_kind(tree, path)}" if len(path) == 2 else dotted(path[:-1])


def _shown(context: Mapping[str, Any]) -> dict[str, Any]:
    shown = {"expected": str(context.get("expected", "")).replace("'", "")}
    bounds = {key: bound for key, bound in context.items() if isinstance(bound, int | float)}
    return shown | {key: int(bound) if bound == int(bound) else bound for key, bound in bounds.items()}


def _kind(tree: Mapping[str, Any], path: Location) -> object:
    if not built_in_kinds(str(path[0])):
        return None
    section = tree.get(str(path[0]), {})
    if isinstance(section, list) and len(path) > 1 and isinstance(path[1], int):
        section = section[path[1]]
    return section.get("kind", built_in_kinds(str(path[0]))[0]) if isinstance(section, dict) else section


def _bad_kind(path: Location, section: Any, origins: Origins) -> str:
    kind = section.get("kind") if isinstance(section, dict) else section
    place = f"{dotted(path)} ({origins.of(path)})"
    if not isinstance(kind, str):
        return f"{place} must be text"
    nearest = nearest_kind(kind, built_in_kinds(str(path[0])))
    return f"{place} is {one_line(kind, 80)}, which is not known; did you mean {nearest}?"


def _instead_of(value: Any) -> str:
    shown = "" if value == "" or isinstance(value, dict | list | tuple) else one_line(write_yaml(value), 80)
    return shown and f", not {shown}"


def _spoken(error: ErrorDetails, values: Mapping[str, Any]) -> Location:
    """Return the path of ``error`` in ``values`` without the kinds and types that pydantic puts between the keys."""
    place = error.get("ctx", {}).get("place", error["loc"])  # of several sections, the one that is to blame
    kinds = 2 if len(place) > 1 and isinstance(place[1], int) else 1
    if kinds_of(str(place[0])):
        place = place[:kinds] + place[kinds + 1 :]
    path: list[str | int] = []
    below: Any = values
    for key in place[:-1] if error["type"] == "missing" else place:
        if isinstance(below, Mapping) and key in below:
            below = below[str(key)]
        elif isinstance(key, int):
            below = below[key] if isinstance(below, Sequence) and key < len(below) else None
        elif below is not None and ".".join(map(str, (*path, key))) not in settings_by_name():
            continue
        path.append(key)
    return (*path, place[-1]) if error["type"] == "missing" else tuple(path)


def _by_place(errors: Iterable[ErrorDetails], values: Mapping[str, Any]) -> dict[Location, list[ErrorDetails]]:
    """Return the errors at each path: a value that may have several types has one error for each type."""
    places: dict[Location, list[ErrorDetails]] = {}
    for error in errors:
        places.setdefault(_spoken(error, values), []).append(error)
    return places
