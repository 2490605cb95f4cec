"""Every monitor keeps the port's promises, and each its own."""

from __future__ import annotations

import io
import json
import sys
from queue import SimpleQueue

import numpy as np
import psutil
import pytest
import structlog

from holdfast.adapters.monitor.console import ConsoleMonitor
from holdfast.adapters.monitor.jsonl import JsonlMonitor
from holdfast.adapters.monitor.memory import MemoryMonitor, MemoryTracker
from holdfast.adapters.monitor.page import PageMonitor
from holdfast.adapters.monitor.structlog import StructlogMonitor
from holdfast.adapters.monitor.tensorboard import TensorboardTracker
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.training.budget import Budget
from holdfast.ports.monitor import EndState, NoteKind
from holdfast.ports.testing.monitor import MonitorContract, TrackerContract


class TestMemoryMonitor(MonitorContract):
    outlives = False

    def open_monitor(self, folder):
        return MemoryMonitor()

    def recorded(self, monitor, folder):
        return monitor.records


class TestMemoryTracker(TrackerContract):
    is_prompt = True
    outlives = False

    def new_tracker(self, folder):
        return MemoryTracker()

    def recorded(self, monitor, folder):
        return monitor.records

    def noted(self, tracker, folder):
        return [(step, text) for step, _, text in tracker.notes]


class TestJsonlMonitor(MonitorContract):
    def open_monitor(self, folder):
        return JsonlMonitor(folder / "metrics.jsonl")

    def recorded(self, monitor, folder):
        path = folder / "metrics.jsonl"
        return [_record(line) for line in path.read_text().splitlines()] if path.exists() else []

    def test_a_record_is_in_the_file_when_record_returns(self, monitor, tmp_path):
        """Another process reads a record before ``close``, so ``kill -9`` cannot lose it."""
        monitor.record(1, {"loss": 3.5, "tokens": 1024})
        assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"step": 1, "loss": 3.5, "tokens": 1024}\n'

    def test_rewind_removes_what_a_crash_tore(self, tmp_path):
        """A half line at the end goes, and the lines before it keep their bytes."""
        path = tmp_path / "metrics.jsonl"
        path.write_bytes(b'{"step":1,  "loss":3}\n{"step": 2, "loss": 2}\n{"step": 3, "lo')
        JsonlMonitor(path).rewind(3)
        assert path.read_bytes() == b'{"step":1,  "loss":3}\n{"step": 2, "loss": 2}\n'

    def test_rewind_keeps_what_is_no_record(self, tmp_path):
        """Lines without a step are not the monitor's to delete."""
        path = tmp_path / "metrics.jsonl"
        path.write_bytes(b'{"note": "by hand"}\n{"step": "x"}\nnot json\n{"step": 1}\n')
        JsonlMonitor(path).rewind(0)
        assert path.read_bytes() == b'{"note": "by hand"}\n{"step": "x"}\nnot json\n'

    def test_what_the_disk_refuses_is_a_named_error(self, tmp_path):
        """A path that cannot be written raises ``StateError``, which names it."""
        (tmp_path / "file").touch()
        monitor = JsonlMonitor(tmp_path / "file" / "metrics.jsonl")
        with pytest.raises(StateError, match=r"metrics\.jsonl"):
            monitor.record(1, {"loss": 1.0})


class TestTensorboardTracker(TrackerContract):
    is_prompt = True

    def new_tracker(self, folder):
        return TensorboardTracker(folder)

    def noted(self, tracker, folder):
        return [text for kind in NoteKind for text in self.texts(folder, kind)]

    def texts(self, folder, tag):
        """Return the steps and the texts of ``tag``, without the indentation that TensorBoard shows as it is."""
        events = self.events(folder)
        name = f"{tag}/text_summary"
        found = events.Tensors(name) if name in events.Tags()["tensors"] else []
        texts = [(event.step, event.tensor_proto.string_val[0].decode()) for event in found]
        return [(step, text.removeprefix("    ").replace("\n    ", "\n")) for step, text in texts]

    def events(self, folder):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        return events

    def recorded(self, monitor, folder):
        events = self.events(folder)
        return [(e.step, {name: e.value}) for name in events.Tags()["scalars"] for e in events.Scalars(name)]

    def as_kept(self, value):
        with np.errstate(over="ignore"):
            return float(np.float32(value))

    def test_a_quick_restart_is_read_in_order(self, tmp_path, monkeypatch):
        """A restart within a second still hides what came before it, though the library would name its file earlier."""
        from tensorboard.summary.writer import event_file_writer

        monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(9))
        for loss in (1.0, 2.0):
            monitor = TensorboardTracker(tmp_path)
            monitor.rewind(0)
            monitor.record(1, {"loss": loss})
            monitor.close()
        assert self.recorded(monitor, tmp_path) == [(1, {"loss": 2.0})]

    def test_a_run_is_described_at_each_start(self, tmp_path):
        """The settings and the end of a run are texts, and the mark of a roll-back does not hide the settings."""
        for step in (0, 3):
            tracker = self.open_monitor(tmp_path)
            tracker.rewind(step)
            tracker.record(step + 1, {"loss": 1.0})
            tracker.finish(EndState.STOPPED)
            tracker.close()
        starts = self.texts(tmp_path, "run")
        assert [step for step, _ in starts] == [0, 4]
        assert json.loads(starts[-1][1])["settings"]["run"] == {"name": "a run", "seed": 0}
        assert self.texts(tmp_path, "end") == [(1, "stopped"), (4, "stopped")]

    def test_a_flushed_record_is_in_the_file(self, tmp_path):
        """Another process reads a flushed record before ``close``, so ``kill -9`` cannot lose it."""
        tracker = self.open_monitor(tmp_path)
        tracker.record(1, {"loss": 2.0})
        tracker.flush()
        assert self.recorded(tracker, tmp_path) == [(1, {"loss": 2.0})]
        tracker.close()

    def test_a_missing_package_is_told_in_one_sentence(self, tmp_path, monkeypatch):
        """Without the extra the error names the command that installs it."""
        for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
        monkeypatch.setitem(sys.modules, "tensorboard", None)
        with pytest.raises(ConfigurationError, match=r"pip install \"holdfast-lm\[tensorboard\]\""):
            TensorboardTracker(tmp_path)

    def test_a_folder_that_cannot_be_made_is_a_named_error(self, tmp_path):
        """A path below a file raises ``StateError``, which names it."""
        (tmp_path / "file").touch()
        monitor = TensorboardTracker(tmp_path / "file" / "events")
        with pytest.raises(StateError, match="events"):
            monitor.record(1, {"loss": 1.0})


class TestStructlogMonitor(MonitorContract):
    forgets = False
    outlives = False

    @pytest.fixture(autouse=True)
    def _own_configuration(self):
        before = structlog.get_config()
        yield
        structlog.configure(**before)

    def open_monitor(self, folder):
        self.captured = structlog.testing.LogCapture()
        structlog.configure(processors=[self.captured])
        return StructlogMonitor("test")

    def recorded(self, monitor, folder):
        return [(entry["step"], entry["metrics"]) for entry in self.captured.entries]

    def test_a_record_is_one_event(self, monitor):
        """Each record is one event ``metrics`` of level info."""
        monitor.record(3, {"loss": 1.0, "event": 2.0})
        assert self.captured.entries == [
            {"event": "metrics", "log_level": "info", "step": 3, "metrics": {"loss": 1.0, "event": 2.0}}
        ]


class TestConsoleMonitorInAFile(MonitorContract):
    forgets = False
    outlives = False

    def open_monitor(self, folder):
        return ConsoleMonitor(Budget(1000), file=io.StringIO())

    def recorded(self, monitor, folder):
        return None


class TestConsoleMonitorInATerminal(TestConsoleMonitorInAFile):
    def open_monitor(self, folder):
        class Terminal(io.StringIO):
            def isatty(self):
                return True

        return ConsoleMonitor(Budget(tokens=10**6), file=Terminal())


def _record(line):
    record = json.loads(line)
    step = record.pop("step")
    names = {name: name[:-1] if name.rstrip("_") == "step" else name for name in record}
    return step, {names[name]: float(value) for name, value in record.items()}


class TestPageMonitor(MonitorContract):
    """The process that serves the page reads the run folder itself; here it only prints a line."""

    def open_monitor(self, folder):
        return PageMonitor(["sh", "-c", "echo page: there; cat > /dev/null"], lambda _: None)

    def recorded(self, monitor, folder):
        return None

    def test_the_address_is_passed_on_and_the_process_ends(self):
        """What the process prints reaches a person, it is started once, and ``close`` ends it by its input."""
        lines: SimpleQueue[str] = SimpleQueue()
        monitor = PageMonitor(["sh", "-c", "echo page: $$; cat > /dev/null"], lines.put)
        monitor.rewind(0)
        monitor.record(1, {"loss": 3.0})
        process = int(lines.get(timeout=10).removeprefix("page: "))
        assert psutil.pid_exists(process)
        monitor.close()
        assert not psutil.pid_exists(process)
        assert lines.empty()

    def test_a_process_that_does_not_end_is_killed(self, monkeypatch):
        """A page that ignores the end of its input does not hold up the end of the run."""
        monkeypatch.setattr("holdfast.adapters.monitor.page._SECONDS_TO_END", 0.1)
        monitor = PageMonitor(["sleep", "1000"], lambda _: None)
        monitor.rewind(0)
        process = monitor._process
        monitor.close()
        assert process.returncode == -9

    def test_a_page_that_crashes_is_started_again(self):
        """After a crash the next figures start the page again, up to five times, and each crash is told."""
        lines: list[str] = []
        monitor = PageMonitor(["sh", "-c", "cat > /dev/null"], lines.append, first_pause=0.0)
        monitor.record(1, {})
        seen = set()
        for step in range(2, 10):
            process = monitor._process
            if process is not None:
                seen.add(process.pid)
                process.kill()
                process.wait()
            monitor.record(step, {})
        assert len(seen) == 6
        assert lines[0] == "the page was ended by signal 9; it is started again"
        assert len(lines) == 6
        assert lines[-1].endswith("it is not started again: open it with the command watch")
        monitor.close()

    def test_the_next_start_waits_for_its_pause(self):
        """A page that has crashed is not started again at once."""
        monitor = PageMonitor(["sh", "-c", "exit 3"], lambda _: None, first_pause=60.0)
        monitor.record(1, {})
        monitor._process.wait()
        monitor.record(2, {})
        assert monitor._process is None
        monitor.close()

    @pytest.mark.parametrize("end", ["exit 0", "exit 2", "kill -TERM $$"])
    def test_a_page_that_was_ended_is_left_alone(self, end):
        """A page that was asked to end, or refused its settings, is not started again."""
        lines: list[str] = []
        monitor = PageMonitor(["sh", "-c", end], lines.append, first_pause=0.0)
        monitor.record(1, {})
        monitor._process.wait()
        monitor.record(2, {})
        assert (monitor._process, lines) == (None, [])
        monitor.close()

    def test_a_program_that_is_missing_is_a_named_error(self):
        """A process that cannot be started raises ``StateError``."""
        with pytest.raises(StateError, match="page cannot be started"):
            PageMonitor(["/no/such/program"], lambda _: None).rewind(0)

    def test_a_missing_extra_is_named(self, monkeypatch):
        """Without its packages the monitor says what to install."""
        monkeypatch.setattr("holdfast.adapters.monitor.page.find_spec", lambda _: None)
        with pytest.raises(ConfigurationError, match=r"holdfast-lm\[page\]"):
            PageMonitor(["true"], lambda _: None)
