"""The contract of ``Monitor``."""

from __future__ import annotations

import math
import tempfile
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.ports.monitor import EndState, NoteKind, RunDescription, Tracker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.ports.monitor import Monitor

_VALUES = st.floats() | st.integers(-(2**53), 2**53)
_NAMES = (
    st.sampled_from(["loss", "tokens", "tokens_per_second", "memory_bytes", "eval_loss", "step", "step_"]) | st.text()
)
_RECORDS = st.lists(st.tuples(st.integers(0, 2**40), st.dictionaries(_NAMES, _VALUES, max_size=4)), max_size=8)
_NOT_FINITE: list[tuple[int, dict[str, float]]] = [
    (1, {"loss": math.nan, "tokens": math.nan, "tokens_per_second": math.inf, "memory_bytes": -math.inf}),
    (2, {"loss": math.inf, "tokens": -math.inf, "grad_norm": -math.inf}),
    (2, {"eval_loss": math.nan, "eval_bits_per_byte": math.inf}),
]


class MonitorContract(ABC):
    """The contract of every ``Monitor``; derive a class named ``Test...`` for an adapter.

    ``open_monitor`` of a tracker calls ``begin``, with a description of the same run each time. ``is_prompt`` says
    whether a call takes milliseconds: a tracker may wait for a server. ``forgets`` says whether ``rewind`` can remove
    records; ``outlives`` says whether a monitor that is opened later on the same folder can remove them too.
    """

    is_prompt: ClassVar[bool] = True
    forgets: ClassVar[bool] = True
    outlives: ClassVar[bool] = True

    @abstractmethod
    def open_monitor(self, folder: Path) -> Monitor:
        """Return a monitor that keeps its records in ``folder``, together with those of earlier monitors there."""

    @abstractmethod
    def recorded(self, monitor: Monitor, folder: Path) -> Iterable[tuple[int, Mapping[str, float]]] | None:
        """Return the content of the sink, in any order, or None if the sink cannot be read back."""

    def as_kept(self, value: float) -> float:
        """Return ``value`` with the precision of the sink."""
        return value

    @pytest.fixture
    def monitor(self, tmp_path: Path) -> Iterable[Monitor]:
        """Yield a monitor on a fresh folder."""
        monitor = self.open_monitor(tmp_path)
        yield monitor
        monitor.close()

    def test_a_record_is_visible_after_close(self, monitor: Monitor, tmp_path: Path) -> None:
        """``close`` makes all records visible."""
        monitor.record(1, {"loss": 3.5, "tokens": 1024})
        monitor.close()
        assert self._figures(monitor, tmp_path) == self._expected([(1, {"loss": 3.5, "tokens": 1024})])

    @given(records=_RECORDS)
    @example(records=_NOT_FINITE)
    @settings(
        max_examples=25, deadline=None, suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow]
    )
    def test_any_name_any_float_any_order(self, records: list[tuple[int, dict[str, float]]]) -> None:
        """Any names and any floats are kept, and the steps may come in any order."""
        with tempfile.TemporaryDirectory() as name:
            monitor = self.open_monitor(Path(name))
            for step, metrics in records:
                monitor.record(step, metrics)
            monitor.close()
            kept = self.recorded(monitor, Path(name))
            assert kept is None or _flat(kept) == self._expected(records)

    def test_a_record_without_figures_is_taken(self, monitor: Monitor, tmp_path: Path) -> None:
        """A record without metrics is accepted and adds none."""
        monitor.record(1, {})
        monitor.close()
        assert self._figures(monitor, tmp_path) == []

    def test_closing_twice_is_harmless(self, monitor: Monitor, tmp_path: Path) -> None:
        """The second ``close`` changes nothing."""
        monitor.record(1, {"loss": 2.0})
        monitor.close()
        monitor.close()
        assert self._figures(monitor, tmp_path) == self._expected([(1, {"loss": 2.0})])

    def test_a_record_after_close_is_ignored(self, monitor: Monitor, tmp_path: Path) -> None:
        """``record`` after ``close`` raises nothing and records nothing."""
        monitor.record(1, {"loss": 2.0})
        monitor.close()
        monitor.record(2, {"loss": 1.0})
        assert self._figures(monitor, tmp_path) == self._expected([(1, {"loss": 2.0})])

    def test_closing_a_monitor_that_was_never_used(self, monitor: Monitor, tmp_path: Path) -> None:
        """A monitor that is closed before its first record has recorded nothing."""
        monitor.close()
        assert self._figures(monitor, tmp_path) == []

    def test_rewind_forgets_later_steps_only(self, monitor: Monitor, tmp_path: Path) -> None:
        """``rewind`` removes later steps, recorded in any order, and keeps its own step and earlier steps."""
        self._needs(self.forgets)
        for step in (0, 5, 2, 3, 4):
            monitor.record(step, {"loss": float(step)})
        monitor.rewind(3)
        monitor.close()
        assert self._figures(monitor, tmp_path) == self._expected([(step, {"loss": float(step)}) for step in (0, 2, 3)])

    def test_a_step_that_is_taken_again_stands_there_once(self, monitor: Monitor, tmp_path: Path) -> None:
        """A step that is recorded again after ``rewind`` is stored once."""
        self._needs(self.forgets)
        for step in (1, 2, 3):
            monitor.record(step, {"loss": float(step)})
        monitor.rewind(1)
        monitor.record(2, {"loss": 20.0})
        monitor.close()
        assert self._figures(monitor, tmp_path) == self._expected([(1, {"loss": 1.0}), (2, {"loss": 20.0})])

    def test_a_new_run_starts_from_nothing(self, monitor: Monitor, tmp_path: Path) -> None:
        """``rewind(0)`` removes all records, also those of step 0, because a new run measures them again."""
        self._needs(self.forgets)
        for step in (0, 1, 2):
            monitor.record(step, {"loss": float(step)})
        monitor.rewind(0)
        monitor.record(0, {"loss": 7.0})
        monitor.close()
        assert self._figures(monitor, tmp_path) == self._expected([(0, {"loss": 7.0})])

    def test_rewind_reaches_an_earlier_process(self, monitor: Monitor, tmp_path: Path) -> None:
        """``rewind`` removes later steps that an earlier monitor recorded, and keeps the other steps."""
        self._needs(self.outlives)
        for step in (1, 2, 3):
            monitor.record(step, {"loss": float(step)})
        monitor.close()
        later = self.open_monitor(tmp_path)
        later.rewind(2)
        later.record(3, {"loss": 30.0})
        later.close()
        expected = [(1, {"loss": 1.0}), (2, {"loss": 2.0}), (3, {"loss": 30.0})]
        assert self._figures(later, tmp_path) == self._expected(expected)

    def test_rewind_of_an_empty_sink_is_harmless(self, monitor: Monitor, tmp_path: Path) -> None:
        """``rewind`` of a sink without records raises nothing."""
        monitor.rewind(0)
        monitor.record(1, {"loss": 1.0})
        monitor.close()
        assert self._figures(monitor, tmp_path) == self._expected([(1, {"loss": 1.0})])

    def test_another_thread_than_that_of_its_creation_calls_it(self, monitor: Monitor, tmp_path: Path) -> None:
        """A monitor is created in one thread, and all its methods are called from another thread."""
        with ThreadPoolExecutor(1) as pool:
            pool.submit(monitor.rewind, 0).result()
            pool.submit(monitor.record, 1, {"loss": 2.0}).result()
            pool.submit(monitor.close).result()
        assert self._figures(monitor, tmp_path) == self._expected([(1, {"loss": 2.0})])

    def test_many_calls_take_less_than_a_minute(self, monitor: Monitor) -> None:
        """Ten thousand records of eight metrics take less than a minute, also on a busy machine."""
        self._needs(self.is_prompt)
        figures = {f"figure_{number}": float(number) for number in range(6)} | {"loss": 1.0, "tokens": 5.0}
        start = time.perf_counter()
        for step in range(10_000):
            monitor.record(step, figures)
        assert time.perf_counter() - start < 60.0

    def _needs(self, ability: bool) -> None:  # noqa: FBT001
        if not ability:
            pytest.skip("this sink does not promise it")

    def _figures(self, monitor: Monitor, folder: Path) -> list[tuple[int, str, str]]:
        records = self.recorded(monitor, folder)
        if records is None:
            pytest.skip("this sink cannot be read back")
        return _flat(records)

    def _expected(self, records: Iterable[tuple[int, Mapping[str, float]]]) -> list[tuple[int, str, str]]:
        kept = [(step, {name: self.as_kept(value) for name, value in metrics.items()}) for step, metrics in records]
        return _flat(kept)


def described(folder: Path) -> RunDescription:
    """Return a description of a run in ``folder``, the same at each call."""
    return RunDescription(
        run_id="5e1f0c3a9b7d4e2f8a6c1d0b3e5f7a92",
        name="a run",
        folder=folder,
        settings={"run": {"name": "a run", "seed": 0}, "monitors": [{"kind": "jsonl"}], "note": None},
        data={"books": "v1", "": "v0"},
        environment={"host": "here", "versions": {"torch": "2"}, "processors": 2},
        num_ranks=2,
    )


class TrackerContract(MonitorContract):
    """The contract of every ``Tracker``; derive a class named ``Test...`` for an adapter.

    ``is_prompt`` is False unless the class says otherwise.
    """

    is_prompt: ClassVar[bool] = False

    @abstractmethod
    def new_tracker(self, folder: Path) -> Tracker:
        """Return a tracker for a run in ``folder`` that has not begun."""

    @abstractmethod
    def noted(self, tracker: Tracker, folder: Path) -> Iterable[tuple[int, str]] | None:
        """Return the step and the text of each note of a closed tracker, or None if they cannot be read back."""

    def open_monitor(self, folder: Path) -> Tracker:
        """Return a tracker that has begun."""
        tracker = self.new_tracker(folder)
        tracker.begin(described(folder))
        return tracker

    @pytest.mark.parametrize("kind", list(NoteKind))
    @pytest.mark.parametrize(
        "text", ["rolled back to step 3", "", "two\nlines, a tab\t, <b>markup</b>, ünï, 漢, \x00."]
    )
    def test_a_note_is_visible_after_close(self, tmp_path: Path, kind: NoteKind, text: str) -> None:
        """``note`` accepts any text, which is visible after ``close`` except for characters that the sink refuses."""
        tracker = self.open_monitor(tmp_path)
        tracker.note(3, kind, text)
        tracker.close()
        notes = self.noted(tracker, tmp_path)
        if notes is None:
            pytest.skip("this sink cannot be read back")
        assert [(step, found.replace("\x00", "")) for step, found in notes if text] == (
            [(3, text.replace("\x00", ""))] if text else []
        )

    def test_flush_keeps_the_records(self, tmp_path: Path) -> None:
        """Records before and after a ``flush`` are each recorded once."""
        tracker = self.open_monitor(tmp_path)
        tracker.record(1, {"loss": 3.0})
        tracker.flush()
        tracker.record(2, {"loss": 2.0})
        tracker.close()
        assert self._figures(tracker, tmp_path) == self._expected([(1, {"loss": 3.0}), (2, {"loss": 2.0})])

    @pytest.mark.parametrize("state", list(EndState))
    def test_a_run_that_ended_continues(self, tmp_path: Path, state: EndState) -> None:
        """A later start of the same run adds to the records of the first, however that start ended."""
        self._needs(self.outlives)
        tracker = self.open_monitor(tmp_path)
        tracker.record(1, {"loss": 3.0})
        tracker.finish(state)
        tracker.close()
        later = self.open_monitor(tmp_path)
        later.rewind(1)
        later.record(2, {"loss": 2.0})
        later.finish(EndState.FINISHED)
        later.close()
        assert self._figures(later, tmp_path) == self._expected([(1, {"loss": 3.0}), (2, {"loss": 2.0})])

    def test_a_tracker_that_never_began_can_be_closed(self, tmp_path: Path) -> None:
        """``close`` without ``begin`` raises nothing and records nothing."""
        tracker = self.new_tracker(tmp_path)
        tracker.close()
        assert self._figures(tracker, tmp_path) == []


def _flat(records: Iterable[tuple[int, Mapping[str, float]]]) -> list[tuple[int, str, str]]:
    # ``repr`` makes not-a-number equal to itself and tells zero from minus zero.
    return sorted((step, name, repr(float(value))) for step, metrics in records for name, value in metrics.items())
