"""The cost of validation and of profiles: passes with and without them alternate in one process."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from benchmarks.data.child import measure_apart
from benchmarks.data.corpus import texts_of
from benchmarks.data.tokenizer import NewTokenizer
from benchmarks.data.work import batches_of, open_cache, stream_of
from benchmarks.report import Figure, interval_of_median
from holdfast.adapters.data_source.files import FilesDataSource
from holdfast.adapters.document_encoder.text import TextDocumentEncoder
from holdfast.adapters.shared.device.host_memory import usable_cpus
from holdfast.application.data.pretokenize import PrepareTokens
from holdfast.application.data.record_pipeline import RecordPipeline
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.data.text_reader import TextReader
from holdfast.bootstrap.stages.identify.record_pipeline import build_validation, sample_texts
from holdfast.configs.sections.data import FilesDataSettings
from holdfast.domain.data.profile import ProfileBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.data.plan import Plan
    from holdfast.ports.tokenizer import Tokenizer

_PAIRS = 30
_LARGE_SHARD = 48 << 20  # bytes, for two shards of the corpus; those of data above 2 GiB have 64 MiB
_WHAT = {
    "stream": "raw to batches, with a schema and outliers",
    "cache": "raw to the cache on disk, with a schema and outliers",
    "profile": "raw to the cache on disk, in the shards of large data, with profiles",
}
_VALIDATION = {
    "fields": {
        "text": {"type": "text", "required": True, "min_length": 1, "max_length": 100_000_000},
        "id": {"type": "text", "pattern": r"\S"},
        "lang": {"one_of": ["en", "de"]},
        "year": {"type": "integer", "min": 1900, "max": 2100},
    },
    "outliers": {
        "length": {"zscore": 50, "on_violation": "warn"},
        "symbols": {"zscore": 50, "on_violation": "warn"},
        "repetition": {"quantiles": [0.0, 1.0], "on_violation": "warn"},
    },
}


def measure_validation(plan: Plan) -> Sequence[Figure]:
    """Measure the rate of a pass over the copies with validation or profiles, as a share of the rate without."""
    figures = []
    folder = _with_fields(Path(plan.corpus.many), plan.corpus.folder / "records")
    for mode, what in _WHAT.items():
        how = {"folder": str(folder), "tokenizer": plan.corpus.tokenizer, "mode": mode}
        pairs = measure_apart("validation.alternate", pairs=_PAIRS if plan.rounds > 1 else 2, **how)["time"]
        middle, low, high = interval_of_median([without / with_it for with_it, without in pairs])
        name = f"{what}, gigatoken: rate / rate without, median of {len(pairs)} pairs [95 % interval]"
        least = 0.98 if mode == "profile" else 0.9
        goal = f">= {least:g} (the interval reaches it)"
        figures.append(Figure(name, f"{middle:.3f} [{low:.3f}, {high:.3f}]", goal, high >= least))
    return figures


def _with_fields(texts: Path, records: Path) -> Path:
    """Write the records of ``texts`` with an id, a language and a year into ``records``."""
    records.mkdir()
    for path in sorted(texts.iterdir()):
        with path.open("rb") as lines, (records / path.name).open("wb") as file:
            for number, line in enumerate(lines):
                fields = {"id": f"{path.stem}-{number}", "lang": "en", "year": 1990 + number % 30}
                file.write(orjson.dumps({**fields, **orjson.loads(line)}) + b"\n")
    return records


def alternate(folder: str, tokenizer: str, mode: str, pairs: int) -> dict[str, Any]:
    """Measure passes in ``mode`` with validation or profiles and without; which of the two is first alternates."""
    encoder = NewTokenizer(tokenizer, "gigatoken")
    encoder.encode(list(texts_of(folder)))
    times: list[tuple[float, float]] = []
    for number in range(pairs + 1):
        found = {}
        for is_used in (True, False) if number % 2 else (False, True):
            reader = _reader(folder, encoder, is_checked=is_used and mode != "profile")
            began = time.perf_counter()
            _pass(reader, mode, is_profiled=is_used and mode == "profile")
            found[is_used] = time.perf_counter() - began
        if number:  # the first pair warms up
            times.append((found[True], found[False]))
    return {"time": times}


def _reader(folder: str, encoder: Tokenizer, *, is_checked: bool) -> TextReader:
    source = FilesDataSource([folder])
    if not is_checked:
        return TextReader(source, TextDocumentEncoder(encoder), RejectedRecords("stop"))
    data = FilesDataSettings.model_validate({"path": (folder,), "validation": _VALIDATION})
    validation = build_validation(data, lambda: sample_texts(source), None)
    assert validation is not None, "the settings validate"
    checked = source.with_fields([name for name in _VALIDATION["fields"] if name != "text"])
    return TextReader(checked, TextDocumentEncoder(encoder), RejectedRecords("stop"), RecordPipeline([], validation))


def _pass(reader: TextReader, mode: str, *, is_profiled: bool) -> None:
    if mode == "stream":
        for _ in batches_of(stream_of(reader, ".")):
            pass
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-validation-") as folder:
        cache = open_cache(str(Path(folder) / "cache"))
        profile = ProfileBuilder if is_profiled else None
        shard_bytes = _LARGE_SHARD if mode == "profile" else None
        rejected = RejectedRecords("stop")
        PrepareTokens(
            reader, cache, rejected, shard_bytes=shard_bytes, workers=usable_cpus(), new_profile=profile
        ).run()
