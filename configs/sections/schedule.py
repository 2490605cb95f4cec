"""The learning-rate schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from holdfast.configs.sections.base import Natural, Number, Positive, Section, Text, nearest_kind

Shape = Literal["linear", "1-sqrt"]

SCHEDULES = ("cosine", "linear", "constant", "wsd", "range_test")
_WITHOUT_DECAY = ("constant", "range_test")
FLOOR = 0.1
SHAPE: Shape = "1-sqrt"


def _known(kind: str) -> str:
    if (nearest := nearest_kind(kind, SCHEDULES)) is not None:
        msg = f"is {kind}, which is not known; did you mean {nearest}?"
        raise ValueError(msg)
    return kind


class ScheduleSettings(Section):
    """The learning-rate schedule: linear warm-up, then the shape given by ``kind``."""

    kind: Annotated[Text, AfterValidator(_known)] = Field(
        default="cosine",
        description="Shape after the warm-up: cosine and linear decay immediately; constant stays at the peak; wsd "
        "stays at the peak and decays in the last part of the run; range_test rises from floor to the peak over the "
        "run, for the test of `tune --find-lr`; any other name is an outside schedule.",
    )
    options: dict[str, Any] | None = Field(
        default=None, description="Arguments of an outside schedule; null passes none."
    )
    warmup_steps: Natural | None = Field(
        default=20,
        description="Steps over which the learning rate rises to its peak; null if warmup_tokens is set.",
    )
    warmup_tokens: Positive | None = Field(
        default=None, description="Tokens over which the learning rate rises to its peak, instead of warmup_steps."
    )
    decay_steps: Positive | None = Field(
        default=None,
        description="Steps over which the learning rate decays: for cosine and linear after the warm-up, for wsd at "
        "the end of the run. null means the rest of the run for cosine and linear, and its last tenth for "
        "wsd.",
    )
    decay_tokens: Positive | None = Field(
        default=None, description="Tokens over which the learning rate decays, instead of decay_steps."
    )
    decay_shape: Shape = Field(default=SHAPE, description="Shape of the decay of wsd; 1-sqrt falls faster at first.")
    floor: Annotated[Number, Field(ge=0, le=1)] = Field(
        default=FLOOR,
        description="Learning rate at the end of the decay, as a fraction of the peak, from 0 to 1; for range_test at "
        "its begin, above 0.",
    )

    @model_validator(mode="before")
    @classmethod
    def _without_default_steps(cls, schedule: Any) -> Any:
        is_in_tokens = isinstance(schedule, Mapping) and schedule.get("warmup_tokens") is not None
        return {"warmup_steps": None, **schedule} if is_in_tokens else schedule

    @model_validator(mode="after")
    def _is_said_where_it_counts(self) -> Self:
        if self.kind in SCHEDULES:
            if self.options is not None:
                msg = f"has options, which are for an outside schedule, but kind is {self.kind}: leave options out"
                raise ValueError(msg)
            return self
        fields = type(self).model_fields
        own = [name for name in fields if name not in ("kind", "options")]
        if said := [name for name in own if getattr(self, name) != fields[name].default]:
            msg = f"has {said[0]}, which an outside schedule such as {self.kind} does not read: set it in options"
            raise ValueError(msg)
        return self

    @field_validator("warmup_tokens", "decay_tokens")
    @classmethod
    def _is_the_only_unit(cls, tokens: int | None, info: ValidationInfo) -> int | None:
        steps = str(info.field_name).replace("tokens", "steps")
        if tokens is not None and info.data.get(steps) is not None:
            other = f"optimizer.schedule.{steps}, which is {info.data[steps]}"
            msg = f"is set together with {other}: set one of the two to null"
            raise ValueError(msg)
        return tokens

    @field_validator("decay_steps", "decay_tokens")
    @classmethod
    def _can_decay(cls, length: int | None, info: ValidationInfo) -> int | None:
        if length is not None and (kind := info.data.get("kind")) in _WITHOUT_DECAY:
            msg = (
                f"has no effect, as optimizer.schedule.kind={kind} does not decay: leave it out or choose another kind"
            )
            raise ValueError(msg)
        return length

    @field_validator("decay_shape")
    @classmethod
    def _has_a_choice(cls, shape: str, info: ValidationInfo) -> str:
        kind = info.data.get("kind", "wsd")
        if shape != SHAPE and kind != "wsd":
            msg = f"belongs to optimizer.schedule.kind=wsd, but optimizer.schedule.kind is {kind}: change either"
            raise ValueError(msg)
        return shape

    @field_validator("floor")
    @classmethod
    def _is_reached(cls, floor: float, info: ValidationInfo) -> float:
        if floor != FLOOR and info.data.get("kind") == "constant":
            msg = (
                "has no effect, as optimizer.schedule.kind=constant does not decay: leave it out or choose another kind"
            )
            raise ValueError(msg)
        if floor == 0 and info.data.get("kind") == "range_test":
            msg = "is 0, but optimizer.schedule.kind=range_test begins there and rises by factors: set it above 0"
            raise ValueError(msg)
        return floor
