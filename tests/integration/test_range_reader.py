"""Streams over files on HTTP and S3 servers of this machine, and over file systems without an asynchronous half."""

from __future__ import annotations

import gzip
import io
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import fsspec
import pytest
from fsspec.core import url_to_fs
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.data_source.ranges import ReadCounter, open_ranges
from holdfast.domain.errors import DataError
from holdfast.domain.fault_tolerance.restart_policy import RetryPolicy
from tests.support.faulty_server import STALL, TRUNCATE, Fault, faulty_server
from tests.support.s3_server import s3_server

CONTENT = random.Random(1).randbytes(100_000)
QUICK = RetryPolicy(first_delay=0.01, max_delay=0.01, deadline=60)
HTTP = fsspec.filesystem("http")

steps = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 40_000)),
        st.tuples(st.just("seek"), st.integers(0, 110_000)),
    ),
    max_size=12,
)


def content_server():
    return faulty_server(files={"/x": CONTENT, "/empty": b""})


@pytest.fixture(scope="module")
def web():
    with content_server() as server:
        yield server


@pytest.fixture
def server():
    """Return a server of this test's own, for requests that another test gave up may still arrive."""
    with content_server() as server:
        yield server


@pytest.fixture(scope="module")
def s3():
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def memory():
    files = MemoryFileSystem()
    files.pipe_file("/ranges/x", CONTENT)
    yield files
    files.rm("/ranges", recursive=True)


def follow(stream, steps):
    """Return what the reads among ``steps`` gave, and where each step ended."""
    trace = []
    for action, number in steps:
        trace.append(stream.read(number) if action == "read" else stream.seek(number))
        trace.append(stream.tell())
    return trace


def soon(is_true):
    """Return whether ``is_true`` within some seconds."""
    end = time.monotonic() + 60
    while not is_true() and time.monotonic() < end:
        time.sleep(0.005)
    return is_true()


def range_threads():
    return {thread for thread in threading.enumerate() if thread.name == "range"}


@pytest.mark.parametrize("scheme", ["http", "memory"])
@given(
    steps=steps,
    range_bytes=st.sampled_from([1_000, 30_000, 1 << 20]),
    ahead=st.integers(0, 3),
    until=st.none() | st.integers(1, len(CONTENT)),
    start=st.none() | st.integers(0, len(CONTENT)),
)
@settings(max_examples=20, deadline=None)
def test_reads_like_a_file(web, memory, scheme, steps, range_bytes, ahead, until, start):
    """Whatever is read and wherever one seeks, the bytes and the places are those of the file on a disk."""
    files, path = (HTTP, f"{web.url}/x") if scheme == "http" else (memory, "/ranges/x")
    with open_ranges(files, path, len(CONTENT), range_bytes=range_bytes, ahead=ahead, until=until) as stream:
        if start is not None:
            stream.raw.start(start)
        steps = [("seek", start or 0), *steps]
        assert follow(stream, steps) == follow(io.BytesIO(CONTENT), steps)


def test_an_empty_file_is_read(server):
    """A file without bytes ends at once."""
    with open_ranges(HTTP, f"{server.url}/empty", 0) as stream:
        assert stream.read() == b""


def test_a_compressed_file_is_unpacked_on_the_way(server):
    """What unpacks gzip reads the stream as it reads a file."""
    server.files["/x.gz"] = packed = gzip.compress(CONTENT)
    with open_ranges(HTTP, f"{server.url}/x.gz", len(packed), range_bytes=9_999) as stream, gzip.open(stream) as plain:
        assert plain.read() == CONTENT


def test_opening_asks_for_nothing(server):
    """Before the first byte is asked for, no request is made."""
    with open_ranges(HTTP, f"{server.url}/x", len(CONTENT)):
        pass
    assert server.requests == []


@pytest.mark.parametrize("ahead", [0, 3])
def test_ranges_are_fetched_side_by_side_up_to_the_bound(server, ahead):
    """The range that is read and those ahead of it are asked for at the same time, and never more than that."""
    with open_ranges(HTTP, f"{server.url}/x", len(CONTENT), range_bytes=10_000, ahead=ahead) as stream:
        with server.closed_gate:
            reading = threading.Thread(target=stream.read, args=(1,))
            reading.start()
            assert soon(lambda: len(server.requests) > ahead)
            time.sleep(0.1)
            assert len(server.requests) == ahead + 1
        reading.join()
        stream.read()
    assert len(server.requests) == 10


def test_what_is_started_is_fetched_before_it_is_read(server):
    """The first range of a part that was started arrives meanwhile; nothing far behind the part is asked for."""
    with open_ranges(HTTP, f"{server.url}/x", len(CONTENT), range_bytes=10_000, ahead=9, until=40_000) as stream:
        stream.raw.start(20_000)
        assert soon(lambda: len(server.requests) == 1 and not server.at_once)
        stream.seek(20_000)
        assert stream.read(20_000) == CONTENT[20_000:40_000]
    assert sorted(server.requests) == ["/x bytes=20000-29999", "/x bytes=30000-49999"]


def test_bytes_and_retries_are_counted(server):
    """A counter that several streams share says how much arrived and how often it had to be asked for again."""
    server.faults.extend([TRUNCATE, Fault(status=503)])
    counter = ReadCounter()
    for _ in range(2):
        with open_ranges(HTTP, f"{server.url}/x", len(CONTENT), policy=QUICK, counter=counter) as stream:
            stream.read()
    assert (counter.bytes_read, counter.read_retries) == (2 * len(CONTENT), 2)


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_a_file_that_was_replaced_is_an_error(server, s3, scheme):
    """A file that is replaced between two of its ranges is never mixed with the new one."""

    def put(content: bytes) -> str:
        server.files["/y"] = content
        return f"{server.url}/y" if scheme == "http" else s3.put("y", content)

    files, path = url_to_fs(put(CONTENT))
    etag = files.info(path)["ETag"]
    with open_ranges(files, path, len(CONTENT), etag=etag, range_bytes=50_000, ahead=0) as stream:
        assert stream.read(50_000) == CONTENT[:50_000]
        put(CONTENT[::-1])
        with pytest.raises(DataError, match="/y was replaced"):
            stream.read()


@pytest.mark.parametrize("numbers", [{"range_bytes": 0}, {"ahead": -1}], ids=str)
def test_numbers_that_would_read_nothing_are_refused(numbers):
    """Numbers with which a file would seem empty are refused when it is opened."""
    with pytest.raises(ValueError, match="cannot be read"):
        open_ranges(HTTP, "http://place/x", 10, **numbers)


def test_a_server_that_knows_no_ranges_is_named(server):
    """A server that sends the whole file for a part of it is an error, not a wrong file."""
    server.ranges = False
    with (
        open_ranges(HTTP, f"{server.url}/x", len(CONTENT), range_bytes=10_000) as stream,
        pytest.raises(DataError, match="cannot be read in ranges"),
    ):
        stream.read()


def test_a_small_file_needs_no_ranges(server):
    """A file that fits into one range can be read from a server that knows no ranges."""
    server.ranges = False
    with open_ranges(HTTP, f"{server.url}/x", len(CONTENT)) as stream:
        assert stream.read() == CONTENT


def test_options_of_the_file_system_are_kept(server):
    """Headers that the user gave to the file system go with each range."""
    files = fsspec.filesystem("http", headers={"Range-Of": "x"})
    with open_ranges(files, f"{server.url}/x", len(CONTENT)) as stream:
        stream.read()
    assert server.headers[-1]["Range-Of"] == "x"


def test_secrets_are_not_told(server):
    """What a URL carries to prove itself is not in the message."""
    server.always = Fault(status=403)
    with (
        open_ranges(HTTP, f"{server.url}/x?sig=hush", len(CONTENT)) as stream,
        pytest.raises(DataError) as failure,
    ):
        stream.read()
    assert "hush" not in str(failure.value)


def test_closing_does_not_wait_for_a_stalled_server(server):
    """A stream whose ranges stall is closed while the server still holds them; to wait for it would take hours."""
    stream = open_ranges(HTTP, f"{server.url}/x", len(CONTENT), range_bytes=10_000, ahead=2, stall_seconds=1e5)
    stream.read(1)
    assert soon(lambda: len(server.requests) == 3 and not server.at_once)
    server.always = STALL
    stream.read(10_000)
    stream.close()


def test_another_thread_ends_a_read_that_waits(server):
    """``raw.close`` from another thread ends a read that waits for a stalled server, which would take hours."""
    server.always = STALL
    stream = open_ranges(HTTP, f"{server.url}/x", len(CONTENT), stall_seconds=1e5)
    threading.Thread(target=lambda: soon(lambda: server.at_once) and stream.raw.close()).start()
    with pytest.raises(ValueError, match="closed"):
        stream.read()


def test_no_thread_is_left_behind(memory):
    """Once a stream is closed, the threads that read ahead for it end."""
    before = range_threads()
    with open_ranges(memory, "/ranges/x", len(CONTENT), range_bytes=1_000, ahead=3) as stream:
        stream.read(1)
    assert soon(lambda: range_threads() <= before)


def test_a_file_system_without_an_asynchronous_half_cannot_hang():
    """A read that never returns is abandoned, and named when the deadline has passed."""
    released = threading.Event()

    class Stuck(MemoryFileSystem):
        protocol = "stuck"

        def cat_file(self, *_, **__):
            released.wait()

    policy = RetryPolicy(first_delay=0.01, max_delay=0.01, deadline=0.4)
    with (
        open_ranges(Stuck(), "/x", 10, policy=policy, stall_seconds=0.1) as stream,
        pytest.raises(DataError, match=r"stuck:///x cannot be read .*did not arrive"),
    ):
        stream.read()
    released.set()


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "FSSPEC_S3_ENDPOINT_URL"])
def test_the_environment_leads_to_an_s3_server(s3, variable):
    """An S3 server that is not Amazon's is reached by environment variables alone."""
    url = s3.put("found", CONTENT)
    environment = {**os.environ, variable: s3.proxy.url, "PYTHONPATH": str(Path(__file__).parents[2])}
    if variable != "AWS_ENDPOINT_URL":
        del environment["AWS_ENDPOINT_URL"]
    code = f"""
from fsspec.core import url_to_fs
from holdfast.adapters.data_source.ranges import open_ranges
files, path = url_to_fs({url!r})
print(len(open_ranges(files, path, files.info(path)["size"]).read()))
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(len(CONTENT)), done.stderr
