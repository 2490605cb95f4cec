"""Builds the transforms of texts from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.wiring.data_streams import form_of
from holdfast.bootstrap.wiring.lazy import lazy_attribute
from holdfast.bootstrap.wiring.plugins import load_plugin, make_plugin
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.transform import Transform

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.configs.sections.data import FeedSettings

TRANSFORMS = ("length", "normalize", "replace")


def load_transforms(data: FeedSettings) -> Sequence[Transform]:
    """Return the transforms that the settings name, in order; raises ``ConfigurationError`` if they cannot be had."""
    if data.transforms and form_of(data) == "tokens":
        msg = "data.transforms change text, of which data.kind=tokens has none: leave them out"
        raise ConfigurationError(msg)
    return [_transform(section.kind, section.options) for section in data.transforms]


def _transform(kind: str, options: Mapping[str, Any]) -> Transform:
    built_in = {name: f"holdfast.adapters.transform.{name}:{name.title()}Transform" for name in TRANSFORMS}
    is_built_in = kind in built_in
    new = lazy_attribute(built_in[kind]) if is_built_in else load_plugin("transform", kind, built_in=built_in)
    transform: Transform = make_plugin(
        "transform",
        kind,
        new,
        options,
        is_one=lambda made: isinstance(made, Transform),
        otherwise=", which is no Transform",
    )
    return transform
