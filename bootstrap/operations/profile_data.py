"""Profiles of the datasets in a token cache, and their comparison, for a person."""

from __future__ import annotations

from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.files.file_operations import replace_file
from holdfast.bootstrap.process.text_table import table
from holdfast.configs.error_messages import one_line
from holdfast.domain.data.drift import FEWEST, LABELS, compare, sentence_of, worst
from holdfast.domain.data.profile import FINE, LENGTHS, RATIOS, SHARES, STANDARD_ERROR, bounds_of
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.bootstrap.stages.prepare.named_version import ProfiledDataset
    from holdfast.domain.data.drift import Figure
    from holdfast.domain.data.profile import LogHistogram, Profile

    Decode = Callable[[int], str]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_TOP = 20


def profile_lines(dataset: ProfiledDataset, decode: Decode | None = None) -> list[str]:
    """Return the figures of ``dataset`` as lines; ``decode`` gives the text of a token id."""
    profile = dataset.profile
    lines = [
        f"{dataset.name}: {counted(dataset.num_shards, 'shard')}",
        "",
        *table("<>", [(name, f"{value:,}") for name, value in totals_of(profile).items()]),
        "",
        *table("<>>>>>", [("", *(f"{share:.0%}" for share in QUANTILES)), *_quantile_rows(profile)]),
    ]
    if top := profile.frequent.top(_TOP):
        total = profile.frequent.total
        rows = [(shown_token(token, decode), f"{count / total:.2%}") for token, count in top]
        lines += ["", *table("<>", [("most frequent tokens", "share"), *rows])]
    for title, counts in (("languages", profile.languages), ("rejects", profile.rejects)):
        if counts:
            ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
            lines += ["", *table("<>", [(title, "documents"), *((one_line(n), f"{c:,}") for n, c in ordered)])]
    return [*lines, "", _verdict_on(profile)]


def totals_of(profile: Profile) -> Mapping[str, int]:
    """Return the totals of ``profile``, by their names for a person; the distinct documents are an estimate."""
    return {
        "documents": profile.documents,
        "distinct documents, about": min(profile.distinct.estimate(), profile.documents),
        "tokens": profile.totals.tokens,
        "bytes": profile.totals.num_bytes,
        "characters": profile.totals.characters,
        "rejects": sum(profile.rejects.values()),
    }


def shown_token(token: int, decode: Decode | None) -> str:
    """Return a token for a person: its text in quotes if there is a ``decode``, and its id."""
    return f"id {token}" if decode is None else f"{one_line(repr(decode(token)))} (id {token})"


def shown_value(name: str, value: float | None) -> str:
    """Return a value of the figure ``name`` in its unit."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if name in LENGTHS else f"{value:.2f}" if name in RATIOS else f"{value:.2%}"


def _quantile_rows(profile: Profile) -> list[Sequence[str]]:
    names = [name for name in (*LENGTHS, *RATIOS, *SHARES) if name in profile.histograms]
    return [
        (LABELS[name], *(shown_value(name, profile.quantile(name, share)) for share in QUANTILES)) for name in names
    ]


def _verdict_on(profile: Profile) -> str:
    rejects = sum(profile.rejects.values())
    read = profile.documents + rejects
    sentence = f"{profile.documents:,} of {counted(read, 'record')} kept ({profile.documents / max(read, 1):.1%})"
    copies = 1 - profile.distinct.estimate() / max(profile.documents, 1)
    return f"{sentence}, about {copies:.0%} of them copies of others" if copies > 3 * STANDARD_ERROR else sentence


def verdict_on(reference: ProfiledDataset, other: ProfiledDataset, figures: Sequence[Figure]) -> str:
    """Return the verdict on the comparison of two datasets as a sentence."""
    for each in (reference, other):
        if each.profile.documents < FEWEST:
            number = counted(each.profile.documents, "document")
            return f"not judged: {each.name} has {number}, and a verdict needs at least {FEWEST}"
    return sentence_of(figures)


def figures_of(reference: ProfiledDataset, other: ProfiledDataset) -> Sequence[Figure]:
    """Return the comparison of each figure, without those of tokens unless both are known to have one tokenizer."""
    return compare(reference.profile, other.profile, has_same_tokens=reference.has_tokens_of(other.tokenizer))


def note_on_tokens(reference: ProfiledDataset, other: ProfiledDataset) -> str | None:
    """Return why figures of tokens are not compared, as a sentence, None if they are."""
    if reference.has_tokens_of(other.tokenizer):
        return None
    unknown = [each.name for each in (reference, other) if each.tokenizer is None]
    why = f"the cache does not record the tokenizer of {unknown[0]}" if unknown else "the tokenizers differ"
    return f"figures of tokens are not compared: {why}"


def comparison_lines(reference: ProfiledDataset, other: ProfiledDataset, decode: Decode | None = None) -> list[str]:
    """Return the comparison of ``other`` with ``reference`` as lines, the last one with the verdict.

    ``decode`` gives the text of a token id.
    """
    figures = figures_of(reference, other)
    note = note_on_tokens(reference, other)
    rows = [("figure", "reference", "other", "measure", "distance", "noise up to", "verdict")]
    rows += [figure_row(figure, decode) for figure in figures]
    return [
        f"reference  {reference.name}: {counted(reference.profile.documents, 'document')}",
        f"other      {other.name}: {counted(other.profile.documents, 'document')}",
        "",
        *table("<>><>><", rows),
        "",
        *([] if note is None else [note]),
        verdict_on(reference, other, figures),
    ]


def figure_row(figure: Figure, decode: Decode | None = None) -> tuple[str, str, str, str, str, str, str]:
    """Return the comparison of a figure as cells of a table."""
    name = LABELS[figure.name]
    if figure.moved is not None:
        moved = shown_token(int(figure.moved), decode) if figure.name == "frequent_tokens" else one_line(figure.moved)
        name = f"{name}, most of all {moved}"
    before, after = (shown_value(figure.name, value) for value in (figure.before, figure.after))
    return name, before, after, figure.measure, f"{figure.distance:.4f}", f"{figure.noise:.4f}", figure.level


def comparison_json(reference: ProfiledDataset, other: ProfiledDataset) -> dict[str, Any]:
    """Return the comparison of ``other`` with ``reference`` as JSON."""
    figures = figures_of(reference, other)
    return {
        "reference": reference.name,
        "other": other.name,
        "same_tokenizer": reference.has_tokens_of(other.tokenizer),
        "figures": [asdict(figure) for figure in figures],
        "level": worst(figures),
        "verdict": verdict_on(reference, other, figures),
    }


def decoder_of(path: Path) -> Decode:
    """Return a function from a token id to its text, by the tokenizer.json at ``path`` or in the folder ``path``.

    Raises ``ConfigurationError`` if there is none.
    """
    from tokenizers import Tokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises Exception itself
        msg = f"{file} is no tokenizer.json that can be read: name the file or the folder of a tokenizer"
        raise ConfigurationError(msg) from error
    return lambda token: str(tokenizer.decode([token], skip_special_tokens=False))


_MOST_NAMED = 40
_BARS = 40
_WIDTH, _HEIGHT, _FOOT = 400, 150, 20

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --soft: #5c6570; --line: #d8dee4;
  --first: #2f6fbf; --second: #c2570c; --none: #2c7a4b; --minor: #8a6100; --major: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --back: #14171a; --text: #e6e9ec; --soft: #9aa4ae; --line: #343b42;
  --first: #6aa9f4; --second: #f0935a; --none: #6fcf97; --minor: #e2b84b; --major: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 2rem auto; max-width: 68rem; padding: 0 1rem; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p.verdict { font-size: 1.1rem; margin: .5rem 0 1.5rem; } .soft, figcaption { color: var(--soft); }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr)); gap: 1.5rem; }
.wide { overflow-x: auto; } figure { margin: 0; } svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font-size: 12px; } .axis { stroke: var(--line); }
.first { fill: var(--first); } .second { fill: none; stroke: var(--second); stroke-width: 2; }
.first.both { fill-opacity: .45; } .key-first { color: var(--first); } .key-second { color: var(--second); }
table { border-collapse: collapse; } th, td { padding: .25rem .9rem .25rem 0; text-align: left;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }
td { overflow-wrap: anywhere; } th { color: var(--soft); font-weight: 600; } .number { text-align: right; }
.none { color: var(--none); } .minor { color: var(--minor); font-weight: 600; }
.major { color: var(--major); font-weight: 600; }
"""


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
        _table(("", "total"), totals),
        "<h2>Distributions over documents</h2>",
        f'<div class="plots">{"".join(plots)}</div>',
    ]
    for title, by_name in counts:
        if by_name:
            ordered = sorted(by_name.items(), key=lambda each: (-each[1], each[0]))
            rows = [(name, f"{count:,}") for name, count in ordered]
            body += [f"<h2>{title}</h2>", _table(("", "documents"), rows)]
    if token_rows:
        body += ["<h2>Most frequent tokens</h2>", _table(("token", "share"), token_rows)]
    return _page(f"Profile of {dataset.name}", body)


def comparison_page(reference: ProfiledDataset, other: ProfiledDataset, decode: Decode | None = None) -> str:
    """Return the comparison of ``other`` with ``reference`` as HTML; ``decode`` gives the text of a token id."""
    figures, note = figures_of(reference, other), note_on_tokens(reference, other)
    header = ("figure", "reference", "other", "measure", "distance", "noise up to", "verdict")
    pairs = [
        (name, reference.profile.histograms[name], other.profile.histograms[name])
        for name in _FIGURES
        if name in reference.profile.histograms and name in other.profile.histograms
    ]
    keys = (("first", "reference", reference), ("second", "other", other))
    body = [
        "<h1>Comparison of two datasets</h1>",
        f'<p class="verdict {worst(figures)}">{escape(verdict_on(reference, other, figures))}</p>',
        *(
            f'<div><span class="key-{key}">&#9632;</span> {role}: {escape(each.name)}, '
            f"{counted(each.profile.documents, 'document')}, {each.profile.totals.tokens:,} tokens</div>"
            for key, role, each in keys
        ),
        "<h2>Figures</h2>",
        *([] if note is None else [f'<p class="soft">{escape(note)}</p>']),
        _table(header, [figure_row(figure, decode) for figure in figures], last_is_level=True),
        "<h2>Distributions over documents</h2>",
        f'<div class="plots">{"".join(_plot(*pair) for pair in pairs)}</div>',
    ]
    return _page("Comparison of two datasets", body)


def write_page(path: Path, page: str) -> None:
    """Write ``page`` to ``path``, replacing a file there. Raises ``StateError`` if that is not possible."""
    try:
        replace_file(path, page.encode("utf-8", "replace"))
    except OSError as error:
        msg = f"{path} cannot be written ({error.strerror}): name another file with --html"
        raise StateError(msg) from error


_FIGURES = (*LENGTHS, *RATIOS, *SHARES)


def _page(title: str, body: Sequence[str]) -> str:
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    head += f"<style>{_STYLE}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{"".join(body)}</body></html>\n'


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, last_is_level: bool = False) -> str:
    """Return a table with text in its first column and numbers in the others."""

    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = ["", *["number"] * (len(row) - 1)]
        if last_is_level:
            kinds[3] = ""
            kinds[-1] = row[-1] if tag == "td" else ""
        return "".join(f'<{tag} class="{kind}">{escape(cell)}</{tag}>' for kind, cell in zip(kinds, row, strict=True))

    lines = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{cells("th", header)}</tr></thead><tbody>{lines}</tbody></table></div>'


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
