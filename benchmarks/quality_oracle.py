"""The decisions of datatrove's filters, in a process of its own: it may have another Python than Holdfast.

Reads a JSON array a line, of the kind of rules and the texts, and writes a JSON object: ``seconds``, and ``decisions``,
each the reason for a drop or None, with the text that is left.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module

_FILTERS = {
    "gopher_quality": "GopherQualityFilter",
    "gopher_repetition": "GopherRepetitionFilter",
    "c4": "C4QualityFilter",
    "fineweb": "FineWebQualityFilter",
}


def main() -> None:
    """Answer each line."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not look like an answer
    new_document = import_module("datatrove.data").Document
    module = import_module("datatrove.pipeline.filters")
    filters = {kind: getattr(module, name)() for kind, name in _FILTERS.items()}
    for line in sys.stdin:
        kind, texts = json.loads(line)
        documents = [new_document(text=text, id="") for text in texts]
        began = time.perf_counter()
        verdicts = [filters[kind].filter(document) for document in documents]
        seconds = time.perf_counter() - began
        decisions = [
            [verdict[1] if isinstance(verdict, tuple) else None, document.text]
            for verdict, document in zip(verdicts, documents, strict=True)
        ]
        print(json.dumps({"seconds": seconds, "decisions": decisions}), file=out, flush=True)


if __name__ == "__main__":
    main()
