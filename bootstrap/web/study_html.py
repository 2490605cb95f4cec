"""The report on a study as one HTML file with charts, which needs no script, no other file and no network."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, final

from holdfast.bootstrap.operations.report_sections import Table
from holdfast.bootstrap.run_folder.study_folder import StudyLayout
from holdfast.bootstrap.run_reading.formatting import moment
from holdfast.bootstrap.web.html_page import html_page, table_html
from holdfast.bootstrap.web.report_html import GENERATOR
from holdfast.domain.training.metric_catalog import is_higher_better
from holdfast.domain.tuning.search_space import Choices, FloatRange
from holdfast.domain.tuning.trial import TrialState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from holdfast.bootstrap.operations.study_facts import StudyFacts
    from holdfast.domain.tuning.search_space import Dimension, SearchSpace, Value
    from holdfast.domain.tuning.trial import Trial

_STYLES = ("theme.css", "report.css", "study.css")
_KEYS = {
    "History": "A filled circle is a complete trial, a hollow one was pruned; the line is the best value so far.",
    "Learning curves": "Green is the best trial, blue are other complete ones, yellow pruned and red failed ones.",
    "Parallel coordinates": "A line is a trial: the darker, the better its value; green is the best one.",
}


def study_html(facts: StudyFacts) -> str:
    """Return the report on a study as HTML; all texts are escaped, and nothing is loaded from elsewhere."""
    body = [*_top(facts), *_charts(facts), *_best(facts), *_trials(facts), *_search(facts)]
    footer = f"<footer>Written by Holdfast at {escape(moment(facts.written))} UTC.</footer>"
    return html_page(f"{facts.root.name}: study", [*body, footer], (GENERATOR,), _STYLES)


def _top(facts: StudyFacts) -> Iterator[str]:
    yield f'<header class="top"><h1>{escape(facts.root.name)}</h1></header>'
    cards = [("trials", facts.counts)]
    if (best := facts.best) is not None:
        cards += [(f"best {facts.search.metric}", f"{best.value:.6g}"), ("best trial", str(best.number))]
    cards.append(("tokens trained on", f"{sum(trial.tokens for trial in facts.trials):,}"))
    shown = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in cards)
    yield f'<dl class="figures">{shown}</dl>'


def _charts(facts: StudyFacts) -> Iterator[str]:
    metric, best = facts.search.metric, facts.best
    charts = {
        "History": history_chart(facts.trials, metric),
        "Parallel coordinates": parallel_chart(facts.space, facts.trials, metric, best),
        "Learning curves": learning_chart(facts.trials, metric, best),
    }
    for title, chart in charts.items():
        if chart:
            yield f'<section><h2>{title}</h2><div class="wide">{chart}</div><p class="key">{_KEYS[title]}</p></section>'


def _best(facts: StudyFacts) -> Iterator[str]:
    if (best := facts.best) is not None:
        rows = [(name, shown_value(value)) for name, value in (best.parameters or {}).items()]
        yield f"<section><h2>Best settings</h2>{table_html(Table(('setting', 'value'), rows))}"
        name = escape(StudyLayout(facts.root).best.name)
        yield f"<p>All settings of this trial are in {name}, which <code>train --config</code> takes.</p></section>"


def _trials(facts: StudyFacts) -> Iterator[str]:
    names = [*facts.space.dimensions]
    header = ("trial", "state", facts.search.metric, "evaluations", "tokens", *names, "note")
    yield "<section><h2>Trials</h2>"
    cells = "".join(f"<th>{escape(name)}</th>" for name in header)
    rows = "".join(_row(facts, trial, names) for trial in facts.trials)
    yield f'<div class="wide"><table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table></div></section>'


def _row(facts: StudyFacts, trial: Trial, names: list[str]) -> str:
    folder = StudyLayout(facts.root).trial(trial.number).name
    link = f'<a href="{escape(folder)}/{escape(StudyLayout(facts.root).report.name)}">{trial.number}</a>'
    parameters = trial.parameters or {}
    numbers = [
        "" if trial.value is None else f"{trial.value:.6g}",
        str(len(trial.measurements)),
        f"{trial.tokens:,}" if trial.has_ended else "",
        *(shown_value(parameters[name]) if name in parameters else "" for name in names),
    ]
    css = f"trial-{trial.state}{' trial-best' if trial is facts.best else ''}"
    cells = "".join(f'<td class="number">{escape(cell)}</td>' for cell in numbers)
    state = f'<td class="trial-state">{trial.state}</td>'
    return f'<tr class="{css}"><td>{link}</td>{state}{cells}<td class="long">{escape(trial.note)}</td></tr>'


def _search(facts: StudyFacts) -> Iterator[str]:
    search = facts.search
    rows = [
        ("sampler", search.sampler),
        ("pruner", search.pruner),
        ("metric", f"{search.metric}, {search.objective} evaluation"),
        ("seed", str(facts.seed)),
        ("trials at once", str(facts.parallel)),
        *((name, _described(dimension)) for name, dimension in facts.space.dimensions.items()),
    ]
    yield f"<section><h2>Search</h2>{table_html(Table(('', ''), rows))}</section>"


def _described(dimension: Dimension) -> str:
    if isinstance(dimension, Choices):
        return f"one of {', '.join(dimension.options)}"
    kind = "numbers" if isinstance(dimension, FloatRange) else "whole numbers"
    step = "" if dimension.step in (None, 1) else f" in steps of {shown_value(dimension.step or 0)}"
    bounds = f"from {shown_value(dimension.low)} to {shown_value(dimension.high)}"
    return f"{kind} {bounds}{step}{', log' if dimension.is_log else ''}"


_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 14, 34
_TICKS = 5
_RADIUS = 4
_GROUPS = 5
_LONGEST_LABEL = 14


@final
@dataclass(frozen=True, slots=True)
class _Axis:
    """Places values from ``low`` to ``high`` between the pixels ``begin`` and ``end``."""

    low: float
    high: float
    begin: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of ``value``."""
        low, high, value = (math.log(each) if self.is_log else each for each in (self.low, self.high, value))
        share = 0.5 if high == low else (value - low) / (high - low)
        return round(self.begin + share * (self.end - self.begin), 2)

    @property
    def ticks(self) -> Sequence[float]:
        """Return round values within the axis."""
        if self.is_log:
            found = [
                10.0**power for power in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            ]
            inside = [tick for tick in found if self.low <= tick <= self.high]
            return inside if len(inside) > 1 else [self.low, self.high]
        if self.low == self.high:
            return [self.low]
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / _TICKS))
        step *= next(factor for factor in (1, 2, 5, 10) if (self.high - self.low) / (step * factor) <= _TICKS)
        first = math.ceil(self.low / step - 1e-9)
        return [step * count for count in range(first, math.floor(self.high / step + 1e-9) + 1)]


def history_chart(trials: Sequence[Trial], metric: str) -> str:
    """Return the values of the trials in their order, and the best value so far as a line; "" without a value."""
    valued = [trial for trial in trials if trial.value is not None and math.isfinite(trial.value)]
    if not valued:
        return ""
    x = _Axis(0, max(1, trials[-1].number), _LEFT, _WIDTH - _RIGHT)
    y = _value_axis(trial.value for trial in valued if trial.value is not None)
    parts = [*_frame(x, y, "trial", are_whole=True)]
    best: float | None = None
    line = ""
    is_better = operator.gt if is_higher_better(metric) else operator.lt
    for trial in valued:
        value = trial.value or 0.0
        line += f"H{x(trial.number)}" if line else ""
        if trial.state is TrialState.COMPLETE and (best is None or is_better(value, best)):
            line += f"V{y(value)}" if line else f"M{x(trial.number)} {y(value)}"
            best = value
    parts.append(f'<path class="best-line" d="{line}"/>' if line else "")
    for trial in valued:
        title = _title(f"trial {trial.number} ({trial.state}): {metric} {trial.value:.6g}")
        place = f'cx="{x(trial.number)}" cy="{y(trial.value or 0.0)}"'
        parts.append(f'<circle class="point {trial.state}" {place} r="{_RADIUS}">{title}</circle>')
    return _svg(f"{metric} of each trial, and the best value so far", parts)


def learning_chart(trials: Sequence[Trial], metric: str, best: Trial | None) -> str:
    """Return the evaluations of each trial by step; "" without any."""
    curves = [(trial, _finite(trial.measurements.items())) for trial in trials]
    points = [point for _, curve in curves for point in curve]
    if not points:
        return ""
    x = _Axis(min(step for step, _ in points), max(step for step, _ in points), _LEFT, _WIDTH - _RIGHT)
    y = _value_axis(value for _, value in points)
    parts = [*_frame(x, y, "step", are_whole=True)]
    for trial, curve in sorted(curves, key=lambda each: each[0] is best):  # the best one on top
        if not curve:
            continue
        css = f"curve {trial.state}{' best' if trial is best else ''}"
        title = _title(f"trial {trial.number} ({trial.state})")
        line = "L".join(f"{x(step)} {y(value)}" for step, value in curve)
        parts.append(f'<path class="{css}" d="M{line}">{title}</path>')
        parts.append(
            f'<circle class="{css} mark" cx="{x(curve[-1][0])}" cy="{y(curve[-1][1])}" r="2.5">{title}</circle>'
        )
    return _svg(f"{metric} of each trial by step", parts)


def parallel_chart(space: SearchSpace, trials: Sequence[Trial], metric: str, best: Trial | None) -> str:
    """Return the parallel coordinates: an axis for each setting and for the value, a line for each trial.

    The shades of the lines are five groups from the best to the worst values. "" without a value.
    """
    valued = [t for t in trials if t.parameters is not None and t.value is not None and math.isfinite(t.value)]
    if not valued:
        return ""
    names = [*space.dimensions]
    xs = [_Axis(0, len(names), 70, _WIDTH - 70)(place) for place in range(len(names) + 1)]
    scales = [_scale(space.dimensions[name]) for name in names]
    values = _Axis(*_bounds(trial.value for trial in valued if trial.value is not None), _HEIGHT - 24, 40)
    sign = -1.0 if is_higher_better(metric) else 1.0
    costs = {trial.number: sign * (trial.value or 0.0) for trial in valued}
    groups = _groups(costs)
    parts: list[str] = []
    for trial in sorted(valued, key=lambda trial: (trial is best, -costs[trial.number])):
        parameters: Mapping[str, Value] = trial.parameters or {}
        places = [place(parameters[name]) for name, (place, _) in zip(names, scales, strict=True)]
        places.append(values(trial.value or 0.0))
        line = "L".join(f"{x} {y}" for x, y in zip(xs, places, strict=True))
        words = ", ".join(f"{name}={shown_value(parameters[name])}" for name in names)
        title = _title(f"trial {trial.number}: {metric} {trial.value:.6g}, {words}")
        css = f"coordinate group-{groups[trial.number]}{' best' if trial is best else ''}"
        parts.append(f'<path class="{css}" d="M{line}">{title}</path>')
    ticks = [*(ticks for _, ticks in scales), [(values(tick), _number(tick)) for tick in values.ticks]]
    for x, name, labels in zip(xs, [*names, metric], ticks, strict=True):
        parts += _vertical(x, name, labels)
    return _svg(f"settings and {metric} of each trial", parts)


def _scale(dimension: Dimension) -> tuple[Callable[[Value], float], Sequence[tuple[float, str]]]:
    """Return the pixel of each value of a setting, and the labels of its axis with their pixels."""
    if isinstance(dimension, Choices):
        options = dimension.options
        axis = _Axis(0, max(1, len(options) - 1), _HEIGHT - 24, 40)
        return lambda value: axis(options.index(str(value))), [(axis(n), each) for n, each in enumerate(options)]
    axis = _Axis(dimension.low, dimension.high, _HEIGHT - 24, 40, dimension.is_log)
    return lambda value: axis(float(value)), [(axis(tick), _number(tick)) for tick in axis.ticks]


def _groups(costs: Mapping[int, float]) -> dict[int, int]:
    """Return the group of each trial by the rank of its cost, from 0, the lowest, to 4."""
    ranked = sorted(costs, key=lambda number: (costs[number], number))
    return {number: place * _GROUPS // len(ranked) for place, number in enumerate(ranked)}


def _vertical(x: float, name: str, labels: Sequence[tuple[float, str]]) -> Iterator[str]:
    yield f'<line class="axis" x1="{x}" x2="{x}" y1="40" y2="{_HEIGHT - 24}"/>'
    short = name if len(name) <= 2 * _LONGEST_LABEL else f"...{name[-2 * _LONGEST_LABEL :]}"
    yield f'<text class="name" x="{x}" y="22" text-anchor="middle">{escape(short)}{_title(name)}</text>'
    for y, label in labels:
        cut = label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 3]}..."
        yield f'<text class="tick" x="{x + 5}" y="{y + 4}">{escape(cut)}</text>'


def _frame(x: _Axis, y: _Axis, name: str, *, are_whole: bool) -> Iterator[str]:
    bottom = _HEIGHT - _BOTTOM
    for tick in y.ticks:
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick)}" y2="{y(tick)}"/>'
        yield f'<text class="tick" x="{_LEFT - 6}" y="{y(tick) + 4}" text-anchor="end">{_number(tick)}</text>'
    for tick in x.ticks:
        if not are_whole or float(tick).is_integer():
            yield f'<text class="tick" x="{x(tick)}" y="{bottom + 16}" text-anchor="middle">{_number(tick)}</text>'
    yield f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>'
    yield f'<text class="name" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 4}" text-anchor="middle">{name}</text>'


def _value_axis(values: Iterable[float]) -> _Axis:
    low, high = _bounds(values)
    margin = (high - low) * 0.05
    return _Axis(low - margin, high + margin, _HEIGHT - _BOTTOM, _TOP)


def _bounds(values: Iterable[float]) -> tuple[float, float]:
    known = [*values]
    return min(known), max(known)


def _finite(points: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    return [(step, value) for step, value in points if math.isfinite(value)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) < 1e6 else f"{value:.4g}"


def shown_value(value: Value) -> str:
    """Return the value of a setting with six digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _svg(label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="study-chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )
