"""What an archive holds after a kill, an error at any of its operations, and a server that fails."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.adapters.state_store.archive import object_store as checksum
from holdfast.adapters.state_store.archive.checkpoint_archive import CheckpointArchive
from holdfast.adapters.state_store.archive.lease import ArchiveLease
from holdfast.adapters.state_store.archive.local_object_store import LocalObjectStore
from holdfast.domain.errors import StateError
from tests.support.archives import FILES, QUICK, WatchedObjects, archive_of, committed, objects_at
from tests.support.faulty_server import RESET, STALL, Answer, Fault, FaultyHandler, FaultyServer
from tests.support.file_faults import MEMORY, FailAt, WatchedFiles, files_under
from tests.support.s3_server import s3_server

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "PYTHONDONTWRITEBYTECODE": "1",
}
DRIVER = str(Path(__file__).parents[1] / "support/archive_driver.py")
HASTY = replace(QUICK, deadline=0.5)
GRACE = 60  # seconds that a busy machine may take beside what is waited for
FAULTS = {
    **{f"status {status}": Fault(status=status) for status in (500, 503)},
    "reset": RESET,
}
_numbers = count()


@pytest.fixture
def tmp_path():
    with TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


def start(*arguments):
    return subprocess.Popen([sys.executable, DRIVER, *map(str, arguments)], env=os.environ | ENVIRONMENT)


def later(objects):
    """Return the archive of a process that takes the lease over when the last holder is dead."""
    hours = [0.0]
    lease = ArchiveLease(objects, say=lambda _: None, host="another", sleep=hours.append, clock=lambda: sum(hours))
    assert lease.acquire()
    return CheckpointArchive(objects, lease=lease)


def test_a_kill_at_any_file_operation_leaves_complete_copies_only(tmp_path):
    """Killed before or after any file operation, an archive in a folder holds a whole copy or none, and goes on."""
    result = subprocess.run(
        [sys.executable, DRIVER, "all", tmp_path], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    outcomes = json.loads(result.stdout)
    assert {tuple(outcome["counted"]) for outcome in outcomes} == {(), (7,)}
    for outcome in outcomes:
        assert outcome["fetched"], outcome
        assert outcome["swept"] == (["checkpoint-7", "lease"] if outcome["counted"] else ["lease"]), outcome


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
def test_a_disk_that_fails_at_any_operation_leaves_complete_copies_only(tmp_path, for_good):
    """Whichever operation fails, once or for good, the put is done or an error, and the next one is done."""
    folder = committed(tmp_path / "run", 7, {"model": b"weights", "rng/rank-00000": b"r"})
    for point in range(1000):
        root = tmp_path / f"{point}"
        root.mkdir()
        archive = archive_of(LocalObjectStore(root))
        fault = FailAt(point, 28, for_good)
        archive._objects = LocalObjectStore(root, WatchedFiles(fault))
        try:
            archive.put(folder)
        except StateError as error:
            assert "free some space" in str(error)  # noqa: PT017
            for info in CheckpointArchive(
                LocalObjectStore(root)
            ).list():  # its COMMIT could neither be synced nor deleted
                CheckpointArchive(LocalObjectStore(root)).fetch(info.progress.step, root / "draft")
        if not fault.failed:
            break
        archive._objects = LocalObjectStore(root)
        archive.put(folder)
        assert len(archive.list()) == 1
        assert set(files_under(root / "checkpoint-7")) == {"model", "rng/rank-00000", "MANIFEST.json", "COMMIT"}
    assert point > 10


def test_an_error_at_any_operation_leaves_complete_copies_only():
    """Interrupted behind any operation, a put leaves a whole copy or none, and can be repeated."""
    with TemporaryDirectory(dir=MEMORY) as scratch:
        folder = committed(Path(scratch), 7)
        for point in range(1000):
            objects = objects_at(f"memory://interrupted-{next(_numbers)}")
            archive = archive_of(objects)
            calls = count()

            def interrupt(_, __, operation, calls=calls, point=point):
                result = operation()
                if next(calls) == point:
                    raise KeyboardInterrupt
                return result

            archive._objects = WatchedObjects(objects, interrupt)
            try:
                archive.put(folder)
            except KeyboardInterrupt:
                assert len(archive.list()) == ("checkpoint-7/COMMIT" in objects.find())
            else:
                break
            archive._objects = objects
            archive.put(folder)
            archive.fetch(7, Path(scratch) / f"draft-{point}")
        assert point > 10


@pytest.fixture(scope="module")
def server():
    with s3_server("faults") as server:
        server.files().exists(server.bucket)
        objects_at(f"s3://{server.bucket}").find()
        yield server


@pytest.fixture
def failing(server, monkeypatch):
    """Return the server, whose proxy has its faults with requests that write too."""
    monkeypatch.setattr(FaultyHandler, "do_PUT", lambda self: self.answer(self.script.next_fault()))
    monkeypatch.setattr(FaultyHandler, "do_POST", lambda self: self.answer(self.script.next_fault()))
    server.proxy.behave()
    yield server
    server.proxy.behave()


@contextlib.contextmanager
def hasty(objects):
    """Have ``objects`` give up soon, and not outside the block, where a busy machine may take its time to do well."""
    patient, objects._policy = objects._policy, HASTY
    try:
        yield
    finally:
        objects._policy = patient


def unfinished(server, url):
    """Return the uploads below ``url`` that never ended; an attempt that a test gave up may begin one later."""
    inside = url.removeprefix(f"s3://{server.bucket}/")
    uploads = server.files().list_multipart_uploads(server.bucket)
    return [upload for upload in uploads if upload["Key"].startswith(f"{inside}/")]


@pytest.fixture
def url(server):
    return f"s3://{server.bucket}/run-{next(_numbers)}"


@pytest.mark.slow
def test_a_killed_upload_to_s3_is_gone_on_with(server, url, tmp_path):
    """Processes killed between any two requests leave copies that are whole or do not count, and the next goes on."""
    folder = committed(tmp_path, 7)
    points = {point: f"{url}-{point}" for point in (13, 20, 26, 30)}
    children = [start("put", place, folder, point) for point, place in points.items()]
    assert [child.wait(60) for child in children] == [-signal.SIGKILL] * len(points)
    for place in points.values():
        objects = WatchedObjects(objects_at(place))
        assert CheckpointArchive(objects).list() == []
        there = {key for key in objects.find("checkpoint-7") if key.removeprefix("checkpoint-7/") in FILES}
        archive = later(objects)
        archive.put(folder)
        assert set(objects.called("upload")).isdisjoint(there)
        archive.fetch(7, tmp_path / place.rpartition("/")[2])


def test_a_killed_upload_in_parts_leaves_nothing(server, url, tmp_path, monkeypatch):
    """The parts that a killed process has brought to S3 are deleted by the next sweep."""
    folder = committed(tmp_path, 7, {"model": bytes(11 << 20)})
    assert start("parts", url, folder).wait(60) == -signal.SIGKILL
    assert len(unfinished(server, url)) == 1
    archive = later(objects_at(url))
    assert archive.list() == []
    archive.sweep()
    assert unfinished(server, url) == []
    monkeypatch.setattr(checksum, "_PART", 5 << 20)
    assert archive.put(folder)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_faults_that_pass_hurt_nothing(failing, url, tmp_path, fault):
    """A server that fails every other request for a while gets the copy, and gives it back."""
    archive = archive_of(objects_at(url))
    failing.proxy.faults = deque([None, fault] * 12)
    archive.put(committed(tmp_path / "run", 7))
    assert not failing.proxy.faults
    archive.fetch(7, tmp_path / "draft")
    assert (tmp_path / "draft/model").read_bytes() == FILES["model"]


@pytest.mark.parametrize("fault", [Fault(status=503), STALL], ids=["status 503", "stall"])
def test_a_fault_that_stays_is_an_error_within_the_deadline(failing, url, tmp_path, fault):
    """A server that goes on failing is told by name when the time is over, and no copy counts."""
    folder = committed(tmp_path, 7)
    objects = objects_at(url)
    archive = archive_of(objects)
    failing.proxy.always = fault
    start = time.monotonic()
    told = pytest.raises(StateError, match=rf"{url}/lease/\d+ could not be written .*check the archive's URL")
    with hasty(objects), told:
        archive.put(folder)
    assert time.monotonic() - start < HASTY.deadline + GRACE
    failing.proxy.behave()
    assert archive.list() == []


def test_a_server_that_fails_in_the_midst_keeps_what_it_has(failing, url, tmp_path):
    """A put that gave up behind a file goes on behind that file."""
    objects = WatchedObjects(objects_at(url))
    archive = archive_of(objects)
    folder = committed(tmp_path, 7)

    def give_up(name, _, operation):
        if len(objects.called("upload")) < 3:
            return operation()
        failing.proxy.always = Fault(status=503)
        with hasty(objects.objects):
            return operation()

    objects.around = give_up
    with pytest.raises(StateError, match="could not be uploaded"):
        archive.put(folder)
    failing.proxy.behave()
    brought = set(objects.called("upload")[:2])
    objects.around = lambda name, key, operation: operation()
    objects.done.clear()
    archive.put(folder)
    assert brought.isdisjoint(objects.called("upload"))
    archive.fetch(7, tmp_path / "draft")


def test_answers_that_are_lost_hurt_nothing(failing, url, tmp_path, monkeypatch):
    """A server that does what it is asked and resets the connection, each time once, gets one whole copy."""
    seen = set()
    answer = FaultyServer.answer

    def lose(script, handler, body):
        answered = answer(script, handler, body)
        if handler.command == "PUT" and handler.path not in seen:
            seen.add(handler.path)
            return Answer(500, {}, b"")
        return answered

    monkeypatch.setattr(FaultyServer, "answer", lose)
    archive = archive_of(objects_at(url))
    archive.put(committed(tmp_path, 7))
    assert len(seen) > len(FILES) + 2
    archive.fetch(7, tmp_path / "draft")


def test_an_error_in_the_body_of_a_good_status_is_an_error(failing, url, tmp_path, monkeypatch):
    """S3 may answer 200 to the end of an upload in parts and say in the body that it failed: then nothing counts."""
    monkeypatch.setattr(checksum, "_PART", 5 << 20)
    answer = FaultyServer.answer
    body_of_error = b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>no</Message></Error>"

    def fail(script, handler, body):
        if handler.command == "POST" and "uploadId" in handler.path:
            return Answer(200, {"Content-Type": "application/xml"}, body_of_error)
        return answer(script, handler, body)

    monkeypatch.setattr(FaultyServer, "answer", fail)
    objects = objects_at(url)
    monkeypatch.setattr("holdfast.adapters.state_store.archive.remote_object_store._SLOWEST", 100 << 20)

    def try_not_for_long(name, _, operation):
        with hasty(objects) if name == "upload" else contextlib.nullcontext():
            return operation()

    archive = archive_of(WatchedObjects(objects, try_not_for_long))
    folder = committed(tmp_path, 7, {"model": bytes(11 << 20)})
    with pytest.raises(StateError, match="model could not be uploaded"):
        archive.put(folder)
    assert archive.list() == []
    while unfinished(failing, url):  # the last attempt may be on its way still
        archive.sweep()
    assert (folder / "model").stat().st_size == 11 << 20


@pytest.mark.parametrize("lasts", [False, True], ids=["once", "for good"])
def test_a_short_object_never_counts(server, url, tmp_path, lasts):
    """An object of which the store has only half is uploaded again; if that does not help there is no copy."""
    files = server.files()
    objects = WatchedObjects(objects_at(url))
    archive = archive_of(objects)

    def halve(name, key, operation):
        result = operation()
        if name == "upload" and key.endswith("model") and (lasts or objects.called("upload").count(key) == 1):
            files.pipe_file(f"{url}/{key}", FILES["model"][:100])
        return result

    objects.around = halve
    folder = committed(tmp_path, 7)
    if lasts:
        with pytest.raises(StateError, match=r"model differs from .* after each upload"):
            archive.put(folder)
        assert archive.list() == []
        assert (folder / "model").read_bytes() == FILES["model"]
    else:
        archive.put(folder)
        archive.fetch(7, tmp_path / "draft")
        assert (tmp_path / "draft/model").read_bytes() == FILES["model"]
