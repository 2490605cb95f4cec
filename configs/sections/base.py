"""Base of all sections: immutability, exact types, and the choice of a kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, PlainValidator

from holdfast.domain.sizes import size_in_bytes

PLUGIN = "plugin"


class Section(BaseModel):
    """A part of the settings; immutable, and unknown fields are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _whole(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not (isinstance(value, str) and value[:1].isdecimal() and value[-1:].isalpha()):
        return value
    try:
        return size_in_bytes(value)
    except ValueError:
        return value  # pydantic says what is wrong with it


def _weight(value: object) -> int | float:
    value = _whole(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**63:
        msg = "must be a number from 0 on"
        raise ValueError(msg)
    return value


def _path(value: object) -> object:
    if isinstance(value, str) and (not value.strip() or "\0" in value):
        msg = "must be a path"
        raise ValueError(msg)
    return value


_Amount = Annotated[str, Field(pattern=r"^[0-9][0-9.]*[A-Za-z]+$")]


def _whole_from(least: int) -> BeforeValidator:
    """Return the rule of whole numbers: 1e6 and 20M count as such; True and "5" do not."""
    return BeforeValidator(_whole, json_schema_input_type=Annotated[int, Field(ge=least)] | _Amount)


Natural = Annotated[int, Field(strict=True, ge=0, le=2**63 - 1), _whole_from(0)]
Positive = Annotated[int, Field(strict=True, ge=1, le=2**63 - 1), _whole_from(1)]
Weight = Annotated[
    int | float,
    PlainValidator(_weight, json_schema_input_type=Annotated[float, Field(ge=0)] | _Amount),
]
Seed = Annotated[int, Field(strict=True, ge=0, le=2**32 - 1), _whole_from(0)]
Number = Annotated[float, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(min_length=1)]
Folder = Annotated[Path, BeforeValidator(_path)]


def _key_place(value: str) -> str:
    kind, colon, place = value.partition(":")
    if not (kind and colon and place) or (kind == "env" and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", place)):
        msg = "must be env:NAME, file:PATH or KIND:PLACE (what was given is not shown: it may be a key)"
        raise ValueError(msg)
    return value


def _dsn(value: str) -> str:
    if not re.match(r"env:[A-Za-z_][A-Za-z0-9_]*$|postgres(ql)?://", value):
        msg = (
            "must be postgresql://user@host:5432/database, or env:NAME for a variable with the connection string (what "
            "was given is not shown, as it may hold a password)"
        )
        raise ValueError(msg)
    return value


def _token_place(value: str) -> str:
    if not value.startswith(("env:", "file:")):
        msg = "must be env:NAME or file:PATH"
        raise ValueError(msg)
    return value


def _evaluation_metric(value: str) -> str:
    if not re.match(r"eval_(loss|bits_per_byte|reward_accuracy)(/.+)?$", value):
        msg = (
            f"is {value[:80]!r}, by which evaluations are not compared: it must be eval_loss, eval_bits_per_byte or "
            "eval_reward_accuracy, or that of a part, such as eval_loss/NAME"
        )
        raise ValueError(msg)
    return value


def problem_of_metric(metric: str, task: str) -> str:
    """Return why evaluations on data of ``task`` do not measure ``metric``, "" if they do."""
    if task == "preference" and "bits_per_byte" in metric:
        return "pairs of data.task=preference have no bits per byte"
    if task != "preference" and "reward_accuracy" in metric:
        return "only pairs of data.task=preference have a reward accuracy"
    return ""


KeyPlace = Annotated[Text, AfterValidator(_key_place)]
TokenPlace = Annotated[KeyPlace, AfterValidator(_token_place)]
Dsn = Annotated[Text, AfterValidator(_dsn)]
EvaluationMetric = Annotated[Text, AfterValidator(_evaluation_metric)]


class KeySettings(Section):
    """Places of encryption keys, which are never part of the settings."""

    key_from: KeyPlace = Field(
        description="Place of the key: env:NAME for a variable with the base64 of 32 bytes, file:PATH for a file with "
        "the same content, or KIND:PLACE for an outside key provider."
    )
    old_keys_from: list[KeyPlace] = Field(
        default_factory=list,
        description="Places of earlier keys, for files that were written with them; the kind of each place is the "
        "same as that of key_from.",
    )


class PluginSettings(Section):
    """A section whose kind is not built in: an outside adapter gets ``options`` unchanged."""

    kind: Text = Field(description="Name under which the outside adapter is registered.")
    options: dict[str, Any] = Field(default_factory=dict, description="Arguments of the outside adapter's constructor.")


def nearest_kind(kind: str, built_in: tuple[str, ...]) -> str | None:
    """Return the built-in kind that ``kind`` is probably a misspelling of, None if there is none.

    The name of an installed entry point of Holdfast is never a misspelling.
    """
    if kind in built_in:
        return None
    near = get_close_matches(kind[:80].lower(), built_in, n=1, cutoff=0.8)
    if not near or any(point.group.startswith("holdfast.") for point in entry_points(name=kind)):
        return None
    return near[0]


def by_kind(default: str, *others: str) -> Discriminator:
    """Choose the member of a union by its ``kind``: a built-in one, or the plug-in unless the kind looks misspelled."""
    built_in = (default, *others)

    def tag(section: Any) -> str | None:
        kind = section.get("kind", default) if isinstance(section, Mapping) else getattr(section, "kind", default)
        if not isinstance(kind, str) or nearest_kind(kind, built_in):
            return None
        return kind if kind in built_in else PLUGIN

    return Discriminator(tag)
