"""Performs checks in threads with a time limit, so that neither an error nor a dead file system ends the report."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from holdfast.bootstrap.doctor.finding import Check, Finding, bad, failed

if TYPE_CHECKING:
    from collections.abc import Sequence


def perform_together(checks: Sequence[Check]) -> list[Finding]:
    """Return the findings of all ``checks`` in their order; all run at once, each within its own time limit.

    A check that takes longer is left alone in its thread; the findings that it had until then count.
    """
    running = [_Running(check) for check in checks]
    return [finding for each in running for finding in each.findings()]


def perform_in_turn(checks: Sequence[Check]) -> list[Finding]:
    """Return the findings of ``checks``, each of which begins after the one before, so that they do not compete."""
    return [finding for check in checks for finding in perform_together([check])]


class _Running:
    def __init__(self, check: Check) -> None:
        self._check = check
        self._found: list[Finding] = []
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._look, name=f"holdfast-{check.name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the memory limit leaves no room for another thread
            self._look()

    def findings(self) -> list[Finding]:
        """Wait for the rest of the time limit; return the findings until then."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, self._began + self._check.seconds - time.monotonic()))
        found = [*self._found]
        if self._thread.is_alive():
            detail = f"no answer within {self._check.seconds:g} s"
            remedy = "check whether a disk, file system or server that it needs hangs; --timeout allows more time"
            found.append(bad(self._check.name, detail, remedy))
        return found

    def _look(self) -> None:
        try:
            for finding in self._check.look():
                self._found.append(finding)  # one by one, as the reader may not wait for the last
        except Exception as error:  # noqa: BLE001  any error of a check is a finding
            self._found.append(failed(self._check.name, error))
