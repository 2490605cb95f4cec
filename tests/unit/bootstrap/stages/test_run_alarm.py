"""What is done about a run that hangs."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

from holdfast.adapters.shared.files.heartbeats import HeartbeatFiles
from holdfast.application.handlers.watchdog import Watchdog
from holdfast.application.inbox import Inbox
from holdfast.bootstrap.stages.attach.watchdog import RunAlarm, doing_of
from holdfast.domain.commands import ReportStall
from holdfast.domain.events import Event, RunStalled
from holdfast.domain.fault_tolerance.liveness import Activity, Heartbeat, Timeouts
from tests.support.loop import Loop

REPORT = ReportStall(61.0, "rank 1 tells nothing any more")
GIVE_UP = """
import sys
from pathlib import Path
from holdfast.application.inbox import Inbox
from holdfast.bootstrap.stages.attach.watchdog import RunAlarm
from holdfast.domain.commands import ReportStall
RunAlarm(Path(sys.argv[1]), 0, Inbox(), report=print, leave=lambda: sys.exit(75)).give_up(ReportStall(61.0, "why"))
"""


def test_the_alarm_leaves_stacks_and_tells_the_loop(tmp_path):
    """Each thread's stack is in a file under the reason, which is said and waits for the loop."""
    said, inbox = [], Inbox()
    RunAlarm(tmp_path, 0, inbox, report=said.append, leave=None).ring(REPORT)
    (path,) = (tmp_path / "stacks").glob("rank0-*.txt")
    assert path.read_text().startswith("rank 1 tells nothing any more\n")
    assert "test_the_alarm_leaves_stacks" in path.read_text()
    assert said == [f"rank 1 tells nothing any more; the stacks of all threads are in {path}"]
    assert inbox.drain() == [REPORT]


def test_another_rank_leaves_the_telling_to_the_first(tmp_path):
    """Only the first rank's loop is told, as all ranks obey what any of them is told."""
    inbox = Inbox()
    RunAlarm(tmp_path, 1, inbox, report=lambda _: None, leave=None).ring(REPORT)
    assert list((tmp_path / "stacks").glob("rank1-*.txt"))
    assert inbox.drain() == []


def test_a_host_is_not_ended(tmp_path):
    """Where the process is not the run's own, giving up leaves it alone."""
    assert RunAlarm(tmp_path, 0, Inbox(), report=print, leave=None).give_up(REPORT) is None
    assert not (tmp_path / "events.jsonl").exists()


def test_giving_up_ends_with_75_and_the_event(tmp_path):
    """The process ends with the code that asks for a new one, one sentence, and the event in the run's file."""
    command = [sys.executable, "-c", GIVE_UP, str(tmp_path)]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert outcome.returncode == 75
    assert outcome.stderr == "error: why: start the same command again\n"
    (record,) = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert (record["event"], record["seconds"], record["reason"]) == ("RunStalled", 61.0, "why")


def test_heartbeats_are_seen_by_all_ranks(tmp_path):
    """What a rank tells is what every rank reads, until it leaves; a torn file is nobody's."""
    beats = [Heartbeat(rank, 5, "host", 100 + rank, 7, Activity.STEP, 0.5, 0.1) for rank in (0, 1)]
    files = [HeartbeatFiles(tmp_path / "heartbeats", rank, 3) for rank in (0, 1)]
    for file, beat in zip(files, beats, strict=True):
        file.tell(beat)
    (tmp_path / "heartbeats/rank2.json").write_text('{"rank": 2')
    assert list(files[1].all()) == beats
    files[0].leave()
    assert list(files[1].all()) == beats[1:]


def test_a_loop_that_hangs_is_noticed(tmp_path):
    """A handler that does not come back rings the alarm while it hangs, and the run that goes on says so."""
    loop, released, rung = Loop(), threading.Event(), []

    class Alarm:
        def ring(self, report):
            rung.append(report)
            loop.inbox.post(report)
            released.set()

        def give_up(self, report):
            released.set()

    patience, files = Timeouts(min_seconds=0.2, factor=1.0, slow_seconds=0.2), HeartbeatFiles(tmp_path / "beats", 0, 1)
    loop.bus.subscribe(Event, Watchdog(patience, 0, files, Alarm(), doing=doing_of))
    loop.at_step(3, lambda: released.wait(60))
    loop.run()
    assert "rank 0 has made no progress for" in rung[0].reason
    assert loop.published(RunStalled)[0].reason == rung[0].reason
