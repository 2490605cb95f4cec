"""A trial that this process trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.domain.tuning.search_space import Value
    from holdfast.domain.tuning.trial import TrialEnd, TrialVerdict


class TrialRun(Protocol):
    """The training of one trial, which no other process trains as long as this object is open."""

    def start(self, parameters: Mapping[str, Value]) -> None:
        """Begin to train, or continue, with ``parameters``."""

    def measurements(self) -> Sequence[tuple[int, float]]:
        """Return the steps and values of the evaluations since the last call; at first those of all starts.

        Raises ``TrainingError`` if the evaluations do not measure what the study asks for.
        """

    def answer(self, verdict: TrialVerdict) -> None:
        """Pass on the study's answer to an evaluation; one that was passed on before changes nothing."""

    def poll(self) -> TrialEnd | None:
        """Do what is due; return the end of the trial, None while it is not there.

        Raises ``TrainingError`` if training failed for a reason that other trials would meet too.
        """

    def request_stop(self, number: int | None = None) -> None:
        """Ask the training to save and end, as by the signal ``number``; the trial can be continued later."""

    def has_stopped(self) -> bool:
        """Return whether nothing is trained here any more; ends by force what does not end in time after a stop."""
        ...

    def close(self) -> None:
        """End what still trains, by force, and let other processes train the trial; may be called twice."""


class StudyWatcher(Protocol):
    """The receiver of what happens to the trials of this process."""

    def on_begin(self, number: int, parameters: Mapping[str, Value]) -> None:
        """Receive the parameters of a trial that begins or continues."""

    def on_measurement(self, number: int, step: int, value: float, verdict: TrialVerdict) -> None:
        """Receive the evaluation of a trial, and its verdict."""

    def on_end(self, number: int, end: TrialEnd) -> None:
        """Receive the end of a trial, which is recorded."""
