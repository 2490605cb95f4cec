"""Several processes train one model, as a user starts them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.support.command_line import Hold, corpus, environment, losses, run, start, tiny, wait_for_step

TWO = "distributed.processes=2"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder with a corpus, and what one process made of it."""
    home = tmp_path_factory.mktemp("ranks")
    outcome = run("train", *tiny(corpus(home), "run.name=one"), cwd=home)
    assert outcome.returncode == 0, outcome.stderr
    return home


def settings(home, name, *more):
    return tiny(home / "corpus.jsonl", f"run.name={name}", *more)


def assert_same_losses(home, name):
    """Compare every step's loss with that of one process."""
    expected, found = losses(home / "runs/one"), losses(home / "runs" / name)
    assert found.keys() == expected.keys()
    for step, loss in expected.items():
        assert found[step] == pytest.approx(loss, rel=5e-6), step


@pytest.mark.slow
def test_one_command_starts_two_processes(home):
    """distributed.processes starts them itself: the losses are those of one process, and what is said is said once."""
    outcome = run("train", *settings(home, "ddp", TWO), cwd=home)
    assert outcome.returncode == 0, outcome.stderr
    assert_same_losses(home, "ddp")
    assert outcome.stdout.count("finished 30 steps") == outcome.stdout.count("sample:") == 1
    assert outcome.stderr.count("step 30 · checkpoint") == 1


@pytest.mark.slow
def test_a_stopped_run_of_two_goes_on_alone(home):
    """SIGTERM saves on all ranks together and ends with its code; one process goes on and takes the same steps."""
    hold = Hold(home)
    hold.behind(12)
    process = start("train", *settings(home, "stopped", TWO, hold.settings), cwd=home)
    wait_for_step(home / "runs/stopped", 7, process)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=280)
    assert process.returncode == 143, output + errors
    outcome = run("train", *settings(home, "stopped"), cwd=home)
    assert outcome.returncode == 0, outcome.stderr
    assert_same_losses(home, "stopped")


@pytest.mark.parametrize(
    ("mistake", "code", "named"),
    [
        pytest.param(
            "optimizer.batch_size=3", 2, "2 processes cannot share optimizer.batch_size=3", marks=pytest.mark.slow
        ),
        pytest.param("data.path=nowhere.jsonl", 3, "nowhere.jsonl", marks=pytest.mark.slow),
    ],
)
def test_a_mistake_ends_all_with_its_code(home, mistake, code, named):
    """A user's mistake is one sentence of each process that sees it, and the command's code is that of the mistake."""
    outcome = run("train", *settings(home, "mistaken", TWO, mistake), cwd=home)
    assert outcome.returncode == code, outcome.stderr
    assert named in outcome.stderr
    assert "Traceback" not in outcome.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "launcher"),
    [
        ("torchrun", ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]),
        ("accelerate", ["-m", "accelerate.commands.launch", "--cpu", "--num_processes=2", "--num_machines=1"]),
    ],
)
def test_launchers_start_it(home, name, launcher):
    """Torchrun and accelerate launch start the same run."""
    module = ["-m", "application"] if name == "torchrun" else ["--module", "application"]
    command = [sys.executable, *launcher, *module, "train", *settings(home, name)]
    outcome = subprocess.run(
        command, cwd=home, env=environment(), text=True, capture_output=True, timeout=850, check=False
    )
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    assert_same_losses(home, name)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "engine",
    [
        ["optimizer.sharding=fsdp2"],
        ["optimizer.kind=deepspeed", "optimizer.stage=2"],
        ["optimizer.kind=deepspeed", "optimizer.stage=3"],
    ],
)
def test_a_sharded_run_is_evaluated_by_one_process(home, engine):
    """A run whose state is sharded has the losses of one process, and its checkpoint is of no number of processes."""
    name = engine[-1].replace("=", "-")
    outcome = run("train", *settings(home, name, TWO, *engine), cwd=home, timeout=850)
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    assert_same_losses(home, name)
    told = [json.loads(line) for line in (home / "runs" / name / "metrics.jsonl").read_text().splitlines()]
    evaluated = [record["eval_loss"] for record in told if "eval_loss" in record][-1]
    measured = run("evaluate", f"runs/{name}", cwd=home)
    assert measured.returncode == 0, measured.stderr
    assert float(measured.stdout.split("per byte · ")[1].split()[0]) == pytest.approx(evaluated, abs=1e-3)


@pytest.fixture
def two_hosts():
    """Return two network namespaces with an address each, joined by a cable; skipped where that is not allowed."""
    names, wires = (
        [f"holdfast-{os.getpid()}-{side}" for side in "ab"],
        [f"hf{os.getpid() % 10**6}{side}" for side in "ab"],
    )
    addresses = ["10.77.0.1", "10.77.0.2"]

    def ip(*arguments):
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", wires[0], "netns", names[0], "type", "veth", "peer", "name", wires[1], "netns", names[1])
        for name, wire, address in zip(names, wires, addresses, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", wire)
            ip("-n", name, "link", "set", wire, "up")
            ip("-n", name, "link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this machine makes no network namespaces: {error}")
    try:
        yield list(zip(names, wires, addresses, strict=True))
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hosts_train_together(home, two_hosts):
    """Two machines that see each other by their network alone train as one process does."""
    nodes = []
    for name, wire, address in two_hosts:
        launcher = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=test", "--max-restarts=0"]
        meeting = [f"--rdzv-endpoint={two_hosts[0][2]}:29400", f"--local-addr={address}"]
        meeting.append(f"--rdzv-conf=is_host={int(name == two_hosts[0][0])}")  # by its name it could not tell
        command = [sys.executable, "-m", "torch.distributed.run", *launcher, *meeting, "-m", "application", "train"]
        nodes.append(
            subprocess.Popen(
                ["ip", "netns", "exec", name, *command, *settings(home, "hosts")],
                cwd=home,
                env=environment() | {"GLOO_SOCKET_IFNAME": wire, "OMP_NUM_THREADS": "1"},
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    outputs = [node.communicate(timeout=850) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs[0][1][-2000:] + outputs[1][1][-2000:]
    assert_same_losses(home, "hosts")
