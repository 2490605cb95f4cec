"""Builds the transforms of texts from the settings."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.wiring.data_streams import form_of
from holdfast.bootstrap.wiring.lazy import lazy_attribute
from holdfast.bootstrap.wiring.plugins import load_plugin, make_plugin
from holdfast.bootstrap.wiring.score_functions import with_score_function
from holdfast.configs.sections.data import MixtureDataSettings
from holdfast.configs.sections.sources import RecordSource
from holdfast.configs.sections.validation import TEXT
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.transform import RecordTransform, Transform

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.application.data.record_pipeline import AnyTransform
    from holdfast.configs.sections.data import FeedSettings

TRANSFORMS = (
    *("length", "normalize", "replace", "augment"),
    *("gopher_quality", "gopher_repetition", "c4", "fineweb", "language"),
    *("pii", "secrets", "decontaminate", "score"),
)


def load_transforms(data: FeedSettings) -> Sequence[AnyTransform]:
    """Return the transforms in the settings, in order; raises ``ConfigurationError`` if one cannot be loaded."""
    if data.transforms and form_of(data) == "tokens":
        msg = "data.transforms change text, and data.kind=tokens has no text: leave them out"
        raise ConfigurationError(msg)
    return [_transform(section.kind, section.options) for section in data.transforms]


def fields_read(
    transforms: Sequence[AnyTransform], data: FeedSettings, rules: Mapping[str, int] = MappingProxyType({})
) -> Sequence[str]:
    """Return the names of the fields beside the text that transforms and validation read, each once, sorted.

    The field of the text is among them if it has rules, which then see blank texts; by the first of the ``rules`` for
    blank texts they do not.
    """
    read = [name for transform in transforms if isinstance(transform, RecordTransform) for name in transform.fields]
    validated = set() if data.validation is None else set(data.validation.fields)
    text = text_field_of(data)
    is_judged = (
        text is not None and validated & {TEXT, text} and data.task == "text" and rules.get("blank_texts", 2) > 1
    )
    return sorted({*read, *(validated - {TEXT, text}), *([text] if text is not None and is_judged else [])})


def text_field_of(data: FeedSettings) -> str | None:
    """Return the name of the field that holds the text in all records, None if there is no such field."""
    sources = data.giving.values() if isinstance(data, MixtureDataSettings) else [data]
    names = {source.text_field if isinstance(source, RecordSource) else None for source in sources}
    return names.pop() if len(names) == 1 else None


def _transform(kind: str, options: Mapping[str, Any]) -> AnyTransform:
    built_in = {name: f"holdfast.adapters.transform.{name}:{_class_of(name)}" for name in TRANSFORMS}
    is_built_in = kind in built_in
    options = with_score_function(options) if kind == "score" else options
    new = lazy_attribute(built_in[kind]) if is_built_in else load_plugin("transform", kind, built_in=built_in)
    transform: AnyTransform = make_plugin(
        "transform",
        kind,
        new,
        options,
        is_one=lambda made: isinstance(made, Transform | RecordTransform),
        otherwise=", which is neither a Transform nor a RecordTransform",
    )
    return transform


def _class_of(kind: str) -> str:
    return f"{kind.replace('_', ' ').title().replace(' ', '')}Transform"
