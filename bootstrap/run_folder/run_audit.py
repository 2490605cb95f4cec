"""The audit of a run: its writer, and the report of `audit`."""

from __future__ import annotations

import json
import logging
import os
import platform
import pwd
import sys
from contextlib import contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.audit_log import AuditLog, verify_chain
from holdfast.adapters.shared.files.file_operations import explain
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.record_file import refuse_study
from holdfast.configs.error_messages import one_line
from holdfast.configs.secret_masking import mask
from holdfast.domain.errors import StateError
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.adapters.shared.audit_log import ChainReport
    from holdfast.configs.sections.state_store import StateStoreSettings

_log = logging.getLogger(__name__)


@final
class Audit:
    """The audit of the run folder ``directory``, for several threads; records nothing if off or without the folder.

    Secrets are masked. Other processes may write there too, except during ``held``.
    """

    def __init__(self, directory: Path, *, is_on: bool = True) -> None:
        self._path = RunLayout(directory).audit
        self._is_on = is_on
        self._lock = Lock()
        self._log: AuditLog | None = None

    def record(self, event: str, details: Mapping[str, Any]) -> None:
        """Add an entry durably; raises ``StateError`` if it cannot be written."""
        if not self._is_on or not self._path.parent.is_dir():
            return
        with self._lock:
            log = self._log or AuditLog(self._path)
            try:
                log.append(event, mask({**details, "by": who()}))
            finally:
                if self._log is None:
                    log.close()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the only writer within the block; raises ``StateError`` if there is another writer."""
        log = AuditLog(self._path) if self._is_on else None
        with self._lock:
            self._log = log
        try:
            yield
        finally:
            with self._lock:
                self._log = None
                if log is not None:
                    with suppress(StateError):  # it was told when the entry failed, and the next writer tries again
                        log.mend()
                    log.close()


def who() -> Mapping[str, str]:
    """Return the user and the host of this process by the operating system, not by the environment."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without a name
        user = str(os.getuid())
    return {"user": user, "host": platform.node()}


def record_use(run: Path, event: str, details: Mapping[str, Any]) -> None:
    """Record in the audit of ``run``, if it has one, the action of a command on a checkpoint; log a failure to record.

    Such a failure does not fail the command: a training run is the only writer of its audit, and a folder may be
    read-only.
    """
    if not RunLayout(run).audit.is_file():
        return
    try:
        Audit(run).record(event, details)
    except StateError as error:
        _log.warning("this could not be recorded in the audit: %s", error)


def audit_of(directory: Path, section: StateStoreSettings) -> Audit:
    """Return the audit in the settings of a store; it is off if the store does not support one."""
    return Audit(directory, is_on=section.audit)


def audit_run(path: Path, *, as_json: bool, key: bytes | None = None, holding: str | None = None) -> bool:
    """Print and return whether the audit of ``path``, a run folder or an audit file, is intact.

    Raises ``StateError`` if there is no readable audit.
    """
    refuse_study(path)
    file = RunLayout(path).audit if path.is_dir() else path
    try:
        report = verify_chain(file, key=key, holding=holding)
    except (FileNotFoundError, NotADirectoryError) as error:
        msg = f"{one_line(str(file))} does not exist: name a run that was audited, such as runs/default"
        raise StateError(msg) from error
    except OSError as error:
        msg = f"{one_line(str(file))} cannot be read, {explain(error)}"
        raise StateError(msg) from error
    record = _record(file, report)
    text = json.dumps(record, indent=1) if as_json else "\n".join(_lines(record, is_keyed=key is not None))
    sys.stdout.write(f"{text}\n")
    return report.broken is None


def _record(file: Path, report: ChainReport) -> Mapping[str, Any]:
    broken = report.broken
    return {
        "audit": str(file),
        "sound": broken is None,
        "entries": report.num_entries,
        "first": report.first_time,
        "last": report.last_time,
        "last_hash": report.last_hash,
        "broken": broken and {"line": broken.line, "flaw": broken.flaw, "reason": broken.reason},
    }


def _lines(record: Mapping[str, Any], *, is_keyed: bool) -> Sequence[str]:
    place, num_entries, broken = one_line(record["audit"]), record["entries"], record["broken"]
    entries = counted(num_entries, "entry", "entries")
    if num_entries:
        entries += f" from {one_line(record['first'])} to {one_line(record['last'])}"
    if broken is not None:
        sentence = f"{place}: line {broken['line']:,} {one_line(broken['reason'])} ({broken['flaw']})"
        return [sentence, f"intact before it: {entries}"]
    if not num_entries:
        return [f"{place}: no entries"]
    shown = "lines cut off the end" if is_keyed else "lines cut off the end, or a rewritten file"
    return [
        f"{place}: {entries}, intact",
        f"last hash: {record['last_hash']}",
        f"a copy of that hash outside the file reveals {shown}; the file itself cannot",
    ]
