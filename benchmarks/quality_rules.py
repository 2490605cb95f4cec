"""The quality rules against datatrove's filters: equal decisions, and documents a second, by turns."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.data.corpus import SHARED
from benchmarks.report import Figure, interval_of_median, main
from benchmarks.smoke import need
from holdfast.adapters.data_source.formats.compression import unpacked
from holdfast.adapters.transform.c4 import C4Transform
from holdfast.adapters.transform.fineweb import FinewebTransform
from holdfast.adapters.transform.gopher_quality import GopherQualityTransform
from holdfast.adapters.transform.gopher_repetition import GopherRepetitionTransform
from holdfast.ports.transform import Dropped, Record, RecordTransform

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

_DOCUMENTS, _NOISE, _FEW, _A_TURN = 10_000, 1_000, 20, 220
_CHARACTERS = 1_250  # after which a paragraph ends a document
_GOAL = 10
_RULES: dict[str, RecordTransform] = {
    "gopher_quality": GopherQualityTransform(),
    "gopher_repetition": GopherRepetitionTransform(),
    "c4": C4Transform(),
    "fineweb": FinewebTransform(),
}
# our names of the rules by datatrove's, where they differ
_NAMES = {
    "gopher_short_doc": "too_short",
    "gopher_long_doc": "too_long",
    "gopher_below_avg_threshold": "short_words",
    "gopher_above_avg_threshold": "long_words",
    "gopher_too_many_hashes": "too_many_hashes",
    "gopher_too_many_ellipsis": "too_many_ellipses",
    "gopher_too_many_bullets": "too_many_bullets",
    "gopher_too_many_end_ellipsis": "too_many_ellipsis_lines",
    "gopher_below_alpha_threshold": "too_few_alphabetic_words",
    "gopher_enough_stop_words": "too_few_stop_words",
    "dup_para_frac": "duplicate_paragraphs",
    "dup_para_char_frac": "duplicate_paragraph_characters",
    "dup_line_frac": "duplicate_lines",
    "dup_line_char_frac": "duplicate_line_characters",
    **{f"duplicated_{n}_n_grams": f"duplicate_{n}_grams" for n in range(5, 11)},
    "line_punct_ratio": "too_few_ended_lines",
    "short_line_ratio": "too_many_short_lines",
    "char_dup_ratio": "repeated_lines",
    "list_ratio": "too_many_lines",
}


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Return for each kind of rules how many decisions differ, and the rates."""
    if options.smoke:
        _apply_alone(noise(_FEW))
        if options.oracle == sys.executable:
            need("datatrove", is_smoke=True)
    texts = [*noise(_FEW)] if options.smoke else [*_real(options.documents), *noise(_NOISE)]
    random.Random(0).shuffle(texts)  # noqa: S311 - the same order each time
    turns = [texts[first : first + _A_TURN] for first in range(0, len(texts), _A_TURN)]
    with _oracle(options.oracle) as oracle:
        return [figure for kind in _RULES for figure in _compared(kind, turns, oracle)]


def _apply_alone(texts: Sequence[str]) -> None:
    for rule in _RULES.values():
        assert len(rule.apply([Record(text) for text in texts])) == len(texts)


def noise(number: int) -> Sequence[str]:
    """Return texts like those of web pages: menus, repeated lines, lists, code, other scripts, marks and links."""
    chance = random.Random(1)  # noqa: S311 - the same texts each time
    sentences = (
        "We use cookies to make this site better for you.",
        "Read more...",
        "The cat sat on the mat, and then it left.",
        "\u2022 Home | About | Contact",
        "- 12 items (see below):",
        "def f(x): return {x: 1}",
        "#python #data #news",
        "Visit https://www.example.org/a?b=1 or mail me@example.org!",
        "lorem ipsum dolor sit amet, of that.",
        "\u4eca\u65e5\u306f\u826f\u3044\u5929\u6c17\u3067\u3059\u306d\u3002",
        "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! 5\u043a\u043c.",
        "It's 10km from here, isn't it? I'd've gone (maybe :-) tomorrow).",
        "Please enable JavaScript to go on.",
        "Paris[1] is the capital[citation needed] of France.",
        "Price: $1,299.99 / \u20ac5.00 \u2013 50% off!!!",
        '"Stop!" she said. "You can\'t do that." He could; they\'d be there by 5p.m. on Mt. Hood.',
        "\U0001f600\U0001f44d ok \u2026",
    )
    texts = []
    for _ in range(number):
        chosen = chance.choices(sentences, k=chance.randint(2, 6))
        lines = [" ".join(chance.choices(chosen, k=chance.randint(1, 4))) for _ in range(chance.randint(1, 60))]
        texts.append(chance.choice(["\n", "\n\n", "\r\n", "  \n"]).join(lines))
    return texts


def _real(folder: Path) -> Sequence[str]:
    with (folder / "peps.jsonl.zst").open("rb") as packed:
        proposals = [json.loads(line)["text"] for line in unpacked(packed, "zst")]
    texts = []
    for proposal in proposals:
        paragraphs: list[str] = []
        for paragraph in proposal.split("\n\n"):
            paragraphs.append(paragraph)
            if sum(map(len, paragraphs)) > _CHARACTERS:
                texts.append("\n\n".join(paragraphs))
                paragraphs = []
        if paragraphs:
            texts.append("\n\n".join(paragraphs))
    return random.Random(0).sample(texts, _DOCUMENTS)  # noqa: S311 - the same texts each time


@contextmanager
def _oracle(python: str) -> Iterator[subprocess.Popen[str]]:
    command = [python, str(Path(__file__).with_name("quality_oracle.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _compared(kind: str, turns: Sequence[Sequence[str]], oracle: subprocess.Popen[str]) -> Sequence[Figure]:
    rates: list[tuple[float, float]] = []
    different = []
    for number, texts in enumerate([turns[0], *turns]):  # the first turn warms up
        took = {}
        for is_ours in (True, False) if number % 2 else (False, True):
            if is_ours:
                records = [Record(text) for text in texts]
                began = time.perf_counter()
                results = _RULES[kind].apply(records)
                took[True] = time.perf_counter() - began
            else:
                answer = _asked(oracle, kind, texts)
                took[False] = answer["seconds"]
        if number:
            rates.append((len(texts) / took[True], len(texts) / took[False]))
            expected = [_expected(kind, *decision) for decision in answer["decisions"]]
            pairs = zip(map(_found, results), expected, texts, strict=True)
            different += [(found, wanted, text) for found, wanted, text in pairs if found != wanted]
    for found, wanted, text in different:
        print(f"{kind}: {found!r:.200}, datatrove {wanted!r:.200}: {text!r:.200}", file=sys.stderr)
    count = sum(map(len, turns))
    middle, low, high = interval_of_median([ours / theirs for ours, theirs in rates])
    ours, theirs = (interval_of_median(values)[0] for values in zip(*rates, strict=True))
    return [
        Figure(f"{kind}: decisions that differ, of {count}", str(len(different)), "0", not different, is_equality=True),
        Figure(f"{kind}: documents a second, Holdfast", f"{ours:,.0f}"),
        Figure(f"{kind}: documents a second, datatrove", f"{theirs:,.0f}"),
        Figure(
            f"{kind}: Holdfast / datatrove, median of {len(rates)} pairs [95 % interval]",
            f"{middle:.1f}x [{low:.1f}, {high:.1f}]",
            f">= {_GOAL}x",
            low >= _GOAL,
        ),
    ]


def _asked(oracle: subprocess.Popen[str], kind: str, texts: Sequence[str]) -> dict[str, Any]:
    assert oracle.stdin is not None
    assert oracle.stdout is not None
    print(json.dumps([kind, texts]), file=oracle.stdin, flush=True)
    answer: dict[str, Any] = json.loads(oracle.stdout.readline())
    return answer


def _expected(kind: str, reason: str | None, text: str) -> tuple[str, str]:
    return ("", text) if reason is None else (f"{kind}.{_NAMES.get(reason, reason)}", "")


def _found(result: Record | Dropped) -> tuple[str, str]:
    return (result.reason, "") if isinstance(result, Dropped) else ("", result.text)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--documents", type=Path, default=SHARED, help="the folder of peps.jsonl.zst")
    parser.add_argument("--oracle", default=sys.executable, help="a Python that has datatrove and spacy")


if __name__ == "__main__":
    main(
        "quality_rules",
        "The quality rules with their default thresholds against the filters of datatrove 0.10.1, on 10,000 documents "
        "made of paragraphs of the PEPs and 1,000 like web pages. Both take turns of 220 documents, each in one "
        "process with one thread; the one that begins alternates. A decision is the rule that drops a document, or the "
        "text that is left.",
        measure,
        ("numpy",),
        add_options=_add_options,
    )
