"""How fast text becomes batches: Holdfast's data plane against its peers on the same text, tokenizer and row length."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.data.against import measure_against
from benchmarks.data.child import stay_here
from benchmarks.data.corpus import LENGTH, ROWS, SHARED, build_corpus
from benchmarks.data.hashing import measure_hashing
from benchmarks.data.limits import measure_growth, measure_resume, measure_s3
from benchmarks.data.plan import Plan
from benchmarks.data.speed import check_equal, measure_cached, measure_raw
from benchmarks.data.validation import measure_validation
from benchmarks.report import main
from benchmarks.smoke import has_peer, need

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.report import Figure

_COPIES, _GROWTH = 4, (1, 4, 16)
_TEXT = "the Python standard library and the PEPs" if (SHARED / "peps.jsonl.zst").exists() else "Python's library"
DESCRIPTION = (
    f"The data are JSON Lines of {_TEXT}, with one 32k byte-level BPE, rows of {LENGTH} tokens and batches of {ROWS} "
    "rows. In each round every method runs once, in a fresh process. Each value is the median of the rounds, and "
    "each ratio is the median of the ratios of the rounds. All processes use the command line's settings of the heap "
    "and libraries. Tokenizers are built before the timing starts, and have not encoded any word. 'Cold' means that "
    f"each document occurs once. 'Copies' means {_COPIES} copies of the same text, so only the first copy is cold. A "
    "batch counts when input_ids, starts and row lengths are made. Position ids, document ids and the loss mask are "
    "derived from these arrays on request, and have separate rows in the table. The first pass of litData is not "
    "timed, nor is the first pass of Holdfast. The batches of litData keep the 16-bit ids of its input, and "
    "Holdfast's ids have 64 bits. Batches are measured without prefetching, and with 4 batches prefetched in a "
    "separate thread. The better of the two counts, because there is no training step during which a thread could "
    "work. Growth is measured with a tokenizer that has already encoded the text, in files that grow; the smallest "
    "corpus is measured before and after each larger corpus. Shards have 4 MiB of text, so that there are hundreds "
    "of shards. Hashing is measured in one process for each method of reading, in passes that alternate with and "
    "without hashing; validation and profiles are measured in the same way, on records with three more fields. The S3 "
    "server is a process on this machine that only serves reads, and has the lowest priority "
    "(nice 19). The client is loaded and the files are listed before the timing starts. S3 is measured on the "
    "largest corpus, because in a smaller corpus the wait for the first batch has a larger share."
)


GROUPS: Mapping[str, Callable[[Plan], Sequence[Figure]]] = {
    "raw": measure_raw,
    "hashing": measure_hashing,
    "validation": measure_validation,
    "cached": measure_cached,
    "resume": measure_resume,
    "growth": measure_growth,
    "s3": measure_s3,
}
_NEEDED = ("datasets", "gigatoken", "tiktoken")
_PEERS = {"cached": "litdata", "s3": "obstore"}


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the figures of the groups that ``options`` ask for."""
    if options.write and (options.only or options.against):
        message = "--write puts down the whole table, so it takes neither --only nor --against"
        raise SystemExit(message)
    with tempfile.TemporaryDirectory(prefix="holdfast-benchmark-") as folder:
        if options.smoke:
            for package in _NEEDED:
                need(package, is_smoke=True)
            plan = Plan(build_corpus(Path(folder), copies=2, share=0.05), rounds=1, factors=(1, 2))
        else:
            plan = Plan(build_corpus(Path(folder), copies=_COPIES), factors=_GROWTH)
        if options.against:
            return measure_against(plan.corpus, options.against, options.pairs)
        figures = list(check_equal(plan))
        if options.smoke:
            stay_here()
        for name, measure_group in GROUPS.items():
            peer = _PEERS.get(name)
            is_possible = peer is None or has_peer(peer, is_smoke=options.smoke)
            if options.only in (None, name) and is_possible:
                print(f"measuring {name}", file=sys.stderr)
                figures += measure_group(plan)
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    """Let one group be measured, or streams and starts against an earlier commit."""
    parser.add_argument("--only", choices=GROUPS, help="measure one group")
    parser.add_argument("--against", metavar="COMMIT", help="streams and first batches in turns with that commit's")
    parser.add_argument("--pairs", type=int, default=11, metavar="N", help="pairs of --against; default: 11")


if __name__ == "__main__":
    readers = ("orjson", "obstore", "s3fs")
    packages = ("datasets", "litdata", "gigatoken", "tiktoken", "tokenizers", *readers, "torch", "numpy")
    main("data", DESCRIPTION, measure, packages, add_options=add_options)
