"""The lock that makes a process the only writer of a run folder."""

from __future__ import annotations

import json
import os
import shlex
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import psutil

from holdfast.adapters.shared.files.file_lock import lock, open_lock
from holdfast.adapters.shared.files.file_operations import explain
from holdfast.adapters.shared.files.regular_file import parse_json, read_regular, regular
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.configs.option_form import as_settings
from holdfast.configs.secret_masking import MASK, is_secret, mask_text
from holdfast.configs.strict_yaml import StrictYamlError, read_yaml
from holdfast.domain.errors import StateError

_LONGEST_COMMAND = 200
_LARGEST_PID = (1 << 31) - 1
_CLOCK_SLACK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that took the lock: its ID, its host, and the time, in seconds since 1970."""

    pid: int
    host: str
    since: float

    @classmethod
    def of_this_process(cls) -> Self:
        """Return this process as a holder from now on."""
        return cls(os.getpid(), socket.gethostname(), datetime.now(UTC).timestamp())

    def __str__(self) -> str:
        """Return a description for a person, with the beginning of the command if it can be read on this host."""
        return self.describe(_LONGEST_COMMAND)

    def describe(self, longest: int = 2**31) -> str:
        """Return a description as ``str`` does, with the first ``longest`` characters of the command."""
        since = datetime.fromtimestamp(self.since, UTC).isoformat(sep=" ", timespec="seconds")
        command, process = "", self._process()
        with suppress(psutil.Error):
            command = "" if process is None else _masked(process.cmdline())
        command = command if len(command) <= longest else f"{command[:longest]}..."
        return f"process {self.pid} on {self.host}, since {since}" + (f", started as {command}" if command else "")

    def _process(self) -> psutil.Process | None:
        """Return the process, None if it is on another host, or another one has its number now."""
        if self.host != socket.gethostname():
            return None
        with suppress(psutil.Error):
            process = psutil.Process(self.pid)
            if process.create_time() <= self.since + _CLOCK_SLACK_SECONDS:
                return process
        return None


def take_lock(folder: Path) -> int:
    """Lock ``folder``, which is created if it does not exist; return the descriptor that holds the lock until closed.

    Raises ``StateError`` if the folder cannot be used, or if another process, which the error names, holds the lock.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = open_lock(RunLayout(folder).lock)
    except OSError as error:
        msg = f"the run folder {folder} cannot be used, {explain(error)}, or choose another with run.dir"
        raise StateError(msg) from error
    try:
        lock(descriptor)
    except BlockingIOError as error:
        who = holder_of(folder)
        description = f" ({who})" if who is not None else ""
        msg = f"another process trains in {folder}{description}: wait for it, end it, or give this run another run.name"
        raise StateError(msg) from error
    except OSError as error:
        msg = (
            f"the run folder {folder} cannot be locked: {error.strerror}; choose one with run.dir "
            "on a file system that has locks, so that no second process trains in it"
        )
        raise StateError(msg) from error
    with suppress(OSError):  # the lock is what counts: a full disk only leaves it unknown who holds it
        _sign(descriptor, Holder.of_this_process())
    return descriptor


def holder_of(folder: Path) -> Holder | None:
    """Return the last process that took the lock of ``folder``, None if it is not known."""
    try:
        record = parse_json(read_regular(RunLayout(folder).lock))
        holder = Holder(int(record["pid"]), str(record["host"]), float(record["since"]))
        datetime.fromtimestamp(holder.since, UTC)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return holder if 0 < holder.pid <= _LARGEST_PID else None


def is_locked(folder: Path) -> bool:
    """Return whether a process trains in ``folder``; takes the lock for a moment if no process does.

    Raises ``StateError`` if the file of the lock cannot be opened.
    """
    if not RunLayout(folder).lock.exists():
        return False
    try:
        os.close(lock(regular(str(RunLayout(folder).lock), os.O_RDONLY), is_shared=True))
    except BlockingIOError:
        return True
    except OSError as error:
        msg = f"{RunLayout(folder).lock} cannot be opened: {error.strerror}"
        raise StateError(msg) from error
    return False


def _sign(descriptor: int, holder: Holder) -> None:
    record = {"pid": holder.pid, "host": holder.host, "since": holder.since}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(record).encode(), 0)


def _masked(command: list[str]) -> str:
    words = []
    for word in as_settings(command):
        key, equals, value = word.partition("=")
        is_hidden = equals and (is_secret(key.rpartition(".")[2]) or _holds_others(value))
        words.append(f"{key}={MASK}" if is_hidden else word)
    return " ".join(mask_text(shlex.join(words)).split())


def _holds_others(value: str) -> bool:
    """Return whether ``value`` is a mapping or a list, which may hold secrets, or is not valid YAML."""
    try:
        return isinstance(read_yaml(value), dict | list)
    except StrictYamlError:
        return True


def set_aside(path: Path) -> Path | None:
    """Rename the run folder ``path`` without deletion; return the new path, None if there was no such folder.

    Raises ``StateError`` if another process trains in it, if it is the current folder or a parent of it, or if it
    cannot be renamed.
    """
    if not path.exists():
        return None
    if path.resolve() in (Path.cwd(), *Path.cwd().parents):
        msg = f"{path} cannot be set aside: this command was started inside it; start it from another folder"
        raise StateError(msg)
    lock = take_lock(path)
    try:
        return _move_away(path)
    except OSError as error:
        msg = f"{path} cannot be set aside: {error.strerror}"
        raise StateError(msg) from error
    finally:
        os.close(lock)


def _move_away(path: Path) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    target = path.with_name(f"{path.name}.{stamp}")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.{stamp}-{number}")
    path.rename(target)
    return target
