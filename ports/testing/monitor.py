"""The contract of ``Monitor``."""

from __future__ import annotations

import math
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

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
    """Subclass it for an adapter, named ``Test...``.

    ``forgets`` says whether ``rewind`` can take back what was recorded, ``outlives`` whether a monitor that is opened
    later on the same folder still can.
    """

    forgets: ClassVar[bool] = True
    outlives: ClassVar[bool] = True

    @abstractmethod
    def open_monitor(self, folder: Path) -> Monitor:
        """Return a monitor that keeps its records in ``folder``, beside those that an earlier one left there."""

    @abstractmethod
    def recorded(self, monitor: Monitor, folder: Path) -> Iterable[tuple[int, Mapping[str, float]]] | None:
        """Return the content of the sink, in any order, or None if the sink cannot be read back."""

    def as_kept(self, value: float) -> float:
        """Return ``value`` as precisely as the sink keeps it."""
        return value

    @pytest.fixture
    def monitor(self, tmp_path: Path) -> Iterable[Monitor]:
        """Yield a monitor on a fresh folder."""
        monitor = self.open_monitor(tmp_path)
        yield monitor
        monitor.close()

    def test_a_record_is_visible_after_close(self, monitor: Monitor, tmp_path: Path) -> None:
        """``close`` makes what was recorded visible."""
        monitor.record(1, {"loss": 3.5, "tokens": 1024})
        monitor.close()
        assert self._figures(monitor, tmp_path) == self._expected([(1, {"loss": 3.5, "tokens": 1024})])

    @given(records=_RECORDS)
    @example(records=_NOT_FINITE)
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
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
        """A record that names nothing adds no figure."""
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
        """``record`` after ``close`` neither raises nor leaves a trace."""
        monitor.record(1, {"loss": 2.0})
        monitor.close()
        monitor.record(2, {"loss": 1.0})
        assert self._figures(monitor, tmp_path) == self._expected([(1, {"loss": 2.0})])

    def test_closing_a_monitor_that_was_never_used(self, monitor: Monitor, tmp_path: Path) -> None:
        """A run that ends before its first step leaves nothing."""
        monitor.close()
        assert self._figures(monitor, tmp_path) == []

    def test_rewind_forgets_later_steps_only(self, monitor: Monitor, tmp_path: Path) -> None:
        """``rewind`` removes later steps, in whatever order they were recorded, and keeps the step and earlier ones."""
        self._needs(self.forgets)
        for step in (0, 5, 2, 3, 4):
            monitor.record(step, {"loss": float(step)})
        monitor.rewind(3)
        monitor.close()
        assert self._figures(monitor, tmp_path) == self._expected([(step, {"loss": float(step)}) for step in (0, 2, 3)])

    def test_a_step_that_is_taken_again_stands_there_once(self, monitor: Monitor, tmp_path: Path) -> None:
        """After ``rewind`` the repeated steps are recorded as if they were new."""
        self._needs(self.forgets)
        for step in (1, 2, 3):
            monitor.record(step, {"loss": float(step)})
        monitor.rewind(1)
        monitor.record(2, {"loss": 20.0})
        monitor.close()
        assert self._figures(monitor, tmp_path) == self._expected([(1, {"loss": 1.0}), (2, {"loss": 20.0})])

    def test_a_new_run_starts_from_nothing(self, monitor: Monitor, tmp_path: Path) -> None:
        """``rewind(0)`` forgets all, an evaluation before the first step included, as it will be measured again."""
        self._needs(self.forgets)
        for step in (0, 1, 2):
            monitor.record(step, {"loss": float(step)})
        monitor.rewind(0)
        monitor.record(0, {"loss": 7.0})
        monitor.close()
        assert self._figures(monitor, tmp_path) == self._expected([(0, {"loss": 7.0})])

    def test_rewind_reaches_an_earlier_process(self, monitor: Monitor, tmp_path: Path) -> None:
        """Later steps that an earlier monitor recorded are removed, and the others stay."""
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
        """The first start of a run rewinds what does not exist yet."""
        monitor.rewind(0)
        monitor.record(1, {"loss": 1.0})
        monitor.close()
        assert self._figures(monitor, tmp_path) == self._expected([(1, {"loss": 1.0})])

    def test_a_call_takes_milliseconds(self, monitor: Monitor) -> None:
        """A thousand records of eight figures take less than two seconds, on a busy machine too."""
        figures = {f"figure_{number}": float(number) for number in range(6)} | {"loss": 1.0, "tokens": 5.0}
        start = time.perf_counter()
        for step in range(1000):
            monitor.record(step, figures)
        assert time.perf_counter() - start < 2.0

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


def _flat(records: Iterable[tuple[int, Mapping[str, float]]]) -> list[tuple[int, str, str]]:
    # ``repr`` makes not-a-number equal to itself and tells zero from minus zero.
    return sorted((step, name, repr(float(value))) for step, metrics in records for name, value in metrics.items())
