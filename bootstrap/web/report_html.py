"""Reports on runs as one HTML file with curves, which needs no other file and no network."""

from __future__ import annotations

import json
import shlex
import threading
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.files.regular_file import open_regular
from holdfast.bootstrap.operations.report_facts import AT_EVALUATIONS, report_facts
from holdfast.bootstrap.operations.report_sections import (
    Code,
    Marked,
    Shares,
    Table,
    differences,
    main_figures,
    names_of,
    overview,
    run_sections,
    verdict,
)
from holdfast.bootstrap.process.program import called_as
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_reading.formatting import moment
from holdfast.bootstrap.web.html_page import html_page, table_html, write_text
from holdfast.configs.error_messages import one_line
from holdfast.domain.errors import ConfigurationError, TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from holdfast.bootstrap.operations.report_facts import Facts
    from holdfast.bootstrap.operations.report_sections import Part, ReportSection

GENERATOR = '<meta name="generator" content="Holdfast report">'
"""The mark by which a file is known to be a report."""

_SCRIPTS = ("uplot.js", "charts.js", "report.js")
_STYLES = ("uplot.css", "theme.css", "report.css")
_MOST_MARKS = 500
_SMOOTHING = 0.6
_MANY_STEPS = 300
_COLORS = 8


@final
@dataclass(frozen=True, slots=True)
class _Chart:
    """A chart of the metrics ``names``; ``format`` is one of charts.js."""

    title: str
    names: tuple[str, ...]
    format: str = "number"
    begins_at_zero: bool = False


_CHARTS = (
    _Chart("Loss", ("loss", "eval_loss")),
    _Chart("Bits per byte of the held-out documents", ("eval_bits_per_byte",)),
    _Chart("Reward margin", ("reward_margin", "eval_reward_margin")),
    _Chart("Pairs in the right order", ("reward_accuracy", "eval_reward_accuracy"), "percent"),
    _Chart("Rewards of held-out replies", ("eval_reward_chosen", "eval_reward_rejected")),
    _Chart("Learning rate", ("lr",)),
    _Chart("Gradient norm", ("grad_norm",)),
    _Chart("Tokens per second", ("tokens_per_second",), begins_at_zero=True),
    _Chart("Model FLOPs utilization", ("mfu",), "percent", begins_at_zero=True),
    _Chart("Wait for data", ("data_wait_seconds",), "seconds", begins_at_zero=True),
    _Chart("Memory", ("memory_bytes",), "bytes", begins_at_zero=True),
    _Chart("Goodput", ("goodput",), "percent", begins_at_zero=True),
)
_FORMATS = {"bytes_read": "bytes", "compile_seconds": "seconds"}
_TITLES = {
    "loss": "training",
    "eval_loss": "held-out",
    "reward_margin": "training",
    "eval_reward_margin": "held-out",
    "reward_accuracy": "training",
    "eval_reward_accuracy": "held-out",
    "eval_reward_chosen": "chosen",
    "eval_reward_rejected": "rejected",
}


def html_report(runs: Sequence[Facts]) -> str:
    """Return the report on ``runs``, one or several, as HTML.

    All texts are escaped.
    """
    names = names_of(runs)
    title = " and ".join(names)
    main, further = _charts(runs, names)
    data = {"events": _marks(runs, names), "domain": _domain(runs), "charts": [*main, *further]}
    body = [
        *_top(runs, title),
        *_curves(len(main), len(further), _SMOOTHING if _is_long(runs) else 0.0),
        *_content(runs, names),
        f"<footer>Written by Holdfast at {escape(moment(runs[0]['written']))} UTC.</footer>",
        f'<script type="application/json" id="report-data">{_embedded(data)}</script>',
    ]
    return html_page(f"{title}: report", body, (GENERATOR,), _STYLES, _SCRIPTS)


def _embedded(data: Mapping[str, Any]) -> str:
    """Return ``data`` as JSON without the characters by which HTML ends a script or begins a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _top(runs: Sequence[Facts], title: str) -> Iterator[str]:
    button = '<button class="control" id="theme" type="button">Dark or light</button>'
    yield f'<header class="top"><h1>{escape(title)}</h1>{button}</header>'
    if len(runs) == 1:
        state = escape(runs[0]["state"])
        words = escape(verdict(runs[0]).removeprefix(runs[0]["state"]).strip())
        css = f"state-{state.replace(' ', '-')}"
        yield f'<p class="verdict"><span class="state {css}">{state}</span>{words}</p>'
        cards = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in main_figures(runs[0]))
        yield f'<dl class="figures">{"".join(cards)}</dl>'
    yield table_html(overview(runs))
    if len(runs) > 1 and (section := differences(runs)) is not None:
        yield _section(section, 2)


def _curves(num_main: int, num_further: int, smoothing: float) -> Iterator[str]:
    if not num_main + num_further:
        return
    yield "<section><h2>Curves</h2><noscript><p>The curves need JavaScript; the tables do not.</p></noscript>"
    yield (
        '<div class="controls"><label>smoothing <input id="smoothing" type="range" min="0" max="0.99" step="0.01" '
        f'value="{smoothing}"><output id="smoothing-value" for="smoothing"></output></label>'
        '<label><input id="log" type="checkbox"> logarithmic</label>'
        '<button class="control" id="reset" type="button">Show all steps</button>'
        '<span class="soft">drag to zoom, double-click to go back</span></div>'
    )
    yield _places(range(num_main))
    if num_further:
        places = _places(range(num_main, num_main + num_further))
        yield f"<details><summary>Further metrics</summary>{places}</details>"
    yield "</section>"


def _places(numbers: range) -> str:
    places = (f'<div data-chart="{number}"></div>' for number in numbers)
    return f'<div class="charts">{"".join(places)}</div>'


def _charts(runs: Sequence[Facts], names: Sequence[str]) -> tuple[list[Any], list[Any]]:
    """Return the options of the charts: those that everyone wants to see, and those of further metrics."""
    found = {name for facts in runs for name in facts["series"]}
    main = [chart for chart in _CHARTS if found & {*chart.names}]
    taken = {name for chart in _CHARTS for name in chart.names} | {"tokens"}
    groups: dict[str, list[str]] = {}
    for name in sorted(name for name in found - taken if name.startswith(AT_EVALUATIONS)):
        groups.setdefault(name.rpartition("/")[0] or name, []).append(name)
    titles = (group if len(names_in) > 1 else names_in[0] for group, names_in in groups.items())
    main += [_Chart(title.replace("_", " "), (*each,)) for title, each in zip(titles, groups.values(), strict=True)]
    others = sorted(name for name in found - taken if not name.startswith(AT_EVALUATIONS))
    further = [_Chart(name.replace("_", " "), (name,), _FORMATS.get(name, "number")) for name in others]
    chosen = [_options(chart, runs, names) for chart in (*main, *further)]
    return chosen[: len(main)], chosen[len(main) :]


def _options(chart: _Chart, runs: Sequence[Facts], names: Sequence[str]) -> Mapping[str, Any]:
    series = []
    for number, (run, facts) in enumerate(zip(names, runs, strict=True)):
        for place, name in enumerate(chart.names):
            if (found := facts["series"].get(name)) is None:
                continue
            is_evaluation = name.startswith(AT_EVALUATIONS)
            words = [run] if len(runs) > 1 else []
            words += [_TITLES.get(name, name)] if len(chart.names) > 1 else []
            series.append(
                {
                    "name": ", ".join(words) or chart.title,
                    **_points(found),
                    "style": "both" if is_evaluation else "line",
                    "smooth": not is_evaluation,
                    "color": _color(chart, number, place, len(runs)),
                }
            )
    options = {"title": chart.title, "series": series, "format": chart.format, "zero": chart.begins_at_zero}
    return {**options, "canBeLog": not chart.begins_at_zero, "height": 300 if "loss" in chart.names else 190}


def _color(chart: _Chart, run: int, place: int, num_runs: int) -> int:
    """Return the color of a line: that of its run in a comparison, and further ones if its run has several lines.

    Loss and evaluation loss of a run have one color, as only one of them has dots.
    """
    if num_runs == 1:
        return place
    return run if "loss" in chart.names else run + place * num_runs


def _domain(runs: Sequence[Facts]) -> list[int] | None:
    """Return the first and the last recorded step of all runs."""
    steps = [each["steps"] for facts in runs for each in facts["series"].values() if each["steps"]]
    return [min(each[0] for each in steps), max(each[-1] for each in steps)] if steps else None


def _is_long(runs: Sequence[Facts]) -> bool:
    return any((facts["figures"]["step"] or 0) > _MANY_STEPS for facts in runs)


def _points(series: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the points of a series; the means and extremes of several steps have seven digits."""
    if series["low"] is None:
        return {"x": series["steps"], "y": series["values"]}
    y, low, high = ([_rounded(value) for value in series[name]] for name in ("values", "low", "high"))
    return {"x": series["steps"], "y": y, "low": low, "high": high}


def _rounded(value: float | str) -> float | str:
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _marks(runs: Sequence[Facts], names: Sequence[str]) -> list[Any]:
    """Return the marks on the curves: the newest of each run, with its name and colour if there are several."""
    owns = [(f"{name}: ", {"color": run}) for run, name in enumerate(names)] if len(runs) > 1 else [("", {})]
    return [
        {"x": event["step"], "level": event["level"], "text": begin + event["text"], **color}
        for (begin, color), facts in zip(owns, runs, strict=True)
        for event in [each for each in facts["events"] if each["marked"] and each["step"] is not None][-_MOST_MARKS:]
    ]


def _content(runs: Sequence[Facts], names: Sequence[str]) -> Iterator[str]:
    if len(runs) == 1:
        yield from (_section(section, 2) for section in run_sections(runs[0]))
        return
    for name, facts in zip(names, runs, strict=True):
        content = "".join(_section(section, 3) for section in run_sections(facts))
        yield f'<details class="run"><summary>{escape(name)}: {escape(verdict(facts))}</summary>{content}</details>'


def _section(section: ReportSection, level: int) -> str:
    parts = "".join(map(_part, section.parts))
    title = escape(section.title)
    if section.is_folded:
        return f"<details><summary>{title}</summary>{parts}</details>"
    return f"<section><h{level}>{title}</h{level}>{parts}</section>"


def _part(part: Part) -> str:
    match part:
        case str():
            return f"<p>{escape(part)}</p>"
        case Code(text):
            return f"<pre>{escape(text)}</pre>"
        case Marked(parts):
            marked = (f"<mark>{escape(text)}</mark>" if is_marked else escape(text) for text, is_marked in parts)
            return f"<pre>{''.join(marked)}</pre>"
        case Shares():
            return _shares(part)
        case Table():
            return table_html(part)


def _shares(shares: Shares) -> str:
    """Return a bar whose parts have the widths of the shares, and a list that explains it."""
    bars, items, begin = [], [], 0.0
    for number, (name, share, amount) in enumerate(shares.parts):
        css = f"share-{number % _COLORS + 1}"
        bars.append(f'<rect class="{css}" x="{begin:.3f}" width="{100 * share:.3f}" height="1"/>')
        begin += 100 * share
        items.append(f'<li><span class="{css}">&#9632;</span> {escape(name)} {escape(amount)} ({share:.1%})</li>')
    label = escape(", ".join(f"{name} {share:.1%}" for name, share, _ in shares.parts))
    bar = (
        f'<svg class="shares" viewBox="0 0 100 1" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f"{''.join(bars)}</svg>"
    )
    return f'{bar}<ul class="shares-key">{"".join(items)}</ul>'


_HEAD = 4_096


def default_output(runs: Sequence[Path]) -> Path:
    """Return the file of the HTML report on ``runs``: in the run folder, or in the current folder for several runs.

    Raises ``ConfigurationError`` if another file than a report stands there.
    """
    path = RunLayout(runs[0]).report if len(runs) == 1 else Path(RunLayout(Path()).report.name)
    if not _may_replace(path):
        msg = f"{path} exists and is no report: name another file with --output"
        raise ConfigurationError(msg)
    return path


def write_at_end(run: Path, say: Callable[[str], object], seconds: float) -> Path | None:
    """Write the report on ``run`` into its folder when a start has ended; return its path.

    Returns None, after one line to ``say``, if it cannot be written or that takes more than ``seconds``; no error is
    raised. A folder without the record of a run is left alone.
    """
    layout = RunLayout(run)
    if not layout.record.exists():
        return None
    writer = _Writer(run)
    thread = threading.Thread(target=writer.write, name="report", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        command = shlex.join([*called_as(), "report", str(run)])
        say(f"no report was written, as it takes more than {seconds:.0f} s: {command}")
    elif writer.problem is not None:
        say(one_line(f"no report was written: {writer.problem}"))
    else:
        return layout.report
    return None


@final
class _Writer:
    """Writes the report on ``run`` into its folder; an error becomes the sentence ``problem``."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self.problem: str | None = None

    def write(self) -> None:
        """Write the report."""
        try:
            path = default_output([self._run])
            # only one start trains a run at a time, so the next one replaces a draft that a failing disk left
            write_text(path, html_report([report_facts(self._run)]), is_shared=False)
        except TrainingError as error:
            self.problem = str(error)
        except Exception as error:  # noqa: BLE001  a run has ended well, whatever becomes of its report
            self.problem = f"{type(error).__name__}: {error}"


def _may_replace(path: Path) -> bool:
    """Return whether there is nothing at ``path``, or a report."""
    try:
        with open_regular(path) as file:
            return GENERATOR.encode() in file.read(_HEAD)
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)
