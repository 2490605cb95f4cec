"""The validation section: rules for the fields of each record, and bounds that tell outliers."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, ValidationInfo, field_validator, model_validator

from holdfast.configs.sections.base import Flag, Natural, Number, Section, Text

Action = Literal["reject", "warn", "stop"]
FieldType = Literal["text", "number", "integer", "boolean", "list", "object"]
RuleName = Literal["type", "one_of", "min", "max", "min_length", "max_length", "pattern"]

TEXT = "text"

_RULES: tuple[RuleName, ...] = get_args(RuleName)

_ACTIONS = (
    "reject leaves the record out and writes it to rejected.jsonl, warn uses the record and counts it, stop ends the "
    "run with exit code 3"
)
_TYPES_OF: dict[str, tuple[str, ...]] = {
    "from_text": ("number", "integer", "boolean"),
    "min": ("number", "integer"),
    "max": ("number", "integer"),
    "min_length": ("text", "list", "object"),
    "max_length": ("text", "list", "object"),
    "pattern": ("text",),
}


class FieldValidationSettings(Section):
    """The rules for one field of a record; rules that are not given accept every value."""

    type: FieldType | None = Field(
        default=None,
        description="Type of the value. null infers number from min and max, text from pattern, min_length and "
        "max_length, and otherwise accepts every type. A number is finite; an integer may be written as 3.0.",
    )
    required: Flag = Field(
        default=False, description="Whether a record whose field is absent or null violates the rule missing."
    )
    missing: Literal["allow", "reject", "warn", "stop"] | None = Field(
        default=None,
        description="Treatment of a record whose field is absent or null; null means on_violation for a required "
        "field and allow for any other.",
    )
    nullable: Flag = Field(
        default=False, description="Whether null is a valid value; otherwise null counts as a missing field."
    )
    from_text: Flag = Field(
        default=False,
        description="Whether a text that spells a number, an integer or true/false counts as this value, as in CSV "
        "files; blank text then counts as a missing field.",
    )
    one_of: Annotated[tuple[Any, ...], Field(min_length=1)] | None = Field(
        default=None, description="The allowed values: a list of texts, numbers or true/false; null allows all."
    )
    min: Number | None = Field(default=None, description="The smallest allowed number; null sets no bound.")
    max: Number | None = Field(default=None, description="The largest allowed number; null sets no bound.")
    min_length: Natural | None = Field(
        default=None,
        description="The least characters of a text, items of a list or members of an object; null sets no bound.",
    )
    max_length: Natural | None = Field(
        default=None,
        description="The most characters of a text, items of a list or members of an object; null sets no bound.",
    )
    pattern: Text | None = Field(
        default=None,
        description="Regular expression of Python that is found in the text; ^ and $ anchor it; null allows all texts.",
    )
    unique: Flag = Field(
        default=False,
        description="Whether no two records may have the same value; prepare checks it when it removes duplicates.",
    )
    on_violation: Action | dict[RuleName, Action] | None = Field(
        default=None,
        description=f"Treatment of a record that violates a rule: {_ACTIONS}. A mapping of rules to treatments sets "
        "some of them; null means data.validation.on_violation.",
    )

    @field_validator("missing")
    @classmethod
    def _agrees_with_required(cls, missing: str | None, info: ValidationInfo) -> str | None:
        if missing == "allow" and info.data.get("required"):
            msg = "is allow, but the field is required: leave required or missing out"
            raise ValueError(msg)
        return missing

    @field_validator("one_of")
    @classmethod
    def _are_values(cls, values: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        for value in values or ():
            if _type_of(value) is None:
                msg = f"must list texts, numbers or true/false, not {value!r}"
                raise ValueError(msg)
        return values

    @field_validator("max", "max_length")
    @classmethod
    def _is_not_below(cls, most: float | None, info: ValidationInfo) -> float | None:
        name = str(info.field_name).replace("max", "min")
        least = info.data.get(name)
        if most is not None and least is not None and most < least:
            msg = f"must be at least {name}, which is {least:g}, not {most:g}"
            raise ValueError(msg)
        return most

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except (re.error, OverflowError, RecursionError, ValueError) as error:
            msg = f"is not a regular expression that Python accepts: {error} in {pattern!r}"
            raise ValueError(msg) from error
        return pattern

    @model_validator(mode="before")
    @classmethod
    def _names_rules(cls, rules: Any) -> Any:
        for name in rules if isinstance(rules, dict) else ():
            if name not in cls.model_fields:
                nearest = get_close_matches(str(name)[:80], cls.model_fields, n=1)
                hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(sorted(cls.model_fields))}"
                msg = f"has {str(name)[:80]!r}, which is no rule for a field; {hint}"
                raise ValueError(msg)
        return rules

    @model_validator(mode="after")
    def _rules_fit_the_type(self) -> Self:
        kind = self.kind or "null"
        because = "" if self.type or kind == "null" else ", as other rules imply"
        for name, kinds in _TYPES_OF.items():
            rule = getattr(self, name)
            if rule is not None and rule is not False and kind not in kinds:
                msg = f"has {name}, but the type is {kind}{because}: {name} needs {' or '.join(kinds)}"
                raise ValueError(msg)
        for value in self.one_of or ():
            actual = _type_of(value)
            if kind not in ("null", actual) and (actual, kind) != ("integer", "number"):
                msg = f"has {value!r} in one_of, but the type is {kind}{because}: list values of this type"
                raise ValueError(msg)
        for name in self.on_violation if isinstance(self.on_violation, dict) else ():
            if name not in self.rules:
                msg = f"has on_violation.{name}, but no rule {name}: add the rule or leave its treatment out"
                raise ValueError(msg)
        return self

    @property
    def kind(self) -> FieldType | None:
        """Return the type of the value, given or inferred; None means any type."""
        if self.type is not None:
            return self.type
        if self.min is not None or self.max is not None:
            return "number"
        has_text_rule = any(rule is not None for rule in (self.pattern, self.min_length, self.max_length))
        return "text" if has_text_rule else None

    @property
    def rules(self) -> dict[RuleName, Any]:
        """Return the rules for a value that is there, each with what it compares the value with."""
        rules = {name: self.kind if name == "type" else getattr(self, name) for name in _RULES}
        return {name: operand for name, operand in rules.items() if operand is not None}


class OutlierSettings(Section):
    """The bounds of one measure: by z-score or quantiles of a sample of the source, or as numbers."""

    zscore: Annotated[Number, Field(gt=0)] | None = Field(
        default=None,
        description="Greatest robust z-score: distance from the median, divided by 1.4826 times the median absolute "
        "deviation.",
    )
    quantiles: tuple[Annotated[Number, Field(ge=0, le=1)], Annotated[Number, Field(ge=0, le=1)]] | None = Field(
        default=None,
        description="Two quantiles of the sample, the lower and the upper bound; 0 and 1 set no bound.",
    )
    min: Number | None = Field(default=None, description="The lower bound as a number, in place of a sample.")
    max: Number | None = Field(default=None, description="The upper bound as a number, in place of a sample.")
    on_violation: Action | None = Field(
        default=None,
        description="Treatment of a record outside of the bounds: reject, warn or stop; null means "
        "data.validation.on_violation.",
    )

    @field_validator("quantiles")
    @classmethod
    def _are_in_order(cls, quantiles: tuple[float, float] | None) -> tuple[float, float] | None:
        if quantiles is not None and quantiles[0] >= quantiles[1]:
            msg = f"must be a lower and a higher quantile, not {quantiles[0]:g} and {quantiles[1]:g}"
            raise ValueError(msg)
        return quantiles

    @field_validator("max")
    @classmethod
    def _is_not_below(cls, most: float | None, info: ValidationInfo) -> float | None:
        least = info.data.get("min")
        if most is not None and least is not None and most < least:
            msg = f"must be at least min, which is {least:g}, not {most:g}"
            raise ValueError(msg)
        return most

    @model_validator(mode="after")
    def _has_one_kind_of_bounds(self) -> Self:
        is_number = self.min is not None or self.max is not None
        if [self.zscore is not None, self.quantiles is not None, is_number].count(True) != 1:
            msg = "needs either zscore, or quantiles, or min and max"
            raise ValueError(msg)
        return self


class OutliersSettings(Section):
    """Measures of the text whose outliers are found; null measures nothing."""

    length: OutlierSettings | None = Field(
        default=None, description="Characters of the text; its z-score is that of the logarithm."
    )
    repetition: OutlierSettings | None = Field(
        default=None,
        description="Share of the blocks of four bytes that occurred before, in a sample of at most 512 bytes of the "
        "text: 0 without repetition, near 1 for one repeated word.",
    )
    symbols: OutlierSettings | None = Field(
        default=None,
        description="Share of punctuation and symbols among the characters, in a sample of at most 512 bytes of the "
        "text.",
    )
    compression_ratio: OutlierSettings | None = Field(
        default=None,
        description="Size after zlib compression at level 1 divided by the size before, of a sample of at most 512 "
        "bytes of the text; repetition measures nearly the same at a fraction of the time.",
    )
    bytes_per_token: OutlierSettings | None = Field(
        default=None,
        description="Bytes per token of the run's tokenizer, of a sample of at most 512 bytes of the text; this sample "
        "is tokenized in addition.",
    )

    @property
    def measures(self) -> dict[str, OutlierSettings]:
        """Return the bounds of the measures that are chosen, by measure."""
        measures = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: bounds for name, bounds in measures.items() if bounds is not None}


class ValidationSettings(Section):
    """Validation of each record before it is used: the schema of its fields, and outliers."""

    fields: dict[Text, FieldValidationSettings] = Field(
        default_factory=dict,
        description="Rules for fields of the records, by name; text means the text of the document, whatever the name "
        "of its field.",
    )
    outliers: OutliersSettings = Field(default_factory=OutliersSettings, description="Bounds for measures of the text.")
    on_violation: Action = Field(
        default="reject", description=f"Treatment of a record that violates a rule without its own: {_ACTIONS}."
    )
    max_rejected: Annotated[Number, Field(ge=0, le=1)] | None = Field(
        default=0.05,
        description="Share of rejected records beyond which the run ends with exit code 3, from 1,000 records on and "
        "at the end of the data; null sets no limit.",
    )

    @field_validator("fields")
    @classmethod
    def _text_is_text(cls, fields: dict[str, FieldValidationSettings]) -> dict[str, FieldValidationSettings]:
        text = fields.get(TEXT)
        if text is not None and (text.kind not in (None, "text") or text.nullable):
            msg = f"say that {TEXT} is {'nullable' if text.nullable else text.kind}, but the document is always text"
            raise ValueError(msg)
        return fields

    @model_validator(mode="after")
    def _checks_something(self) -> Self:
        if not self.fields and not self.outliers.measures:
            msg = "checks nothing: give it fields or outliers"
            raise ValueError(msg)
        return self

    @property
    def unique_fields(self) -> tuple[str, ...]:
        """Return the names of the fields whose values are unique, sorted; removal of duplicates checks them."""
        return tuple(sorted(name for name, field in self.fields.items() if field.unique))


def _type_of(value: object) -> str | None:
    names = {bool: "boolean", int: "integer", float: "number", str: "text"}
    if isinstance(value, float) and value.is_integer():
        return "integer"
    return names.get(type(value))
