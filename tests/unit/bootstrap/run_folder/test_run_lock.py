"""Who writes in a run folder."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.bootstrap.run_folder.folder import RunFolder
from holdfast.bootstrap.run_folder.run_lock import holder_of, is_locked
from holdfast.domain.errors import StateError


@pytest.mark.parametrize(
    "hidden",
    [
        ["model.hf_token=hush", "data.path=s3://me:hush@bucket"],
        ["--tokenizer.options.api_key", "hush", "--tokenizer.options.api-key=hush"],
        ["monitors=[{kind: w, options: {api_key: hush}}]", "tokenizer.options={api_key: hush"],
        ["tokenizer.options=\n  api_key: hush"],
    ],
)
def test_a_second_start_is_told_who_holds_the_folder(tmp_path, hidden):
    """Another process is refused with the number, the host, the time and the command of the one that trains."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[4])}
    program = tmp_path / "hold.py"
    program.write_text(
        "import sys; from pathlib import Path; from holdfast.bootstrap.run_folder.folder import RunFolder\n"
        "held = RunFolder(Path(__file__).parent); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, str(program), "run.name=mine", *hidden]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StateError) as refused:
            RunFolder(tmp_path)
        holder.stdin.close()
    told = str(refused.value)
    assert f"another process trains in {tmp_path} (process {holder.pid} on {socket.gethostname()}, since 20" in told
    assert "run.name=mine" in told
    assert "hush" not in told


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"pid": 1}'])
def test_a_lock_without_a_name_still_holds(tmp_path, content):
    """A lock of an earlier version, or one that was cut short, refuses a second start without naming anybody."""
    with closing(RunFolder(tmp_path)):
        (tmp_path / "LOCK").write_bytes(content)
        assert holder_of(tmp_path) is None
        with pytest.raises(StateError, match=r"another process trains in [^()]*: wait for it"):
            RunFolder(tmp_path)


@pytest.mark.parametrize("since", ["NaN", "1e300", "-1e18", "Infinity", "1000.0"])
@pytest.mark.parametrize("pid", ["-1", "0", "1e300", "Infinity", str(1 << 70)])
def test_a_damaged_lock_names_nobody(tmp_path, since, pid):
    """Numbers that no process and no time have are taken for nobody."""
    for number, time in ((pid, "1000.0"), (str(os.getpid()), since)):
        (tmp_path / "LOCK").write_text(f'{{"pid": {number}, "host": "{socket.gethostname()}", "since": {time}}}')
        holder = holder_of(tmp_path)
        assert holder is None or "since 1970" in str(holder)
        assert holder is None or (number, time) == (str(os.getpid()), "1000.0")


def test_nobody_is_named_for_who_has_the_number_now(tmp_path):
    """The command of a process that began after the lock was taken is not told as that of the holder."""
    (tmp_path / "LOCK").write_text(f'{{"pid": {os.getpid()}, "host": "{socket.gethostname()}", "since": 1000.0}}')
    assert (
        str(holder_of(tmp_path)) == f"process {os.getpid()} on {socket.gethostname()}, since 1970-01-01 00:16:40+00:00"
    )


def test_the_lock_goes_with_its_holder(tmp_path):
    """A folder whose holder has closed it, or never was held, is free."""
    assert not is_locked(tmp_path)
    with closing(RunFolder(tmp_path)):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)
    RunFolder(tmp_path).close()


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    """A folder that cannot be locked is refused for that reason, not because of another process."""

    def no_locks(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(StateError, match=r"cannot be locked: No locks available; choose one with run\.dir") as refused:
        RunFolder(tmp_path)
    assert "another process" not in str(refused.value)
