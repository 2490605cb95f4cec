"""What a stream of batches holds on to while it runs: memory, open files, threads."""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

REPOSITORY = Path(__file__).parents[2]
UNITS = 36
WORDS = ["the", "model", "reads", "text", "and", "learns", "to", "say", "what", "comes", "next", "in", "small", "steps"]
MEBIBYTE = 1 << 20


def write_corpus(folder):
    """Write jsonl, jsonl.gz and parquet files, enough of them for several lanes."""
    chance = random.Random(0)
    for number in range(UNITS):
        texts = [" ".join(chance.choices(WORDS, k=chance.randrange(5, 400))) for _ in range(60)]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
        match number % 3:
            case 0:
                (folder / f"{number:03}.jsonl").write_bytes(lines)
            case 1:
                (folder / f"{number:03}.jsonl.gz").write_bytes(gzip.compress(lines))
            case _:
                parquet.write_table(pa.table({"text": texts}), folder / f"{number:03}.parquet", row_group_size=20)


def watched_stream(folder, seconds, between):
    """Stream ``folder`` for so long in a process of its own; return time, memory, open files and threads in rows."""
    ended = subprocess.run(
        [sys.executable, __file__, folder, str(seconds), str(between)],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONMALLOC": "malloc"},  # one allocator for all, which can be asked to keep nothing
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["batches"] > 10 * seconds
    assert report["epochs"] >= 2
    return np.array(report["samples"], float).T


def slope_of(seconds, values):
    """Return by how much ``values`` grow in a minute."""
    return float(np.polyfit(seconds, values, 1)[0]) * 60


def check(samples, warm_up, most_a_minute):
    seconds, memory, files, threads = samples[:, samples[0] >= warm_up]
    growth = slope_of(seconds, memory)
    figures = (
        f"{memory[0] / MEBIBYTE:.1f} MiB at {seconds[0]:.0f} s, {memory[-1] / MEBIBYTE:.1f} MiB at {seconds[-1]:.0f} s,"
        f" {growth / 1e6:+.3f} MB a minute; files {min(files):.0f} to {max(files):.0f}; threads {set(threads)}"
    )
    sys.stdout.write(f"{figures}\n")
    assert growth < most_a_minute, figures
    # a reader that goes from one file to the next holds none for a moment, and one file of each lane at most
    assert max(files) <= max(samples[2][samples[0] < warm_up]) + 2, figures
    assert np.median(files[-len(files) // 3 :]) <= np.median(files[: len(files) // 3]) + 1, figures
    assert len(set(threads)) == 1, figures


@pytest.mark.slow
def test_a_stream_holds_on_to_nothing(tmp_path):
    """Over many epochs of three formats in several lanes, threads and open files stay as many, and memory stays."""
    write_corpus(tmp_path)
    check(watched_stream(tmp_path, 8, 0.05), warm_up=3, most_a_minute=40e6)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_stream_of_three_minutes_holds_on_to_nothing(tmp_path):
    """After the first minute, memory grows by less than 1 MB a minute, open files and threads by none."""
    write_corpus(tmp_path)
    check(watched_stream(tmp_path, 180, 0.25), warm_up=60, most_a_minute=1e6)


def stream(folder, seconds, between):
    """Print what this process holds while it takes batches for so many seconds."""
    import psutil

    from holdfast.adapters.data_source.files import FilesDataSource
    from holdfast.adapters.document_encoder.text import TextDocumentEncoder
    from holdfast.adapters.tokenizer.memory import MemoryTokenizer
    from holdfast.application.data.feed import Feed
    from holdfast.application.data.lane_reader import LanePlan
    from holdfast.application.data.rejected_records import RejectedRecords
    from holdfast.application.data.streamed_batches import StreamedBatches
    from holdfast.application.data.text_reader import TextReader
    from holdfast.domain.data.holdout import Holdout
    from holdfast.domain.data.mixture import Mixture, Stage
    from holdfast.domain.data.packing import BestFitPacking
    from holdfast.domain.data.sample_order import RankShard, choose_lanes

    source = FilesDataSource([folder])
    lanes = choose_lanes(len(source.units()))
    assert lanes > 4, lanes
    reader = TextReader(source, TextDocumentEncoder(MemoryTokenizer()), RejectedRecords("stop"))
    plan = LanePlan(lanes, BestFitPacking(256), 20_000, 0, None)
    holdout = Holdout(0.1, 0)
    mixture = Mixture(0, (Stage(0, (1,)),))
    stream = StreamedBatches([reader], mixture, plan, lambda hashes: ~holdout.holds(hashes), RankShard(8), workers=2)
    feed = Feed(stream, prefetch=3)
    process, samples, batches = psutil.Process(), [], 0
    give_back = ctypes.CDLL(None).malloc_trim
    began = sampled = time.monotonic()
    while (now := time.monotonic()) - began < seconds:
        batch = feed.next()
        batches += 1
        if now - sampled >= between:
            sampled = now
            give_back(0)  # what was freed long ago else comes and goes in steps of 1 to 2 MiB, as the allocator likes
            memory = process.memory_info()
            own = memory.rss - memory.shared  # pages of files go and come back as the system likes
            samples.append([now - began, own, process.num_fds(), process.num_threads()])
    feed.close()
    epochs = min(lane.epoch for lane in batch.cursor.lanes)
    sys.stdout.write(json.dumps({"batches": batches, "epochs": epochs, "samples": samples}))


if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY))
    stream(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
