"""A service that trains in a thread of its own, tells how far it is, and stops when asked.

python examples/embedded_service.py FOLDER [key.path=value ...]
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from holdfast import build, load_settings
from holdfast.domain.events import StepCompleted

if TYPE_CHECKING:
    from holdfast import TrainSettings
    from holdfast.domain.training.step_outcome import Progress


class TrainingService:
    """Runs one training run beside whatever else the host does; the host keeps its own signals and logging."""

    def __init__(self, settings: TrainSettings) -> None:
        self._run = build(settings, monitors=[])
        self._run.subscribe(StepCompleted, self._on_step)
        self._thread = threading.Thread(target=self._train)
        self.enough = threading.Event()
        self.last_loss = float("nan")
        self.result: Progress | Exception | None = None

    def start(self) -> None:
        """Begin to train and return."""
        self._thread.start()

    def stop(self) -> None:
        """Save, stop and wait for it."""
        self._run.request_stop("the service shuts down")
        self._thread.join()

    def _train(self) -> None:
        try:
            self.result = self._run.run()
        except Exception as error:  # noqa: BLE001  the host decides what becomes of it
            self.result = error
        finally:
            self.enough.set()

    def _on_step(self, event: StepCompleted) -> None:
        self.last_loss = event.outcome.loss
        if event.progress.step >= 3:
            self.enough.set()


def main(folder: str, *overrides: str) -> None:
    """Train for a few steps in the background, then shut down."""
    settings = load_settings([], [f"run.dir={folder}", "evaluation.at_start=false", *overrides], {}).settings
    service = TrainingService(settings)
    service.start()
    service.enough.wait()
    service.stop()
    if isinstance(service.result, Exception):
        raise service.result
    assert service.result is not None, "the run has ended"
    print(f"stopped after step {service.result.step}, loss {service.last_loss:.3f}")


if __name__ == "__main__":
    if len(sys.argv) <= 1:
        print(f"usage: python {sys.argv[0]} FOLDER [key.path=value ...]", file=sys.stderr)
        sys.exit(2)
    main(*sys.argv[1:])
