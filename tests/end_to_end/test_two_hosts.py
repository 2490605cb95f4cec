"""Two hosts that train together over a slow link, and the loss of one of them."""

from __future__ import annotations

import json
import statistics
import time

import pytest

from tests.end_to_end.test_elastic_resume import manifest_of
from tests.support.command_line import Hold, corpus, losses, run, tiny, wait_for_step
from tests.support.hosts import Hosts
from tests.support.pods import can_start

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not can_start(), reason="needs root and network namespaces"),
]
STEPS = 24
AGAIN = {1, 75, 134, 137, 143}
"""Exit codes for which a scheduler starts a job again."""


@pytest.fixture
def settings(tmp_path):
    """Return the settings of a run, after one of them has ended undisturbed in one process."""
    chosen = [f"run.budget.steps={STEPS}", "evaluation.every=0", "state_store.every=5", "recovery.grace_seconds=15"]
    found = tiny(corpus(tmp_path), *chosen)
    assert run("train", *found, "run.name=undisturbed", cwd=tmp_path).returncode == 0
    return found


@pytest.fixture
def hosts(tmp_path):
    """Return two hosts with 20 ms between them, which lose every hundredth packet."""
    found = Hosts(tmp_path, delay=0.02, loss=0.01)
    yield found
    found.remove()


def ends_of(hosts, processes, seconds):
    """Return the exit codes of ``processes``, which have so many seconds to end."""
    until = time.monotonic() + seconds
    return [process.wait(timeout=max(1.0, until - time.monotonic())) for process in processes], hosts.logs()


def assert_ends_as_undisturbed(tmp_path, name):
    """Raise ``AssertionError`` unless the run has the losses of the undisturbed one, and consumed the same samples."""
    assert losses(tmp_path / "runs" / name) == pytest.approx(losses(tmp_path / "runs/undisturbed"), rel=5e-6)
    found, expected = (manifest_of(tmp_path, each, STEPS)["progress"] for each in (name, "undisturbed"))
    for progress in (found, expected):
        del progress["health"]["losses"]  # compared above: they are equal within rounding
    assert found == expected


def test_a_host_dies_and_comes_back(settings, hosts, tmp_path):
    """The other host ends in time and asks for another start, and the run goes on to the same end."""
    hold, folder = Hold(tmp_path), tmp_path / "runs/slow"
    hold.behind(10)
    arguments = ["train", *settings, "run.name=slow", hold.settings, "distributed.timeout_seconds=60"]
    both = [hosts.start(number, *arguments) for number in range(2)]
    wait_for_step(folder, 10, both[0], 300)
    both[1].kill()
    both[1].wait()
    hold.behind(STEPS)
    codes, logs = ends_of(hosts, both[:1], 120)
    assert set(codes) <= AGAIN, logs
    hold.release()
    codes, logs = ends_of(hosts, [hosts.start(number, *arguments) for number in range(2)], 400)
    assert codes == [0, 0], logs
    assert_ends_as_undisturbed(tmp_path, "slow")


def test_a_cut_link_ends_both_hosts_in_time(settings, hosts, tmp_path):
    """Without any packet both hosts end after the time limit of the settings, and go on once the link is back."""
    hold, folder = Hold(tmp_path), tmp_path / "runs/cut"
    hold.behind(10)
    arguments = ["train", *settings, "run.name=cut", hold.settings, "distributed.timeout_seconds=20"]
    both = [hosts.start(number, *arguments) for number in range(2)]
    wait_for_step(folder, 10, both[0], 300)
    hosts.lose(1.0)
    hold.behind(STEPS)
    codes, logs = ends_of(hosts, both, 200)
    assert set(codes) <= AGAIN, logs
    hosts.lose(0.01)
    hold.release()
    codes, logs = ends_of(hosts, [hosts.start(number, *arguments) for number in range(2)], 400)
    assert codes == [0, 0], logs
    assert_ends_as_undisturbed(tmp_path, "cut")


def test_a_slow_link_costs_its_delay(settings, tmp_path):
    """A step over a link of 20 ms takes at least one delay longer than over one without, and learns the same."""
    seconds = {}
    for name, delay, loss in (("near", 0.0, 0.0), ("far", 0.02, 0.01)):
        hosts = Hosts(tmp_path, delay=delay, loss=loss)
        try:
            both = [hosts.start(number, "train", *settings, f"run.name={name}") for number in range(2)]
            codes, logs = ends_of(hosts, both, 400)
        finally:
            hosts.remove()
        assert codes == [0, 0], logs
        assert_ends_as_undisturbed(tmp_path, name)
        lines = (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()
        speeds = [record["tokens_per_second"] for record in map(json.loads, lines) if "tokens_per_second" in record]
        seconds[name] = 256 / statistics.median(speeds)
    assert seconds["far"] > seconds["near"] + 0.02, seconds
