"""A ledger that never waits for its database: calls go to files first, and a thread passes them on."""

from __future__ import annotations

import json
import math
import struct
import threading
import time as clock
import zlib
from collections import deque
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, final

import numpy as np
from typing_extensions import override

from holdfast.adapters.ledger.attempts import check_record
from holdfast.adapters.shared.files.file_operations import explain, replace_file
from holdfast.adapters.shared.files.regular_file import read_regular
from holdfast.domain.data.batch import Spans, UnitName
from holdfast.domain.errors import StateError
from holdfast.ports.ledger import CheckpointRecord, Ledger, Rejects, StepRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.ports.ledger import SourceCount, StepTaken

_SUFFIX = ".call"
_DAMAGED = ".damaged"
_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 15.0


@final
class SpillingLedger(Ledger):
    """Writes each call to a file in ``folder``, and passes the files on to ``inner`` in their order, in a thread.

    A call returns when its file is durable: it survives the end of the process and a power cut. A file is removed when
    ``inner`` has recorded it, so the files that an earlier process left are passed on first, and a call that is passed
    on twice changes nothing. If ``inner`` fails, the thread tries again until it succeeds. ``report`` gets a sentence
    when the ledger falls behind, and one when it has caught up. A damaged file is set aside and reported.

    If the disk refuses a file, the call raises ``StateError`` and waits in memory with the later ones, ``most_waiting``
    of them at most; they are written when the disk accepts them. ``flush`` and ``close`` wait up to
    ``patience_seconds``; the files that remain after ``close`` are passed on by the next process.
    """

    def __init__(
        self,
        inner: Ledger,
        folder: Path,
        *,
        report: Callable[[str], object],
        patience_seconds: float = 20.0,
        most_waiting: int = 1000,
    ) -> None:
        self._inner = inner
        self._folder = folder
        self._report = report
        self._patience = patience_seconds
        self._most_waiting = most_waiting
        self._unwritten: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._using = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        for draft in folder.glob(f".*{_SUFFIX}.new"):  # of a process that was killed in the middle of a write
            draft.unlink(missing_ok=True)
        self._files = deque(sorted(path for path in folder.glob(f"*{_SUFFIX}") if path.stem.isdecimal()))
        last = self._files[-1] if self._files else None
        self._next = 0 if last is None else int(last.stem) + 1
        self._failure: str | None = None
        self._closing = self._hurries = False
        self._thread = threading.Thread(target=self._pass_on, name="ledger", daemon=True)
        self._thread.start()

    @override
    def begin_run(self, run: str, details: Mapping[str, object], time: float) -> None:
        self._spill("begin_run", run, dict(details), time)

    @override
    def end_run(self, run: str, state: str, time: float) -> None:
        self._spill("end_run", run, state, time)

    @override
    def record(self, run: str, steps: StepRecords, spans: Spans) -> None:
        check_record(steps, spans)
        self._spill("record", run, steps, spans)

    @override
    def roll_back(self, run: str, to_step: int) -> None:
        self._spill("roll_back", run, to_step)

    @override
    def reject(self, run: str, rejects: Rejects) -> None:
        self._spill("reject", run, rejects)

    @override
    def checkpoint(self, run: str, saved: CheckpointRecord) -> None:
        self._spill("checkpoint", run, saved)

    @override
    def flush(self) -> None:
        self._write_waiting()
        if not self._wait(self._patience):
            raise StateError(self._behind())

    @override
    def close(self) -> None:
        if self._closing:
            return
        try:
            self._write_waiting()
        finally:
            patience = self._patience if self._failure is None else min(self._patience, _FIRST_WAIT_SECONDS)
            if not self._wait(patience):
                self._report(f"{self._behind()}; they are passed on when the run is started again")
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            self._thread.join(self._patience)
            if not self._thread.is_alive():
                self._inner.close()

    @override
    def steps(self, run: str) -> StepRecords:
        with self._using:
            return self._inner.steps(run)

    @override
    def documents_in(self, run: str, step: int) -> Spans:
        with self._using:
            return self._inner.documents_in(run, step)

    @override
    def steps_with(self, document: int) -> Sequence[StepTaken]:
        with self._using:
            return self._inner.steps_with(document)

    @override
    def source_counts(self, run: str, epoch: int) -> Mapping[str, SourceCount]:
        with self._using:
            return self._inner.source_counts(run, epoch)

    @override
    def rejected(self, run: str) -> Rejects:
        with self._using:
            return self._inner.rejected(run)

    @override
    def checkpoints(self, run: str) -> Sequence[CheckpointRecord]:
        with self._using:
            return self._inner.checkpoints(run)

    def _spill(self, method: str, *arguments: Any) -> None:
        content = encode(LedgerCall(method, arguments))
        if len(self._unwritten) >= self._most_waiting:
            self._write_waiting()
        self._unwritten.append(content)
        self._write_waiting()

    def _write_waiting(self) -> None:
        while self._unwritten:
            path = self._folder / f"{self._next:012}{_SUFFIX}"
            try:
                replace_file(path, self._unwritten[0])
            except OSError as error:
                msg = f"the ledger's files in {self._folder} cannot be written, {explain(error)}"
                raise StateError(msg) from error
            self._unwritten.popleft()
            self._next += 1
            with self._changed:
                self._files.append(path)
                self._changed.notify_all()

    def _wait(self, seconds: float) -> bool:
        """Wait until all files are passed on, and let the thread try again at once; return whether they are."""
        end = clock.monotonic() + seconds
        with self._changed:
            self._hurries = True
            self._changed.notify_all()
            while self._files and not self._closing:
                left = end - clock.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
            return not self._files

    def _behind(self) -> str:
        reason = self._failure or "the database has not answered in time"
        return f"{len(self._files)} calls of the ledger wait in {self._folder}, because {reason}"

    def _pass_on(self) -> None:
        wait = _FIRST_WAIT_SECONDS
        while True:
            with self._changed:
                while not self._files and not self._closing:
                    self._changed.wait()
                if self._closing:
                    return
                path = self._files[0]
            try:
                self._pass_file(path)
            except Exception as error:  # noqa: BLE001  the next attempt may succeed, whatever it was
                self._fall_behind(error)
                with self._changed:
                    self._changed.wait_for(lambda: self._closing or self._hurries, wait)
                    self._hurries = False
                wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
            else:
                wait = _FIRST_WAIT_SECONDS

    def _pass_file(self, path: Path) -> None:
        try:
            call = decode(read_regular(path))
        except (StateError, FileNotFoundError) as error:
            self._report(f"a call of the ledger is lost: {path} cannot be used, {error}")
            if path.exists():
                path.rename(path.with_suffix(_DAMAGED))
        else:
            with self._using:
                call.apply(self._inner)
            path.unlink(missing_ok=True)
        with self._changed:
            self._files.popleft()
            caught_up = self._failure is not None and not self._files
            if caught_up:
                self._failure = None
            self._changed.notify_all()
        if caught_up:
            self._report("the ledger has caught up: all steps are recorded in it")

    def _fall_behind(self, error: Exception) -> None:
        is_new, self._failure = self._failure is None, str(error) or type(error).__name__
        if is_new:
            self._report(f"the ledger is behind: {self._failure}; training continues, and its records wait on the disk")


_MAGIC = b"HFLEDGER1\n"
_LENGTH = struct.Struct("<I")
_DTYPES = {np.dtype(name).str: np.dtype(name) for name in ("<i8", "<u8", "<f8")}
_RECORDS = {kind.__name__: kind for kind in (StepRecords, Spans, Rejects, CheckpointRecord)}
_METHODS = ("begin_run", "end_run", "record", "roll_back", "reject", "checkpoint")


@dataclass(frozen=True, slots=True, eq=False)
class LedgerCall:
    """A call of the ledger's ``method``, which records something, with its arguments."""

    method: str
    arguments: tuple[Any, ...]

    def apply(self, ledger: Ledger) -> None:
        """Make the call."""
        getattr(ledger, self.method)(*self.arguments)


def encode(call: LedgerCall) -> bytes:
    """Return ``call`` as the bytes of a file."""
    arrays: list[np.ndarray[Any, Any]] = []
    record = {"method": call.method, "arguments": [_packed(value, arrays) for value in call.arguments]}
    header = json.dumps(record | {"arrays": [[array.dtype.str, len(array)] for array in arrays]}).encode()
    body = b"".join([_MAGIC, _LENGTH.pack(len(header)), header, *(array.tobytes() for array in arrays)])
    return body + _LENGTH.pack(zlib.crc32(body))


def decode(content: bytes) -> LedgerCall:
    """Return the call that ``encode`` described; raises ``StateError`` if a byte of it is missing or different."""
    body, checksum = content[: -_LENGTH.size], content[-_LENGTH.size :]
    if not body.startswith(_MAGIC) or checksum != _LENGTH.pack(zlib.crc32(body)):
        msg = "its bytes are not those that were written"
        raise StateError(msg)
    place = len(_MAGIC) + _LENGTH.size
    end = place + _LENGTH.unpack_from(body, len(_MAGIC))[0]
    record = json.loads(body[place:end])
    if record["method"] not in _METHODS:
        msg = f"it has a call {record['method']}, which this version of Holdfast does not know"
        raise StateError(msg)
    arrays = []
    for dtype, length in record["arrays"]:
        arrays.append(np.frombuffer(body, _DTYPES[dtype], length, end))
        end += arrays[-1].nbytes
    return LedgerCall(record["method"], tuple(_unpacked(value, arrays) for value in record["arguments"]))


def _packed(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    if isinstance(value, np.ndarray):
        little = value.astype(value.dtype.newbyteorder("<"), copy=False)
        arrays.append(little if little.dtype.str in _DTYPES else little.astype("<i8"))
        return {"array": len(arrays) - 1}
    if type(value).__name__ in _RECORDS:
        return {type(value).__name__: [_packed(getattr(value, field.name), arrays) for field in fields(value)]}
    if isinstance(value, float) and not math.isfinite(value):
        msg = f"the ledger cannot record the time {value}"
        raise StateError(msg)
    return {"json": value}


def _unpacked(value: dict[str, Any], arrays: list[np.ndarray[Any, Any]]) -> Any:
    ((kind, content),) = value.items()
    if kind == "array":
        return arrays[content]
    if kind == "json":
        return content
    names = [field.name for field in fields(_RECORDS[kind])]
    values = dict(zip(names, (_unpacked(one, arrays) for one in content), strict=True))
    for name in ("rule", "reason"):
        values |= {name: tuple(values[name])} if isinstance(values.get(name), list) else {}
    if "units" in values:
        values["units"] = tuple(UnitName(*unit) for unit in values["units"])
    return _RECORDS[kind](**values)
