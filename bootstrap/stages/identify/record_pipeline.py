"""Builds the validation of records from the settings."""

from __future__ import annotations

from functools import partial
from importlib.metadata import entry_points
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.adapters.transform.field_rules import FieldRule, FieldRules
from holdfast.adapters.transform.outlier_measures import fit_outliers
from holdfast.adapters.transform.validation import OutlierBounds, ValidationTransform
from holdfast.application.data.record_pipeline import FieldWatch, RecordPipeline
from holdfast.application.data.rejected_records import RejectionLimit
from holdfast.bootstrap.adapter_choice.lazy import lazy_attribute
from holdfast.bootstrap.adapter_choice.plugins import load_plugin, make_plugin
from holdfast.configs.sections.data import MixtureDataSettings
from holdfast.configs.sections.sources import RecordSource
from holdfast.configs.sections.validation import TEXT
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.ports.data_source import Document
from holdfast.ports.transform import RecordTransform, Transform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from holdfast.adapters.transform.outlier_measures import Bounds
    from holdfast.application.data.record_pipeline import AnyTransform
    from holdfast.configs.sections.data import FeedSettings
    from holdfast.configs.sections.validation import FieldValidationSettings, OutlierSettings, ValidationSettings
    from holdfast.ports.data_source import DataSource, Unit
    from holdfast.ports.tokenizer import Tokenizer

_SAMPLED_UNITS = 64
_SAMPLED_DOCUMENTS = 4096


def build_validation(
    data: FeedSettings,
    sample: Callable[[], Sequence[str]],
    tokenizer: Tokenizer | None,
    bounds: Mapping[str, Bounds] | None = None,
    *,
    judges_blank: bool = False,
) -> ValidationTransform | None:
    """Return the validation in the settings, None if there is none.

    Without a ``tokenizer`` the bytes per token are not checked. With ``judges_blank`` the rules for the text see
    records whose text is empty or white space alone.

    ``sample`` returns texts of the data and is called only if bounds are computed from it. ``bounds`` are those of an
    earlier start, lower and upper by measure (None for no bound), and are used in place of a sample. Raises
    ``ConfigurationError`` if the data are tokens, or if two sections of rules concern the text; raises ``DataError``
    if the sample has fewer than 20 texts.
    """
    settings = data.validation
    if settings is None:
        return None
    if data.are_tokens:
        msg = "data.validation checks records, and data.kind=tokens has no records: leave it out"
        raise ConfigurationError(msg)
    measures = {
        name: how
        for name, how in settings.outliers.measures.items()
        if tokenizer is not None or name != "bytes_per_token"
    }
    return ValidationTransform(
        [_field_rules(name, rules, settings) for name, rules in settings.fields.items()],
        _outlier_bounds(measures, settings, sample, tokenizer, bounds or {}),
        text_field=_name_of_text(data, settings),
        judges_blank=judges_blank,
        count_tokens=partial(_count_tokens, tokenizer),
        tokenizer=tokenizer.fingerprint() if tokenizer is not None and "bytes_per_token" in measures else "",
    )


def build_pipeline(
    transforms: Sequence[AnyTransform],
    data: FeedSettings,
    sample: Callable[[], Sequence[str]],
    tokenizer: Tokenizer | None,
    fields: Sequence[str],
    report: Callable[[str], object] = lambda _: None,
) -> RecordPipeline:
    """Return the pipeline of validation and ``transforms``; arguments as in ``build_validation``.

    ``fields`` are read from the source, with the name of the text if its rules are to see blank texts. ``report`` is
    told which fields with rules no record has.
    """
    validation = build_validation(data, sample, tokenizer, judges_blank=text_field_of(data) in fields)
    watch = None if validation is None else FieldWatch(validation.fields, report)
    return RecordPipeline(transforms, validation, watch=watch)


def build_rejection_limit(data: FeedSettings) -> RejectionLimit | None:
    """Return the limit on rejected records in the settings, None if there is none."""
    if data.validation is None or data.validation.max_rejected is None:
        return None
    return RejectionLimit(data.validation.max_rejected)


def _name_of_text(data: FeedSettings, settings: ValidationSettings) -> str:
    name = data.text_field if isinstance(data, RecordSource) else TEXT
    if name == TEXT or name not in settings.fields:
        return TEXT
    if TEXT in settings.fields:
        msg = (
            f"data.validation.fields has rules for {TEXT!r} and for {name!r}, and both are the text of the document "
            f"(data.text_field={name}): keep one of them"
        )
        raise ConfigurationError(msg)
    return name


def _field_rules(name: str, settings: FieldValidationSettings, validation: ValidationSettings) -> FieldRules:
    chosen = settings.on_violation
    otherwise = chosen if isinstance(chosen, str) else validation.on_violation
    actions: Mapping[Any, Any] = chosen if isinstance(chosen, dict) else {}
    rules = [FieldRule(rule, operand, actions.get(rule, otherwise)) for rule, operand in settings.rules.items()]
    missing = settings.missing or (otherwise if settings.required else "allow")
    if missing != "allow":
        rules.append(FieldRule("missing", None, missing))
    return FieldRules(name, tuple(rules), settings.nullable, settings.from_text)


def _outlier_bounds(
    measures: Mapping[str, OutlierSettings],
    settings: ValidationSettings,
    sample: Callable[[], Sequence[str]],
    tokenizer: Tokenizer | None,
    known: Mapping[str, Bounds],
) -> list[OutlierBounds]:
    options = {
        name: how.model_dump(exclude_none=True, exclude={"on_violation"})
        for name, how in measures.items()
        if name not in known
    }
    texts = sample() if any("zscore" in how or "quantiles" in how for how in options.values()) else ()
    bounds = {**known, **fit_outliers(texts, options, partial(_count_tokens, tokenizer))}
    return [
        OutlierBounds(name, *bounds[name], how.on_violation or settings.on_violation) for name, how in measures.items()
    ]


def sample_texts(source: DataSource) -> list[str]:
    """Return the first texts of up to 64 units of ``source``, which lie evenly among all of its units.

    Raises ``DataError`` with the reason of the first record that cannot be used if no other record is found.
    """
    units = source.units()
    numbers = {place * len(units) // _SAMPLED_UNITS for place in range(_SAMPLED_UNITS)}
    chosen = [units[number] for number in sorted(numbers)]
    texts: list[str] = []
    reason = ""

    def usable(unit: Unit) -> Iterator[str]:
        nonlocal reason
        for item in source.read(unit):
            if isinstance(item, Document):
                if item.text:
                    yield item.text
            else:
                reason = reason or item.reason

    for unit in chosen:
        texts += islice(usable(unit), _SAMPLED_DOCUMENTS // len(chosen) + 1)
    if reason and not texts:
        raise DataError(reason)
    return texts


def _count_tokens(tokenizer: Tokenizer | None, texts: Sequence[str]) -> NDArray[np.int64]:
    assert tokenizer is not None, "only bytes per token are measured with it"
    return np.diff(tokenizer.encode(texts).offsets)


TRANSFORMS = (
    *("length", "normalize", "replace", "augment"),
    *("gopher_quality", "gopher_repetition", "c4", "fineweb", "language"),
    *("pii", "secrets", "decontaminate", "score"),
)


def load_transforms(data: FeedSettings) -> Sequence[AnyTransform]:
    """Return the transforms in the settings, in order; raises ``ConfigurationError`` if one cannot be loaded."""
    if data.transforms and data.are_tokens:
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


def with_score_function(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``ScoreTransform`` for the ``options`` of a transform ``score`` in the settings.

    The option ``function`` names an entry point of the group ``holdfast.score``, which is loaded. Its fingerprint is
    the entry point with the name and the version of its package. Raises ``ConfigurationError`` if the option is
    missing, if there is no such entry point, or if it is not callable, and ``PluginFailed`` if its import fails.
    """
    name = options.get("function")
    if not isinstance(name, str):
        msg = f"transform 'score' needs function, the name of an entry point of the group holdfast.score, not {name!r}"
        raise ConfigurationError(msg)
    if "function_fingerprint" in options:
        msg = "transform 'score' has no option function_fingerprint: it is that of the package that holds the function"
        raise ConfigurationError(msg)
    function = load_plugin("score", name)
    if not callable(function):
        msg = f"the entry point '{name}' of holdfast.score gives a {type(function).__name__}, which is no function"
        raise ConfigurationError(msg)
    return {**options, "function": function, "function_fingerprint": _fingerprint_of(name)}


def _fingerprint_of(name: str) -> str:
    [point, *_] = entry_points(group="holdfast.score", name=name)
    package = "no package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
    return f"{point.value} of {package}"
