"""Samples the use of the machine in a thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from holdfast.domain.resources.knobs import ResourceSample
    from holdfast.ports.resource_probe import ResourceProbe

_PATIENCE_SECONDS = 1.0


@final
class ResourceSampler:
    """Samples ``probe`` every ``seconds`` in a thread, so that no step waits for the operating system.

    A probe that fails is not asked again, and ``latest`` raises its error once.
    """

    def __init__(self, probe: ResourceProbe, *, seconds: float) -> None:
        self._probe = probe
        self._seconds = seconds
        self._ended = threading.Event()
        self._latest: ResourceSample | None = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._look, name="resources", daemon=True)
        self._thread.start()

    def latest(self) -> ResourceSample | None:
        """Return the newest sample, None before the first one; raises the error of the probe once."""
        if (error := self._error) is not None:  # cleared only if seen, as the thread may set it at any time
            self._error = None
            raise error
        return self._latest

    def close(self) -> None:
        """End the thread without waiting for a probe that hangs; a second call has no effect."""
        self._ended.set()
        if self._thread is None:
            self._probe.close()
        else:
            self._thread.join(_PATIENCE_SECONDS)

    def _look(self) -> None:
        try:
            while not self._ended.wait(self._seconds):
                self._latest = self._probe.sample()
        except Exception as error:  # noqa: BLE001  raised by ``latest``
            self._latest = None
            self._error = error
        finally:
            self._probe.close()
