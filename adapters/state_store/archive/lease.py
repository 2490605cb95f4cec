"""A lease on an archive: one process at a time may write, on any store with atomic create-if-absent."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, final
from uuid import uuid4

import psutil

from holdfast.adapters.shared.files.regular_file import parse_json
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.adapters.state_store.archive.object_store import ObjectStore

_log = logging.getLogger(__name__)

_FOLDER = "lease"
_DIGITS = 12
_LOOKS = 20  # checks of another's lease within one term
_PATIENCE = 5.0  # seconds to wait for a renewal in progress when the lease is released


@final
class ArchiveLease:
    """The right to write to the archive under ``objects``, for one process at a time.

    Each term is a separate object, ``lease/<number>``, which only one process can create; the highest number is valid.
    A term lasts ``ttl`` seconds; creating the next term renews it. A process that waits for the term of another process
    observes it for ``ttl`` seconds by ``timer``, which corrections of a clock do not affect. It compares the term's end
    with ``clock`` only if the term was written on this host. It does not wait for a dead process of this machine.
    ``say`` reports a wait. Lower terms are deleted; the highest is never deleted, so that numbers only grow.
    """

    def __init__(
        self,
        objects: ObjectStore,
        *,
        say: Callable[[str], object],
        ttl: float = 60.0,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        host: str | None = None,
    ) -> None:
        self.ttl = ttl
        self._objects = objects
        self._say = say
        self._clock = clock
        self._timer = timer
        self._sleep = sleep
        self._host = host or socket.gethostname()
        self._place = pid_namespace()
        self._holder = uuid4().hex
        self._lock = RLock()
        self._number = 0
        self._fence = 0
        self._is_lost = False

    @property
    def is_lost(self) -> bool:
        """Return whether this lease was held and has been lost to another process."""
        return self._is_lost

    @property
    def fence(self) -> int:
        """Return a number that is higher than those of all earlier holders, 0 while the lease is not held."""
        return 0 if self._is_lost else self._fence

    def acquire(self, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Acquire the lease, after that of another process expires; return False if ``should_stop`` ends the wait.

        Raises ``StateError`` if another process keeps renewing it or acquires it first.
        """
        with self._lock:
            number = self._wait(should_stop)
            if number is None:
                return False
            self._fence, self._is_lost = number + 1, False
            self._begin(number + 1)
            return True

    def renew(self) -> None:
        """Start the next term; raises ``StateError`` if another process holds the lease or the store is unreachable."""
        with self._lock:
            self.confirm()
            self._begin(self._number + 1)

    def confirm(self) -> None:
        """Raise ``StateError`` if the lease is known not to be held, without asking the store."""
        if self._is_lost or not self._number:
            msg = f"{self._objects.name()} is leased by another process: stop the other run that archives there"
            raise StateError(msg)

    def release(self) -> None:
        """Release the lease, so that the next process need not wait; errors are ignored."""
        if not self._lock.acquire(timeout=_PATIENCE):
            return
        try:
            if self._number and not self._is_lost:
                with contextlib.suppress(StateError):
                    self._create(self._number + 1, expires_at=0)
            self._number = self._fence = 0
        finally:
            self._lock.release()

    def _wait(self, should_stop: Callable[[], bool]) -> int | None:
        number, term = self._highest(self._numbers())
        since, is_told = self._timer(), False
        while number and (left := self._left(term, since)) > 0:
            if should_stop():
                return None
            if not is_told:
                self._say(
                    f"{self._objects.name()} is {_held_by(term)}, whose lease may last {left:.0f} s more: waiting"
                )
                is_told = True
            self._sleep(min(left, self.ttl / _LOOKS))
            before, (number, term) = number, self._highest(self._numbers())
            if number != before:
                since = self._timer()
                if term is not None and not term.is_released:
                    raise self._is_held(term)
        return number

    def _left(self, term: LeaseRecord | None, since: float) -> float:
        if term is not None and (term.is_released or term.holder == self._holder or self._is_gone(term)):
            return 0
        left = since + self.ttl - self._timer()
        return min(left, term.expires_at - self._clock()) if term is not None and term.host == self._host else left

    def _is_gone(self, term: LeaseRecord) -> bool:
        return term.place != "" and term.place == self._place and not psutil.pid_exists(term.pid)

    def _begin(self, number: int) -> None:
        self._create(number, expires_at=self._clock() + self.ttl)
        numbers = self._numbers() or self._numbers()
        highest, term = self._highest(numbers)
        if highest < number:
            self._is_lost = True
            msg = f"the list of {self._objects.name()} lacks the lease that was written there just now: "
            msg += "check the right to list, or archive in a store whose lists are complete"
            raise StateError(msg)
        if term is None or term.holder != self._holder:  # a lower term was created too late
            self._is_lost = True
            raise self._is_held(term)
        self._number = highest
        with contextlib.suppress(StateError):  # the next term deletes them
            for old in numbers:
                if old < highest:
                    self._objects.remove(_key(old))

    def _create(self, number: int, *, expires_at: float) -> None:
        term = LeaseRecord(self._holder, self._host, os.getpid(), self._fence, expires_at, self._place)
        self._objects.create(_key(number), term.to_bytes())

    def _highest(self, numbers: Sequence[int]) -> tuple[int, LeaseRecord | None]:
        number = max(numbers, default=0)
        data = self._objects.read(_key(number)) if number else None
        return number, None if data is None else LeaseRecord.from_bytes(data)

    def _numbers(self) -> Sequence[int]:
        return [number for key in self._objects.find(_FOLDER) if (number := _number(key))]

    def _is_held(self, term: LeaseRecord | None) -> StateError:
        return StateError(f"{self._objects.name()} is {_held_by(term)}: stop that run, or archive this one elsewhere")


@contextlib.contextmanager
def held(lease: ArchiveLease) -> Iterator[None]:
    """Renew an acquired lease until it is lost, three times as often as needed, and release it at the end."""
    is_released = Event()

    def renew() -> None:
        while not is_released.wait(lease.ttl / 3):
            try:
                lease.renew()
            except StateError as error:
                if is_released.is_set():
                    return
                _log.warning("the archive's lease was not renewed: %s", error)
                if lease.is_lost:
                    return

    thread = Thread(target=renew, name="archive lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_released.set()
        lease.release()
        thread.join(_PATIENCE)


def _held_by(term: LeaseRecord | None) -> str:
    return f"held by process {term.pid} on {term.host}" if term is not None else "held by another process"


def _key(number: int) -> str:
    return f"{_FOLDER}/{number:0{_DIGITS}}"


def _number(key: str) -> int:
    digits = key.rpartition("/")[2]
    return int(digits) if len(digits) == _DIGITS and digits.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """One term of a lease, as its object says; ``fence`` is the number of its holder's first term.

    ``expires_at`` is in seconds since 1970 by the holder's clock, 0 after the release. ``place`` identifies the boot of
    the machine and the process namespace in which ``pid`` is valid, empty if unknown.
    """

    holder: str
    host: str
    pid: int
    fence: int
    expires_at: float
    place: str = ""

    @property
    def is_released(self) -> bool:
        """Return whether the holder released it."""
        return self.expires_at == 0

    def to_bytes(self) -> bytes:
        """Return the term as JSON."""
        return json.dumps(asdict(self), sort_keys=True).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> LeaseRecord | None:
        """Return the term that ``to_bytes`` wrote, None for anything else, such as an incomplete term."""
        try:
            record = parse_json(data)
            return cls(
                str(record["holder"]),
                str(record["host"]),
                int(record["pid"]),
                int(record["fence"]),
                float(record["expires_at"]),
                str(record.get("place", "")),
            )
        except (ValueError, TypeError, KeyError):
            return None


def pid_namespace() -> str:
    """Return an id of the boot and the process namespace in which a pid is valid, "" if it is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
