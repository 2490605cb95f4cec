"""The lease of an archive: who holds it, for how long, and what becomes of whoever lost it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path

import fsspec
import pytest

from holdfast.adapters.state_store.archive.checkpoint_archive import CheckpointArchive
from holdfast.adapters.state_store.archive.lease import ArchiveLease, held
from holdfast.domain.errors import StateError
from tests.support.archives import WatchedObjects, committed, content_of, objects_at
from tests.support.s3_server import s3_server

REPOSITORY = Path(__file__).parents[2]
YEAR = 365 * 86_400.0
ROUNDS = 5
_numbers = count()


class Clock:
    """A time that goes on when somebody sleeps."""

    def __init__(self, now: float = 1e9) -> None:
        self.now = now
        self.slept = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


NEAR = pytest.mark.parametrize("url", ["folder", "memory"], indirect=True)


@pytest.fixture(scope="module")
def server():
    with s3_server("leases") as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", server.url)  # nothing fails here, so the way round the proxy is short
        yield server


@pytest.fixture(params=["folder", "memory", "s3"])
def url(request, tmp_path):
    """Return the URL of an archive that nobody has written to."""
    if request.param == "s3":
        yield f"s3://{request.getfixturevalue('server').bucket}/run-{next(_numbers)}"
    elif request.param == "memory":
        yield f"memory:/{tmp_path}"
        fsspec.filesystem("memory").rm(str(tmp_path), recursive=True)
    else:
        yield str(tmp_path / "archive")


@pytest.fixture
def objects(url):
    return objects_at(url)


def lease_on(objects, clock, host="here", said=None, sleep=None):
    say = (said if said is not None else []).append
    return ArchiveLease(objects, say=say, clock=clock, timer=clock, sleep=sleep or clock.sleep, host=host)


def test_a_lease_that_was_given_back_is_taken_at_once(objects):
    """The next holder does not wait, and its fence is higher, however often the last one renewed."""
    clock, fences = Clock(), []
    for host in ("here", "there", "here"):
        lease = lease_on(objects, clock, host)
        assert lease.acquire()
        lease.renew()
        lease.renew()
        fences.append(lease.fence)
        lease.release()
        assert lease.fence == 0
    assert clock.slept == 0
    assert fences == sorted(set(fences))
    assert len(objects.find("lease")) <= 2


@NEAR
@pytest.mark.parametrize("ahead", [0.0, YEAR, -YEAR])
def test_a_dead_holders_lease_is_taken_when_it_has_not_changed_for_its_time(objects, ahead):
    """Whatever the clock of another host says, a lease that nobody renews is waited for as long as it lasts."""
    dead = lease_on(objects, Clock(1e9 + ahead), "there")
    dead.acquire()
    clock, said = Clock(), []
    lease = lease_on(objects, clock, said=said)
    assert lease.acquire()
    assert clock.slept == pytest.approx(60)
    assert lease.fence > dead.fence
    assert len(said) == 1
    assert "there" in said[0]


@NEAR
def test_on_the_same_host_an_expired_lease_is_taken_at_once(objects):
    """Where both read one clock, what has run out is not waited for, and what has not is only until it does."""
    clock = Clock()
    lease_on(objects, clock).acquire()
    clock.now += 50
    first = lease_on(objects, clock)
    first.acquire()
    assert clock.slept == pytest.approx(10)
    clock.now += 61
    assert lease_on(objects, clock).acquire()
    assert clock.slept == pytest.approx(10)


@NEAR
def test_a_holder_that_lives_keeps_its_lease(objects):
    """Whoever waits for a lease that is renewed meanwhile is told who holds it, and holds nothing."""
    clock = Clock()
    holder = lease_on(objects, clock)
    holder.acquire()

    def sleep(seconds):
        clock.sleep(seconds)
        holder.renew()

    waiting = lease_on(objects, clock, "there", sleep=sleep)
    with pytest.raises(StateError, match=r"held by process \d+ on here: stop that run"):
        waiting.acquire()
    with pytest.raises(StateError, match="is leased by another process"):
        waiting.renew()
    holder.renew()


@NEAR
def test_a_wait_ends_when_it_is_told_to(objects):
    """A process that must end does not wait for another's lease."""
    lease_on(objects, Clock(), "there").acquire()
    clock = Clock()
    assert not lease_on(objects, clock).acquire(should_stop=lambda: clock.slept > 5)
    assert clock.slept < 10


@NEAR
def test_whoever_slept_too_long_has_lost_it(objects):
    """A holder that comes back after another took its lease is refused, once and for all, and changes nothing."""
    clock = Clock()
    sleeper = lease_on(objects, clock)
    sleeper.acquire()
    clock.now += 100
    holder = lease_on(objects, clock)
    holder.acquire()
    for _ in range(3):
        holder.renew()
    for _ in range(2):
        with pytest.raises(StateError):
            sleeper.renew()
    assert sleeper.is_lost
    sleeper.release()
    holder.renew()
    assert not holder.is_lost


@NEAR
def test_a_term_that_is_created_too_late_holds_nothing(objects):
    """A holder that is stopped between looking and writing, and writes below another's term, notices it."""
    clock = Clock()
    watched = WatchedObjects(objects)
    sleeper = lease_on(watched, clock)
    sleeper.acquire()
    holder = lease_on(objects, clock)

    def overtake(name, key, operation):
        if name == "create" and not holder.fence:
            clock.now += 100
            holder.acquire()
            holder.renew()
            holder.renew()
        return operation()

    watched.around = overtake
    with pytest.raises(StateError, match="held by"):
        sleeper.renew()
    holder.renew()


@NEAR
def test_a_torn_term_is_waited_for(objects):
    """A term whose writer was killed in the midst of it is taken over like any other that is not renewed."""
    objects.create("lease/000000000004", b'{"holder": "b')
    clock = Clock()
    lease = lease_on(objects, clock)
    lease.acquire()
    assert (clock.slept, lease.fence) == (pytest.approx(60), 5)


@NEAR
@pytest.mark.parametrize("num_empty", [1, 1000])
def test_a_list_that_lacks_what_was_written_is_told(objects, num_empty):
    """One wrong list is asked for again; a store that lists nothing is not mistaken for another process."""
    watched, empty = WatchedObjects(objects), [[]] * num_empty

    def forget(name, _, operation):
        is_late = any(done == "create" for done, _ in watched.done)
        return empty.pop() if name == "find" and is_late and empty else operation()

    watched.around = forget
    lease = lease_on(watched, Clock())
    if num_empty == 1:
        assert lease.acquire()
        return
    with pytest.raises(StateError, match="lacks the lease that was written there just now: check the right to list"):
        lease.acquire()
    assert lease.is_lost


@NEAR
def test_an_answer_that_is_lost_loses_no_lease(objects):
    """A term that was created although nobody heard of it is the holder's own."""
    clock = Clock()
    watched = WatchedObjects(objects)
    lease = lease_on(watched, clock)

    def lose(name, _, operation):
        result = operation()
        if name == "create":
            msg = "the answer was lost"
            raise StateError(msg)
        return result

    for attempt in (lease.acquire, lease.renew):
        watched.around = lose
        with pytest.raises(StateError, match="lost"):
            attempt()
        watched.around = lambda name, key, operation: operation()
        clock.now += 1
        attempt()
    assert (lease.is_lost, clock.slept) == (False, 0)


def test_a_fenced_writer_commits_nothing(objects, tmp_path):
    """A put whose lease is another's by the time that it would commit is refused, and the copy does not count."""
    clock = Clock()
    lease, other = lease_on(objects, clock), lease_on(objects, clock)
    lease.acquire()

    def overtake():
        if not other.fence:
            clock.now += 100
            other.acquire()
        return False

    with pytest.raises(StateError, match="held by"):
        CheckpointArchive(objects, lease=lease).put(committed(tmp_path, 7), overtake)
    assert "checkpoint-7/COMMIT" not in objects.find()
    before = content_of(objects)
    for change in (lambda: CheckpointArchive(objects, lease=lease).put(committed(tmp_path, 8)), lease.release):
        try:
            change()
        except StateError as error:
            assert "is leased by another process" in str(error)  # noqa: PT017
    assert content_of(objects) == before
    archive = CheckpointArchive(objects, lease=other)
    archive.sweep()
    assert archive.put(tmp_path / "checkpoints/checkpoint-7")


@NEAR
def test_a_late_commit_of_a_fenced_writer_vouches_for_nothing(objects, tmp_path):
    """A COMMIT that arrives after its copy was swept by the next holder makes no copy, and is deleted by name."""
    clock = Clock()
    lease, other = lease_on(objects, clock), lease_on(objects, clock)
    lease.acquire()

    def overtake(name, key, operation):
        if (name, key) == ("create", "checkpoint-7/COMMIT") and not other.fence:
            clock.now += 100
            other.acquire()
            CheckpointArchive(objects, lease=other).sweep()
        return operation()

    folder = committed(tmp_path, 7)
    CheckpointArchive(WatchedObjects(objects, overtake), lease=lease).put(folder)
    archive = CheckpointArchive(objects, lease=other)
    assert archive.list() == []
    archive.delete(7)
    archive.put(folder)
    assert len(archive.list()) == 1


def test_a_lease_is_kept_by_itself(tmp_path):
    """While it is kept it is renewed in time, and given back at the end."""
    objects = objects_at(str(tmp_path))
    renewed = threading.Event()

    def tell(name, key, operation):
        result = operation()
        if name == "create" and key > "lease/000000000003":
            renewed.set()
        return result

    lease = ArchiveLease(WatchedObjects(objects, tell), say=lambda _: None, ttl=0.03)
    lease.acquire()
    with held(lease):
        assert renewed.wait(60)
    clock = Clock()
    assert lease_on(objects, clock).acquire()
    assert clock.slept == 0


@pytest.mark.parametrize("url", ["folder", "s3"], indirect=True)
def test_of_two_processes_one_gets_the_lease(url):
    """Two processes that take the lease at once, time and again, never both get it, and one always does."""
    command = [sys.executable, Path(__file__).parents[1] / "support/lease_contender.py", url]
    environment = {"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
    processes = [
        subprocess.Popen(
            command, env=os.environ | environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for number in range(ROUNDS):
            for process in processes:
                process.stdin.write(f"{number}\n")
                process.stdin.flush()
            outcomes = [json.loads(process.stdout.readline()) for process in processes]
            assert sorted(outcomes) == [False, True]
    finally:
        for process in processes:
            process.communicate()


def test_a_process_of_this_machine_that_is_gone_is_not_waited_for(tmp_path):
    """After kill -9 the same command takes over at once; where the process is another machine's, it waits."""
    script = (
        "import os, signal, sys; from tests.support.archives import objects_at\n"
        "from holdfast.adapters.state_store.archive.lease import ArchiveLease\n"
        "assert ArchiveLease(objects_at(sys.argv[1]), say=print).acquire()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    url = str(tmp_path / "archive")
    killed = subprocess.run(
        [sys.executable, "-c", script, url], env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    lease = ArchiveLease(objects_at(url), say=lambda _: None, sleep=lambda _: pytest.fail("it waited"))
    assert lease.acquire()
    other = ArchiveLease(objects_at(url), say=lambda _: None)
    assert not other.acquire(should_stop=lambda: True)  # this very process is not gone


def test_a_corrected_clock_takes_nothing(objects):
    """A clock that is put forward while another's lease is awaited shortens no wait: time is measured, not read."""
    holder = lease_on(objects, Clock(), host="there")
    assert holder.acquire()
    timer, jumped = Clock(), Clock()
    waiting = ArchiveLease(objects, say=lambda _: None, clock=jumped, timer=timer, sleep=timer.sleep, host="here")
    jumped.now += YEAR
    assert not waiting.acquire(should_stop=lambda: timer.slept > 30)
