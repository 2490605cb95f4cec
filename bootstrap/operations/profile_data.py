"""Profiles of the datasets in a token cache, and their comparison, for a person."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.process.text_table import table
from holdfast.configs.error_messages import one_line
from holdfast.domain.data.drift import FEWEST, LABELS, compare, sentence_of, worst
from holdfast.domain.data.profile import LENGTHS, RATIOS, SHARES, STANDARD_ERROR
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.bootstrap.stages.prepare.named_version import ProfiledDataset
    from holdfast.domain.data.drift import Figure
    from holdfast.domain.data.profile import Profile

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
