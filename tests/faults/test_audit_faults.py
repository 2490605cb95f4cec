"""What a crash, a full disk, another writer or another user makes of an audit file: nothing silent."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.adapters.shared.audit_log import TORN_END, AuditLog, ChainFlaw, verify_chain
from holdfast.bootstrap.run_folder.run_audit import Audit
from holdfast.domain.errors import StateError
from tests.support.file_faults import MEMORY

KEY = bytes(range(32))
WRITER = """
import itertools, sys
from pathlib import Path
from holdfast.adapters.shared.audit_log import AuditLog
log = AuditLog(Path(sys.argv[1]))
for number in itertools.count():
    log.append("CheckpointSaved", {"step": number, "location": "x" * (number % 7000)})
    print(number, flush=True)
"""


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it to write something more."""


@pytest.fixture
def path():
    with TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder) / "run/audit.jsonl"


def write(path, *steps, key=None):
    log = AuditLog(path, key=key)
    for step in steps:
        log.append("CheckpointSaved", {"step": step})
    log.close()


def records(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def fails(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def halves_then_fails(write):
    """Return a ``write`` that takes half of what it is given first, and nothing more."""
    taken = []

    def step(file, data):
        if taken:
            fails()
        taken.append(write(file, data[: len(data) // 2]))
        return taken[0]

    return step


def assert_sound(path, num_entries, key=None):
    report = verify_chain(path, key=key)
    assert (report.num_entries, report.broken) == (num_entries, None)


def test_a_changed_line_is_named(path):
    """A figure that somebody changed in the file is found, with the number of its line."""
    write(path, 1, 2, 3)
    path.write_bytes(path.read_bytes().replace(b'"step":2', b'"step":9'))
    broken = verify_chain(path).broken
    assert (broken.line, broken.flaw) == (2, ChainFlaw.CHANGED)


@pytest.mark.parametrize("key", [None, KEY])
def test_a_torn_end_is_recorded_wherever_it_was_torn(path, key):
    """However much of the last line is there, the next writer records how many bytes it had, and goes on."""
    write(path, 1, 2, 3, key=key)
    whole = path.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    for length in range(start + 1, len(whole)):
        path.write_bytes(whole[:length])
        broken = verify_chain(path, key=key).broken
        assert (broken.line, broken.flaw) == (3, ChainFlaw.TORN)
        write(path, 4, key=key)
        assert_sound(path, 4, key)
        repaired = records(path)
        assert [record["event"] for record in repaired[2:]] == [TORN_END, "CheckpointSaved"]
        assert repaired[2]["details"] == {"bytes": length - start}
    assert [place.name for place in path.parent.iterdir()] == ["audit.jsonl"]


@pytest.mark.parametrize("torn", [b"{", b"\0" * (3 << 20)])
def test_a_torn_first_line_is_recorded(path, torn):
    """A file that holds nothing but a torn line, of any length, begins with what was cut."""
    path.parent.mkdir()
    path.write_bytes(torn)
    write(path, 1)
    assert_sound(path, 2)
    assert records(path)[0]["details"] == {"bytes": len(torn)}


def test_a_repair_that_is_killed_is_done_again(path, monkeypatch):
    """Killed before any step of a repair, the torn end is still there, or what was cut is recorded."""
    steps = [(os, "write"), (os, "fsync"), (os, "pread"), (os, "open"), (Path, "replace"), (Path, "unlink")]
    for point in range(100):
        write(path, 1, 2)
        with path.open("ab") as file:
            file.write(b'{"details":{"ste')
        count = iter(range(1000))

        def killing(name, operation, count=count, point=point):
            def step(*arguments, **options):
                if next(count) == point:
                    raise Killed(name)
                return operation(*arguments, **options)

            return step

        with monkeypatch.context() as patched:
            for place, name in steps:
                patched.setattr(place, name, killing(name, getattr(place, name)))
            try:
                AuditLog(path).close()
                was_killed = False
            except Killed:
                was_killed = True
        write(path, 3)
        assert_sound(path, 4)
        assert [record["details"] for record in records(path)][2] == {"bytes": 16}
        path.unlink()
        if not was_killed:
            break
    assert 5 < point < 99


@pytest.mark.parametrize("num_entries", [0, 3, 40])
def test_what_was_acknowledged_survives_a_kill(path, num_entries):
    """After ``kill -9`` all entries that were acknowledged are there, and the next writer goes on."""
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as writer:
        acknowledged = [writer.stdout.readline() for _ in range(num_entries + 1)]
        os.kill(writer.pid, signal.SIGKILL)
        acknowledged += writer.stdout.readlines()
    write(path, -1)
    num_whole = len([line for line in acknowledged if line.endswith("\n")])
    steps = [record["details"].get("step") for record in records(path)]
    assert steps[:num_whole] == list(range(num_whole))
    assert len(steps) <= num_whole + 3
    assert_sound(path, len(steps))


def test_two_writers_are_refused(path):
    """While a log is open no other one can be, in this process or another; afterwards one can."""
    log = AuditLog(path)
    log.append("RunStarted", {})
    for _ in range(2):
        with pytest.raises(StateError, match="another process writes"):
            AuditLog(path)
    log.append("RunFinished", {})
    log.close()
    write(path, 1)
    assert_sound(path, 3)


def test_a_writer_that_repaired_still_has_the_file(path):
    """The file that a repair put in place is as closed to others as the one before it."""
    write(path, 1)
    with path.open("ab") as file:
        file.write(b"torn")
    log = AuditLog(path)
    with pytest.raises(StateError, match="another process writes"):
        AuditLog(path)
    log.close()


def test_a_file_that_was_replaced_since_it_was_opened_is_opened_again(path, monkeypatch):
    """Who opened the file just before another one's repair does not write into the one that is gone."""
    write(path, 1)
    lock = fcntl.flock
    replaced = []

    def slow(file, operation):
        if not replaced:
            replaced.append(path.rename(path.with_name("gone")))
            path.write_bytes(replaced[0].read_bytes())
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", slow)
    write(path, 2)
    assert_sound(path, 2)
    assert_sound(path.with_name("gone"), 1)


def test_a_full_disk_costs_one_entry(path):
    """An entry that the disk refuses half way is taken back whole, and the next one continues the chain."""
    log = AuditLog(path)
    log.append("CheckpointSaved", {"step": 1})
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
    try:
        with pytest.raises(StateError, match=r"audit\.jsonl"):
            log.append("CheckpointSaved", {"step": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    log.append("CheckpointSaved", {"step": 3})
    log.close()
    assert_sound(path, 2)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_an_entry_that_is_not_durable_is_taken_back(path, monkeypatch, error):
    """An entry whose sync failed or was interrupted was not acknowledged and does not stay."""
    log = AuditLog(path)
    log.append("CheckpointSaved", {"step": 1})

    def refuse(file):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        with pytest.raises((StateError, KeyboardInterrupt)):
            log.append("CheckpointSaved", {"step": 2})
    log.append("CheckpointSaved", {"step": 3})
    log.close()
    assert [record["details"]["step"] for record in records(path)] == [1, 3]
    assert_sound(path, 2)


def test_a_torn_end_is_mended_when_the_holder_leaves(path, monkeypatch):
    """An entry that a failing disk cut, and that could not be taken back, is replaced at the end of a run."""
    path.parent.mkdir()
    audit = Audit(path.parent)
    with audit.held():
        audit.record("RunStarted", {"step": 0})
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", halves_then_fails(os.write))
            patched.setattr(os, "ftruncate", fails)
            with pytest.raises(StateError, match="cannot be added"):
                audit.record("RunFinished", {"step": 1})
        assert verify_chain(path).broken.flaw == ChainFlaw.TORN
    assert_sound(path, 2)
    assert records(path)[1]["event"] == TORN_END


@pytest.mark.parametrize("end", [b"garbage\n", b"\n", b"\0" * (2 << 20) + b"\n"])
def test_a_damaged_last_line_is_not_continued(path, end):
    """A chain whose last line is not sound is refused and left as it is."""
    write(path, 1)
    with path.open("ab") as file:
        file.write(end)
    before = path.read_bytes()
    with pytest.raises(StateError, match="the last line"):
        AuditLog(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(("first", "then"), [(None, KEY), (KEY, None), (KEY, bytes(32))], ids=range(3))
def test_a_chain_has_one_key(path, first, then):
    """A file is not continued with another key than it was begun with."""
    write(path, 1, key=first)
    with pytest.raises(StateError, match="key"):
        AuditLog(path, key=then)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("place", ["audit.jsonl", "."])
def test_what_another_user_owns_is_refused(path, place):
    """Neither a file nor a folder that somebody else could change is written to."""
    write(path, 1)
    os.chown(path.parent / place, 12345, -1)
    with pytest.raises(StateError, match="another user"):
        AuditLog(path)


def test_others_cannot_read_it(path):
    """The file is this user's alone, also after a repair."""
    write(path, 1)
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open("ab") as file:
        file.write(b"torn")
    write(path, 2)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_is_not_followed(path, tmp_path):
    """A link in the place of the file leads nowhere."""
    path.parent.mkdir()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="symbolic links"):
        AuditLog(path)
    assert not (tmp_path / "elsewhere").exists()
