"""Profiles of datasets, and their comparison, as HTML files with histograms, which need no script."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from holdfast.bootstrap.operations.profile_data import (
    figure_row,
    figures_of,
    note_on_tokens,
    shown_token,
    shown_value,
    totals_of,
    verdict_on,
)
from holdfast.bootstrap.operations.report_sections import Table
from holdfast.bootstrap.web.html_page import html_page, table_html
from holdfast.domain.data.drift import LABELS, worst
from holdfast.domain.data.profile import FINE, LENGTHS, RATIOS, SHARES, bounds_of
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.bootstrap.operations.profile_data import Decode
    from holdfast.bootstrap.stages.prepare.named_version import ProfiledDataset
    from holdfast.domain.data.profile import LogHistogram

_FIGURES = (*LENGTHS, *RATIOS, *SHARES)
_LEVELS = {"none": "good", "minor": "warning", "major": "error"}
_STYLES = ("theme.css", "report.css", "profile.css")
_SECOND = frozenset({1})
_MOST_NAMED = 40
_BARS = 40
_WIDTH, _HEIGHT, _FOOT = 400, 150, 20


def profile_page(dataset: ProfiledDataset, decode: Decode | None = None) -> str:
    """Return the profile of ``dataset`` as HTML; ``decode`` gives the text of a token id."""
    profile = dataset.profile
    totals = [(name, f"{value:,}") for name, value in totals_of(profile).items()]
    token_rows = [
        (shown_token(token, decode), f"{count / profile.frequent.total:.2%}")
        for token, count in profile.frequent.top(_MOST_NAMED)
    ]
    counts = (("Languages", profile.languages), ("Rejects by reason", profile.rejects))
    plots = [_plot(name, profile.histograms[name], None) for name in _FIGURES if name in profile.histograms]
    body = [
        f"<h1>{escape(dataset.name)}</h1>",
        f'<p class="soft">Profile of {counted(dataset.num_shards, "shard")}</p>',
        table_html(Table(("", "total"), totals, _SECOND)),
        "<h2>Distributions over documents</h2>",
        f'<div class="plots">{"".join(plots)}</div>',
    ]
    for title, by_name in counts:
        if by_name:
            ordered = sorted(by_name.items(), key=lambda each: (-each[1], each[0]))
            rows = [(name, f"{count:,}") for name, count in ordered]
            body += [f"<h2>{title}</h2>", table_html(Table(("", "documents"), rows, _SECOND))]
    if token_rows:
        body += ["<h2>Most frequent tokens</h2>", table_html(Table(("token", "share"), token_rows, _SECOND))]
    return html_page(f"Profile of {dataset.name}", body, (), _STYLES)


def comparison_page(reference: ProfiledDataset, other: ProfiledDataset, decode: Decode | None = None) -> str:
    """Return the comparison of ``other`` with ``reference`` as HTML; ``decode`` gives the text of a token id."""
    figures, note = figures_of(reference, other), note_on_tokens(reference, other)
    header = ("figure", "reference", "other", "measure", "distance", "noise up to", "verdict")
    pairs = [
        (name, reference.profile.histograms[name], other.profile.histograms[name])
        for name in _FIGURES
        if name in reference.profile.histograms and name in other.profile.histograms
    ]
    rows = [figure_row(figure, decode) for figure in figures]
    keys = (("first", "reference", reference), ("second", "other", other))
    body = [
        "<h1>Comparison of two datasets</h1>",
        f'<p class="verdict {_LEVELS[worst(figures)]}">{escape(verdict_on(reference, other, figures))}</p>',
        *(
            f'<div><span class="key-{key}">&#9632;</span> {role}: {escape(each.name)}, '
            f"{counted(each.profile.documents, 'document')}, {each.profile.totals.tokens:,} tokens</div>"
            for key, role, each in keys
        ),
        "<h2>Figures</h2>",
        *([] if note is None else [f'<p class="soft">{escape(note)}</p>']),
        table_html(Table(header, rows, frozenset({1, 2, 4, 5}), [_LEVELS[row[-1]] for row in rows])),
        "<h2>Distributions over documents</h2>",
        f'<div class="plots">{"".join(_plot(*pair) for pair in pairs)}</div>',
    ]
    return html_page("Comparison of two datasets", body, (), _STYLES)


def _plot(name: str, first: LogHistogram, second: LogHistogram | None) -> str:
    """Return a histogram as SVG: bars for ``first``, a line of steps for ``second``; a logarithmic axis for lengths."""
    histograms = [first] if second is None else [first, second]
    begin, size, count = _bars_of(histograms)
    heights = [
        [
            float(each.counts[begin + size * bar : begin + size * (bar + 1)].sum()) / max(each.total, 1)
            for bar in range(count)
        ]
        for each in histograms
    ]
    top = max(max(row) for row in heights) or 1.0
    width = _WIDTH / count
    points = [[_HEIGHT * (1 - height / top) for height in row] for row in heights]
    css = "first" if second is None else "first both"
    parts = [
        f'<rect class="{css}" x="{bar * width:.1f}" y="{y:.1f}" width="{width * 0.9:.1f}" height="{_HEIGHT - y:.1f}"/>'
        for bar, y in enumerate(points[0])
    ]
    if second is not None:
        steps = " ".join(
            f"{bar * width:.1f},{y:.1f} {(bar + 1) * width:.1f},{y:.1f}" for bar, y in enumerate(points[1])
        )
        parts.append(f'<polyline class="second" points="{steps}"/>')
    parts.append(f'<line class="axis" x1="0" x2="{_WIDTH}" y1="{_HEIGHT}" y2="{_HEIGHT}"/>')
    for x, anchor, bar in ((0, "start", 0), (_WIDTH / 2, "middle", count / 2), (_WIDTH, "end", count)):
        value = bounds_of(begin + int(size * bar))[0] / (1 if name in LENGTHS else FINE)
        parts.append(f'<text x="{x}" y="{_HEIGHT + 15}" text-anchor="{anchor}">{shown_value(name, value)}</text>')
    label = escape(LABELS[name])
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT + _FOOT}" role="img" aria-label="histogram of {label}">'
        f"{''.join(parts)}</svg><figcaption>{label}</figcaption></figure>"
    )


def _bars_of(histograms: Sequence[LogHistogram]) -> tuple[int, int, int]:
    """Return the first bucket that has values, the number of buckets in a bar, and the number of bars."""
    filled = [each.counts.nonzero()[0] for each in histograms if each.total]
    begin = min((int(each[0]) for each in filled), default=0)
    end = max((int(each[-1]) + 1 for each in filled), default=1)
    size = -(-(end - begin) // _BARS)
    return begin, size, -(-(end - begin) // size)
