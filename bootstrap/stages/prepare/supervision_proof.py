"""The proof, before the first step, that a run trains on the tokens that it is meant to train on."""

from __future__ import annotations

import json
import os
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.files.file_operations import replace_file
from holdfast.application.data.cached_batches import CachedBatches
from holdfast.application.data.trace_samples import shown_rows
from holdfast.application.training.generate import end_ids
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.data.supervision import Supervision

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import TextIO

    from holdfast.application.data.feed import BatchStream
    from holdfast.application.data.trace_samples import ShownRow
    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.bootstrap.stages.open_run.screen import Screen
    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.tokenizer import Tokenizer

_FACT = "supervision"
_ROWS = 5
_ROWS_ON_SCREEN, _LONGEST_ON_SCREEN = 2, 800
_STREAMED_BATCHES = 4


def prove_supervision(
    settings: TrainSettings, stream: BatchStream, tokenizer: Tokenizer, sources: Sequence[str]
) -> Mapping[str, Any]:
    """Return what the rows of ``stream`` train on, as JSON: counts for each of ``sources``, sentences and some rows.

    All cached rows are counted; of a stream the first batches. Rows of encrypted tokens are not among it. Raises
    ``DataError`` if no token of a source is trained on, or every token.
    """
    found, scope = _measured(stream, sources, end_ids(tokenizer))
    for name, each in found.items():
        each.check(f" of the source {name!r}" if name and len(found) > 1 else "")
    total = sum(found.values(), Supervision())
    overflow, has_replies = settings.data.packing.overflow, settings.data.task != "text"
    return {
        "sources": {name: asdict(each) for name, each in found.items()},
        "sentences": list(total.sentences(overflow, scope, has_replies=has_replies)),
        "rows": [] if settings.data.is_encrypted else first_rows(stream, tokenizer, _ROWS),
    }


def first_rows(stream: BatchStream, tokenizer: Tokenizer, num_rows: int) -> list[ShownRow]:
    """Return the first rows of ``stream``, decoded."""
    rows: list[ShownRow] = []
    with closing(stream.batches(Cursor())) as batches:
        for batch in batches:
            rows += shown_rows(batch, tokenizer, num_rows - len(rows))
            if len(rows) == num_rows:
                break
    return rows


def keep_proof(folder: Path, proof: Mapping[str, Any]) -> None:
    """Write ``proof`` into the run folder; raises ``OSError`` if that fails."""
    replace_file(RunLayout(folder).supervision, json.dumps(proof, ensure_ascii=False).encode())


def _measured(
    stream: BatchStream, sources: Sequence[str], ends: Collection[int]
) -> tuple[Mapping[str, Supervision], str]:
    """Return the numbers of each source, and the words for the rows that were counted if they are not all."""
    if isinstance(stream, CachedBatches):
        names = sources if len(sources) == len(stream.sources) else [""] * len(stream.sources)
        measured: dict[str, Supervision] = {}
        for name, rows in zip(names, stream.sources, strict=True):
            for part in rows.parts():
                measured[name] = measured.get(name, Supervision()) + part.supervision(ends)
        return measured, ""
    with closing(stream.batches(Cursor())) as batches:
        counted = [Supervision.of_batch(batch, ends) for batch in islice(batches, _STREAMED_BATCHES)]
    return {"": sum(counted, Supervision())}, " at the beginning of the stream"


def prove_run(
    folder: SharedRunFolder,
    settings: TrainSettings,
    stream: BatchStream,
    tokenizer: Tokenizer,
    sources: Sequence[str],
    screen: Screen,
) -> None:
    """Prove before the first step of a run what it trains on, show it on ``screen``, and keep it in the run folder.

    A run is proved once, unless its data change. Raises ``DataError`` as ``prove_supervision`` does.
    """
    if folder.knows(_FACT) and not folder.num_data_changes:
        return
    folder.enter("looking at what is trained on")
    screen.show("looking at what is trained on")
    proof = prove_supervision(settings, stream, tokenizer, sources)
    folder.hold_to(_FACT, "proved", "")
    if (record := folder.record) is None:
        return
    record["supervision"] = proof["sources"]
    keep_proof(folder.path, proof)
    rows = proof["rows"][:_ROWS_ON_SCREEN]
    screen.say(*row_lines(rows, is_colored=False, longest=_LONGEST_ON_SCREEN), *proof["sentences"])


Part = tuple[str, bool]
"""A text and whether it is trained on."""

_GREEN, _DIM, _PLAIN = "\x1b[32m", "\x1b[2m", "\x1b[0m"
_BETWEEN = "-" * 8


def has_colors(stream: TextIO) -> bool:
    """Return whether ``stream`` is a terminal that shows colors, unless NO_COLOR is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def row_lines(
    rows: Sequence[Sequence[Sequence[Part]]], *, is_colored: bool, longest: int | None = None
) -> Iterator[str]:
    """Yield the lines of ``rows``, each a list of documents, each a list of parts.

    What is trained on is green if ``is_colored``, and else in double brackets. A row is cut after ``longest``
    characters. Characters that a terminal would obey are escaped.
    """
    for number, row in enumerate(rows, 1):
        yield f"row {number} of {len(rows)}, {_legend(is_colored=is_colored)}:"
        room = longest
        for place, document in enumerate(row):
            if place:
                yield _BETWEEN
            parts, room = _cut(document, room)
            shown = "".join(_marked(text, is_trained=trained, is_colored=is_colored) for text, trained in parts)
            yield from shown.removesuffix("\n").split("\n")
            if room == 0:
                yield "... (the rest of the row is not shown)"
                break


def _legend(*, is_colored: bool) -> str:
    return f"trained on what is {_GREEN}green{_PLAIN}" if is_colored else "trained on what is in [[ ]]"


def _cut(document: Sequence[Part], room: int | None) -> tuple[Sequence[Part], int | None]:
    """Return the first ``room`` characters of ``document``, and the room that is left."""
    if room is None:
        return document, None
    parts = []
    for text, is_trained in document:
        if room == 0:
            break
        parts.append((text[:room], is_trained))
        room -= len(text[:room])
    return parts, room


def _marked(text: str, *, is_trained: bool, is_colored: bool) -> str:
    shown = "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)
    if not is_colored:
        return f"[[{shown}]]" if is_trained else shown
    begin = _GREEN if is_trained else _DIM
    return "\n".join(f"{begin}{line}{_PLAIN}" if line else "" for line in shown.split("\n"))
