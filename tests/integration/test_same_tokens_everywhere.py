"""The same documents give the same tokens from every place, in every format, and through every fault."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import random
import threading
import time
from collections import Counter, deque
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.adapters.data_source.file_access import FileAccess
from holdfast.adapters.data_source.files import FilesDataSource
from holdfast.adapters.data_source.formats.compression import zstd
from holdfast.adapters.data_source.formats.records import Limits
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.application.data.lane_reader import LanePlan
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.data.streamed_batches import StreamedBatches
from holdfast.application.data.text_reader import TextReader
from holdfast.bootstrap.adapter_choice.data_sources import open_files
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.data.mixture import Mixture, Stage
from holdfast.domain.data.packing import ConcatPacking
from holdfast.domain.data.sample_order import RankShard
from holdfast.domain.errors import DataError
from holdfast.domain.fault_tolerance.restart_policy import RetryPolicy
from tests.support.encoders import BYTES
from tests.support.faulty_server import RESET, SHORTEN, STALL, TRUNCATE, Answer, Fault, faulty_server
from tests.support.s3_server import s3_server

WORDS = ["für", "四", "🙂", '"quoted"', "back\\slash", "comma,", "line\nbreak", "\ttab", "plain", "words"]
GENERATOR = random.Random(0)
TEXTS = ["<" + " ".join(GENERATOR.choices(WORDS, k=GENERATOR.randrange(1, 60))) + ">" for _ in range(24)]
SMALL = Limits(unit_bytes=1000)
PATIENT = RetryPolicy(first_delay=0.01, max_delay=0.05, deadline=20)
HASTY = RetryPolicy(first_delay=0.01, max_delay=0.05, deadline=2)


def jsonl(texts):
    return "".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(texts)).encode()


def comma_separated(texts):
    content = io.StringIO()
    csv.writer(content).writerows([("id", "text"), *enumerate(texts)])
    return content.getvalue().encode()


def parquet(texts):
    content = io.BytesIO()
    pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), content, row_group_size=3)
    return content.getvalue()


def arrow(texts):
    content = io.BytesIO()
    table = pa.table({"id": range(len(texts)), "text": texts})
    with pa.ipc.new_file(content, table.schema) as file:
        file.write_table(table, max_chunksize=3)
    return content.getvalue()


PACK = {"": bytes, ".gz": gzip.compress, ".zst": zstd.compress}
WRITE = {"jsonl": jsonl, "csv": comma_separated, "parquet": parquet, "arrow": arrow}
KINDS = [
    *((form, suffix) for form in ("txt", "jsonl", "csv") for suffix in PACK),
    *(("parquet", ""), ("arrow", "")),
]


def files_of(form, suffix):
    """Return ``TEXTS`` as files by name: in txt one a document, else two of half of them."""
    if form == "txt":
        contents = [text.encode() for text in TEXTS]
    else:
        contents = [WRITE[form](TEXTS[:10]), WRITE[form](TEXTS[10:])]
    return {f"{number:02}.{form}{suffix}": PACK[suffix](content) for number, content in enumerate(contents)}


def documents_of(paths):
    """Return how often each document stands in the files, as tokens."""
    reader = TextReader(FilesDataSource(paths, limits=SMALL), BYTES, RejectedRecords("stop"))
    groups = [group.tokens for unit in reader.source.units() for group in reader.tokens(unit)]
    pairs = [(tokens, number) for tokens in groups for number in range(len(tokens.hashes))]
    return Counter(tuple(tokens.ids[tokens.offsets[n] : tokens.offsets[n + 1]].tolist()) for tokens, n in pairs)


@pytest.fixture(scope="module")
def web():
    with faulty_server() as server:
        yield server


@pytest.fixture(scope="module")
def s3():
    with s3_server("tokens") as server:
        yield server


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("txt")
    for name, content in files_of("txt", "").items():
        (folder / name).write_bytes(content)
    return documents_of([str(folder)])


@pytest.fixture(params=["local", "s3", "http"])
def put(request, tmp_path):
    """Return what puts files into a place and returns the paths that lead to them."""
    where = request.param
    server = None if where == "local" else request.getfixturevalue({"s3": "s3", "http": "web"}[where])

    def put_files(files, folder):
        if where == "http":
            server.files.update({f"/{folder}/{name}": content for name, content in files.items()})
            return [f"{server.url}/{folder}/{name}" for name in files]
        for name, content in files.items():
            if where == "s3":
                server.put(f"{folder}/{name}", content)
            else:
                (tmp_path / name).write_bytes(content)
        return [f"s3://tokens/{folder}/*" if where == "s3" else str(tmp_path)]

    return put_files


@pytest.mark.parametrize(("form", "suffix"), KINDS, ids=lambda part: part or "plain")
def test_format_compression_and_place_change_no_token(put, expected, form, suffix):
    """Each format, plain, gzipped or zstd, on a disk, S3 and HTTP gives the documents of the local txt, as tokens."""
    files = files_of(form, suffix)
    assert documents_of(put(files, f"{form}{suffix}")) == expected
    assert expected.total() == len(TEXTS)


@pytest.fixture
def corpus(s3):
    """Return a place on S3 with six files, whose server serves well until it is told otherwise."""
    for number in range(6):
        s3.put(f"stream/{number}.jsonl", jsonl([f"{number}-{text}" for text in TEXTS]))
    s3.proxy.behave()
    answer = s3.proxy.answer
    yield s3
    s3.proxy.answer = answer
    s3.proxy.behave()


def batches_of(policy=PATIENT, stall_seconds=5.0, rejections=None):
    """Return the batches of one epoch over the six files, streamed in two lanes, as something to compare."""
    access = FileAccess(policy, stall_seconds)
    source = FilesDataSource(["s3://tokens/stream/*.jsonl"], limits=Limits(unit_bytes=3000), access=access)
    reader = TextReader(source, BYTES, rejections or RejectedRecords("stop"))
    plan = LanePlan(2, ConcatPacking(64), 2000, seed=1, epochs=1)
    streamed = StreamedBatches(
        [reader], Mixture(1, (Stage(0, (1,)),)), plan, lambda hashes: hashes >= 0, RankShard(4, 0, 1), workers=2
    )
    with contextlib.closing(streamed.batches(Cursor())) as batches:
        found = [(batch.input_ids.tolist(), batch.document_ids.tolist(), batch.cursor) for batch in batches]
    return found, source


@pytest.mark.parametrize(
    ("fault", "stall_seconds"),
    [(Fault(status=503), 5), (RESET, 5), (STALL, 0.3), (TRUNCATE, 5), (SHORTEN, 5)],
    ids=["503", "reset", "stall", "truncated", "short"],
)
def test_faults_that_pass_change_no_batch(corpus, fault, stall_seconds):
    """A stream from S3 whose every third request fails gives the batches of an undisturbed one, and counts the rest."""
    undisturbed, calm = batches_of()
    corpus.proxy.faults = deque(islice((fault if n % 3 == 2 else None for n in range(100)), 12))
    disturbed, source = batches_of(stall_seconds=stall_seconds)
    assert not corpus.proxy.faults
    assert disturbed == undisturbed
    assert calm.read_retries == 0
    if fault is RESET:
        assert source.read_retries <= 4  # s3fs repeats most of those itself
    elif fault is STALL:
        assert source.read_retries >= 4  # so short a patience ends on a busy machine, too
    else:
        assert source.read_retries == 4
    assert source.bytes_read == calm.bytes_read > 0


def tokens_of(batches):
    """Return how often each token is in the batches, padding left out."""
    rows = [row for ids, documents, _ in batches for row in zip(ids, documents, strict=True)]
    return Counter(
        token for ids, documents in rows for token, number in zip(ids, documents, strict=True) if number >= 0
    )


def encoded(texts):
    """Return how often each token is in ``texts``, the ends of text included."""
    tokenizer, texts = MemoryTokenizer(), list(texts)
    return Counter(tokenizer.encode(texts).ids.tolist()) + Counter({tokenizer.end_of_text: len(texts)})


def fail(corpus, key, status=503):
    """Make the server answer ``status`` whenever the content of ``key`` is asked for."""
    serve = corpus.proxy.answer

    def answer(handler, body):
        return Answer(status, {}, b"") if key in handler.path and handler.command == "GET" else serve(handler, body)

    corpus.proxy.answer = answer


@pytest.mark.parametrize(("status", "tries"), [(503, r"tried \d+ times"), (403, "may read it"), (404, "was removed")])
def test_a_fault_that_stays_stops_the_stream(corpus, status, tries):
    """A file that S3 goes on refusing ends the stream within the deadline, in a sentence that names it."""
    batches_of()  # a first client may take longer to make than the hasty one waits
    fail(corpus, "stream/3.jsonl", status)
    began = time.monotonic()
    with pytest.raises(DataError, match=rf"tokens/stream/3\.jsonl.*{tries}") as caught:
        batches_of(HASTY)
    assert time.monotonic() - began < HASTY.deadline + 60  # of itself a stream tries for two minutes
    assert "\n" not in str(caught.value)


def test_a_fault_that_stays_is_skipped_where_that_is_the_policy(corpus):
    """With ``skip`` the file that cannot be read is written down by name, and the documents of all others are read."""
    complete, _ = batches_of()
    fail(corpus, "stream/3.jsonl")
    written = []
    batches, _ = batches_of(HASTY, rejections=RejectedRecords("skip", written.append))
    assert {record["unit"].partition("@")[0] for record in written} == {"s3://tokens/stream/3.jsonl"}
    assert all("tried" in record["reason"] for record in written)
    assert tokens_of(complete) == encoded(f"{number}-{text}" for number in range(6) for text in TEXTS)
    assert tokens_of(batches) == encoded(f"{number}-{text}" for number in (0, 1, 2, 4, 5) for text in TEXTS)


def test_bytes_read_from_a_disk_are_counted(tmp_path):
    """A source says how many bytes it read, as they are stored."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(jsonl(TEXTS)))
    source = FilesDataSource([str(path)])
    (unit,) = source.units()
    assert source.bytes_read == 0
    assert len(list(source.read(unit))) == len(TEXTS)
    assert source.bytes_read == path.stat().st_size


def test_a_new_source_lists_anew(s3):
    """A file that came after an earlier listing of the same process is found, and a changed one has its new mark."""
    s3.put("anew/a.jsonl", jsonl(TEXTS[:1]))
    path = "s3://tokens/anew/*.jsonl"
    (earlier,) = FilesDataSource([path]).units()
    s3.put("anew/a.jsonl", jsonl(TEXTS[1:2]))
    s3.put("anew/b.jsonl", jsonl(TEXTS[2:3]))
    later = FilesDataSource([path]).units()
    assert [unit.name for unit in later] == ["s3://tokens/anew/a.jsonl", "s3://tokens/anew/b.jsonl"]
    assert later[0].etag != earlier.etag


def test_a_folder_that_cannot_be_listed_is_not_passed_over(corpus):
    """Where one of the folders that a glob matches is refused, the search ends instead of missing its files."""
    for name in ("a/1.jsonl", "b/2.jsonl"):
        corpus.put(f"closed/{name}", jsonl(TEXTS[:1]))
    path = "s3://tokens/closed/*/*.jsonl"
    assert len(FilesDataSource([path]).units()) == 2
    fail(corpus, "prefix=closed%2Fb%2F", 403)
    with pytest.raises(DataError, match=r"closed/\*/\*\.jsonl cannot be listed"):
        FilesDataSource([path]).units()


@pytest.mark.parametrize("path", ["deep/**/*.jsonl", "deep/*/*/*.jsonl", "deep"])
def test_folders_on_s3_are_searched_as_deep_as_the_path_says(s3, path):
    """Globs and folders find the files below them, however deep, but nothing that is hidden or beside them."""
    for name in ("b/c/d.jsonl", "b/e/f.jsonl", ".git/c/g.jsonl"):
        s3.put(f"deep/{name}", jsonl(TEXTS[:1]))
    s3.put("deep/b/c/i.other", b"")
    s3.put("deeper/b/c/h.jsonl", jsonl(TEXTS[:1]))
    names = [unit.name.removeprefix("s3://tokens/") for unit in FilesDataSource([f"s3://tokens/{path}"]).units()]
    assert names == ["deep/b/c/d.jsonl", "deep/b/e/f.jsonl"]


def test_a_page_of_links_is_a_folder(web):
    """A glob on HTTP finds the files that a page of links names, and asks for their sizes."""
    web.files["/pages"] = (
        b'<a href="b.jsonl">b</a> <a href="a.jsonl">a</a> <a href="c.other">c</a> <a href="../">up</a>'
    )
    web.files |= {"/pages/a.jsonl": jsonl(TEXTS[:1]), "/pages/b.jsonl": jsonl(TEXTS[1:3])}
    source = FilesDataSource([f"{web.url}/pages/*.jsonl"])
    assert [document.text for unit in source.units() for document in source.read(unit)] == TEXTS[:3]


def test_the_settings_say_how_long_a_place_may_be_silent(web):
    """``data.retry`` reaches the requests: one that stalls is made again after ``stall_seconds``, then twice that."""
    web.behave()
    web.files["/a.jsonl"] = jsonl(TEXTS)
    overrides = ["data.kind=files", f"data.path={web.url}/a.jsonl", "data.retry.stall_seconds=0.2"]
    source = open_files(load_settings([], overrides, {}).settings.data)
    (unit,) = source.units()
    web.faults = deque([STALL] * 3)  # by the default they would take longer than a read may
    assert len(list(source.read(unit))) == len(TEXTS)
    assert not web.faults
    web.behave()


def test_a_place_that_is_silent_when_files_are_looked_for_is_an_error_within_the_deadline(web):
    """A server that never answers what a file is ends the search in a sentence that names the file."""
    web.behave()
    serve, go_on = web.answer, threading.Event()
    web.answer = lambda handler, body: serve(handler, body) if go_on.wait() else None
    began = time.monotonic()
    try:
        with pytest.raises(DataError, match=r"/a\.jsonl cannot be listed \(no answer came"):
            FilesDataSource([f"{web.url}/a.jsonl"], access=FileAccess(HASTY, 0.1)).units()
        assert time.monotonic() - began < HASTY.deadline + 60
    finally:
        go_on.set()
        web.answer = serve
