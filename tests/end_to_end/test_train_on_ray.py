"""A run on Ray grows and shrinks with its cluster, and ends as a run on one process does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict
from itertools import groupby

import numpy as np
import psutil
import pytest

from holdfast.adapters.ledger.sql import LEDGER, SqlLedger
from holdfast.adapters.shared.sql.sqlite_database import SqliteDatabase
from tests.end_to_end.test_elastic_resume import manifest_of
from tests.support.command_line import (
    PLUGINS,
    ROOT,
    Hold,
    corpus,
    environment,
    losses,
    run,
    start,
    tiny,
    wait_for_checkpoint,
    wait_for_step,
    wait_until,
)

STEPS = 60
START = re.compile(r" device +[^,]+, [^,\s]+(?:, (\d+) processes)?")


@pytest.fixture
def new_cluster(monkeypatch):
    """Return a function that starts a cluster of Ray on this machine, whose first node has the given resources."""
    pytest.importorskip("ray.train.v2", reason="the extra ray is not installed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(PLUGINS)]))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    from ray.cluster_utils import Cluster

    clusters = []

    def make(**resources):
        clusters.append(Cluster(initialize_head=True, head_node_args={**resources, "include_dashboard": False}))
        monkeypatch.setenv("RAY_ADDRESS", clusters[0].address)
        return clusters[0]

    yield make
    for cluster in clusters:
        cluster.shutdown()


def sizes_of_starts(log):
    """Return the number of ranks of each start, and of starts that were repeated once."""
    sizes = [int(size or 1) for size in START.findall(log.read_text())]
    return [size for size, _ in groupby(sizes)]


def documents_of(run_folder):
    """Return the documents that each step of the run consumed, as its ledger has them."""
    identity = json.loads((run_folder / "run.json").read_text())["id"]
    with closing(SqlLedger(SqliteDatabase(run_folder / "ledger.sqlite", LEDGER))) as ledger:
        steps = ledger.steps(identity).step.tolist()
        return {step: asdict(ledger.documents_in(identity, step)) for step in steps}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_one_and_two_workers_end_as_one_process(new_cluster, tmp_path):
    """A node is lost and comes back: the losses and samples are those of one process without a pause."""
    cluster, hold = new_cluster(num_cpus=1), Hold(tmp_path)
    same = ["evaluation.every=0", "optimizer.schedule.kind=constant", "ledger=sqlite", f"run.budget.steps={STEPS}"]
    settings = tiny(corpus(tmp_path), *same, "state_store.every=1000")
    assert run("train", *settings, "run.name=undisturbed", cwd=tmp_path).returncode == 0
    on_ray = ["--on", "ray", "distributed.workers=[1, 2]", "distributed.resize_seconds=2", "run.name=elastic"]
    second = cluster.add_node(num_cpus=1)
    hold.behind(20)
    log_file = tmp_path / "log"
    with log_file.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "application", "train", *settings, *on_ray, hold.settings],
            cwd=tmp_path,
            env=environment(),
            stdout=log,
            stderr=log,
        )
    wait_for_step(tmp_path / "runs/elastic", 20, process, 200)
    cluster.remove_node(second)
    wait_until(lambda: "has ended: saving and ending" in log_file.read_text(), process, "rank 0 did not notice", 200)
    hold.behind(40)
    wait_for_step(tmp_path / "runs/elastic", 40, process, 200)
    cluster.add_node(num_cpus=1)
    wait_until(lambda: sizes_of_starts(log_file) == [2, 1, 2], process, "it did not grow again", 200)
    hold.release()
    assert process.wait(timeout=200) == 0, log_file.read_text()[-3000:]
    assert sizes_of_starts(log_file) == [2, 1, 2]
    expected, found = losses(tmp_path / "runs/undisturbed"), losses(tmp_path / "runs/elastic")
    assert sorted(found) == sorted(expected) == list(range(1, STEPS + 1))
    assert [found[step] for step in found] == pytest.approx([expected[step] for step in found], rel=5e-6)
    last, undisturbed = (manifest_of(tmp_path, name, STEPS) for name in ("elastic", "undisturbed"))
    for manifest in (last, undisturbed):
        del manifest["progress"]["health"]["losses"]  # compared above: they are equal within rounding
    assert last["progress"] == undisturbed["progress"], "each sample is consumed once, in the same order"
    consumed, undisturbed = (documents_of(tmp_path / "runs" / name) for name in ("elastic", "undisturbed"))
    np.testing.assert_equal(consumed, undisturbed)
    assert len(consumed) == STEPS, "each step took the same pieces of the same documents"
    assert all(len(step["document"]) for step in consumed.values())
    events = (tmp_path / "runs/elastic/events.jsonl").read_text()
    assert events.count('"reason": "preempt"') >= 2, "each resize saved the last complete step"


def ranks_of(setting):
    """Return the processes that train with the ``setting`` by their ranks, without the command that started them.

    A name would not do: tests of other files have runs of the same one at the same time.
    """
    found = {}
    for process in psutil.process_iter(["cmdline", "environ"]):
        words, variables = process.info["cmdline"] or [], process.info["environ"] or {}
        if setting in words and words[1:2] == ["-m"] and "RANK" in variables:
            found[int(variables["RANK"])] = process
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_for_the_command_ends_the_run_and_one_for_a_rank_does_not(new_cluster, tmp_path, number):
    """A rank that gets SIGTERM saves and is started again; the command saves and ends by the signal that it gets."""
    new_cluster(num_cpus=2, num_gpus=2)
    hold, folder = Hold(tmp_path), tmp_path / "runs/stopped"
    settings = tiny(corpus(tmp_path), "state_store.every=1000", "run.budget.steps=1000", hold.settings)
    hold.behind(5)
    on_ray = ["--on", "ray", "distributed.workers=[2, 2]", "distributed.gpus_per_worker=1", "run.name=stopped"]
    process = start("train", *settings, *on_ray, cwd=tmp_path)
    wait_for_step(folder, 5, process, 200)
    given = [rank.info["environ"] for _, rank in sorted(ranks_of(hold.settings).items())]
    assert [(each["LOCAL_RANK"], each["CUDA_VISIBLE_DEVICES"]) for each in given] == [("0", "0,1"), ("1", "0,1")]
    hold.behind(10)
    ranks_of(hold.settings)[1].terminate()
    wait_for_checkpoint(folder, 5, process)
    wait_for_step(folder, 10, process, 200)
    process.send_signal(number)
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 128 + number, errors
    assert f"received {number.name}: saving after this step" in errors
    assert re.search(r"stopped at step 1\d, saved in \S+; the same command continues", output)
    assert "Traceback" not in errors
    assert "(RayTrainWorker" not in errors
    assert "a rank was killed by SIGTERM: Ray starts all ranks again" in output
    assert not ranks_of(hold.settings)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_mistake_that_a_rank_finds_ends_the_command_with_its_code(new_cluster, tmp_path):
    """A rank refuses what the run did not begin with: one sentence, exit code 2, no second start and no traceback."""
    new_cluster(num_cpus=2)
    settings = tiny(corpus(tmp_path), "run.budget.steps=5", "evaluation.every=0")
    assert run("train", *settings, cwd=tmp_path).returncode == 0
    on_ray = ["--on", "ray", "distributed.workers=[2, 2]", "model.config.hidden_size=64"]
    refused = run("train", *settings, *on_ray, cwd=tmp_path, timeout=200)
    assert refused.returncode == 2, refused.stderr
    assert refused.stderr.count("error: model.config.hidden_size was 32 when the run") == 1
    assert "Traceback" not in refused.stderr
    assert "RayTaskError" not in refused.stderr
