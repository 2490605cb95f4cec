"""The report on a study as one HTML file with charts, which needs no script, no other file and no network."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from holdfast.bootstrap.operations.report_parts import Table
from holdfast.bootstrap.run_folder.study_folder import StudyLayout
from holdfast.bootstrap.run_reading.formatting import moment
from holdfast.bootstrap.web.report_html import GENERATOR, policy_hash, static_file, table_html
from holdfast.bootstrap.web.study_charts import history_chart, learning_chart, parallel_chart, shown_value
from holdfast.domain.tuning.search_space import Choices, FloatRange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.bootstrap.operations.study_facts import StudyFacts
    from holdfast.domain.tuning.search_space import Dimension
    from holdfast.domain.tuning.trial import Trial

_STYLES = ("theme.css", "report.css", "study.css")
_KEYS = {
    "History": "A filled circle is a complete trial, a hollow one was pruned; the line is the best value so far.",
    "Learning curves": "Green is the best trial, blue are other complete ones, yellow pruned and red failed ones.",
    "Parallel coordinates": "A line is a trial: the darker, the better its value; green is the best one.",
}


def study_html(facts: StudyFacts) -> str:
    """Return the report on a study as HTML; all texts are escaped, and nothing is loaded from elsewhere."""
    styles = [static_file(name) for name in _STYLES]
    policy = (
        f"default-src 'none'; img-src data:; style-src {' '.join(map(policy_hash, styles))}; "
        "base-uri 'none'; form-action 'none'"
    )
    title = escape(facts.root.name)
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        GENERATOR,
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{title}: study</title>",
        *(f"<style>{style}</style>" for style in styles),
    ]
    body = [*_top(facts), *_charts(facts), *_best(facts), *_trials(facts), *_search(facts)]
    footer = f"<footer>Written by Holdfast at {escape(moment(facts.written))} UTC.</footer>"
    lines = "\n".join(["<head>", *head, "</head>", "<body>", *body, footer, "</body>"])
    return f'<!doctype html>\n<html lang="en">\n{lines}\n</html>\n'


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
