"""How fast text becomes batches: Holdfast's data plane against its peers on the same text, tokenizer and row length."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.data.corpus import LENGTH, ROWS, SHARED, build_corpus
from benchmarks.data.hashing import measure_hashing
from benchmarks.data.limits import measure_growth, measure_resume, measure_s3
from benchmarks.data.plan import Plan
from benchmarks.data.speed import check_equal, measure_cached, measure_raw
from benchmarks.report import main

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.report import Figure

_COPIES, _GROWTH = 4, (1, 4, 16)
_TEXT = "the Python standard library and the PEPs" if (SHARED / "peps.jsonl.zst").exists() else "Python's library"
DESCRIPTION = (
    f"JSON Lines of {_TEXT}, one 32k byte-level BPE, rows of {LENGTH} tokens, batches of {ROWS}; median of rounds in "
    "which each way takes its turn, each in a fresh process, and of the rounds' ratios. All processes have the "
    "command line's settings of heap and libraries. Tokenizers are built before "
    f"the clock starts and have met no word; 'cold' is each document once; copies are {_COPIES} times the same text, "
    "so only the first is cold. A batch counts once input_ids, starts and row lengths are made; position ids, "
    "document ids and loss mask are derived from these when asked for, and have rows of their own. litData's first "
    "pass is not counted, nor is Holdfast's, and its batches keep the 16-bit ids it was given while Holdfast's are "
    "64-bit. Batches are taken as they are made and 4 ahead, in a thread of its own: the better way counts, as no "
    "step is taken that a thread could use. Growth is measured with a tokenizer that has met the text, in files that "
    "grow, the smallest corpus before and after each other; shards have 4 MiB of text, so that there are hundreds. "
    "Hashing is measured in one process for each way of reading, passes with and without it by turns. "
    "What speaks S3 is a process of this machine that only reads, and yields to all others (nice 19); loading the "
    "client and listing come before the clock, and it is measured on the largest corpus: the wait for the first batch "
    "weighs more in a smaller one."
)


GROUPS: Mapping[str, Callable[[Plan], Sequence[Figure]]] = {
    "raw": measure_raw,
    "hashing": measure_hashing,
    "cached": measure_cached,
    "resume": measure_resume,
    "growth": measure_growth,
    "s3": measure_s3,
}


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the figures of the groups that ``options`` ask for."""
    if options.write and (options.only or options.quick):
        message = "--write puts down the whole table, so it takes neither --only nor --quick"
        raise SystemExit(message)
    with tempfile.TemporaryDirectory(prefix="holdfast-benchmark-") as folder:
        if options.quick:
            corpus = build_corpus(Path(folder), copies=2, share=0.1)
            plan = Plan(corpus, rounds=1, factors=(1, 2))
        else:
            plan = Plan(build_corpus(Path(folder), copies=_COPIES), factors=_GROWTH)
        figures = list(check_equal(plan))
        for name, measure_group in GROUPS.items():
            if options.only in (None, name):
                print(f"measuring {name}", file=sys.stderr)
                figures += measure_group(plan)
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    """Let one group be measured, or all of them quickly."""
    parser.add_argument("--only", choices=GROUPS, help="measure one group")
    parser.add_argument("--quick", action="store_true", help="little text, one round: does it work")


if __name__ == "__main__":
    readers = ("orjson", "obstore", "s3fs")
    packages = ("datasets", "litdata", "gigatoken", "tiktoken", "tokenizers", *readers, "torch", "numpy")
    main("data", DESCRIPTION, measure, packages, add_options=add_options)
