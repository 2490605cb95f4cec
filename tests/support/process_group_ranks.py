"""Ranks in processes of their own: as a script, one rank that runs the tasks it is told; as a module, their owner."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]
READY = "ready\n"


class Ranks:
    """Starts processes with torchrun's environment when they are needed, and again if one has died."""

    def __init__(self, size):
        self.size = size
        self._processes = []
        self._stack = contextlib.ExitStack()

    def run(self, task, *, timeout_seconds, dying=()):
        """Return what ``task`` returns on each rank that is not expected to die."""
        self._start()
        order = {"module": task.__module__, "task": task.__name__, "timeout_seconds": timeout_seconds}
        self._tell(order)
        answers = self._answers()
        if not dying:
            self._tell({"close": True})  # a group stays open until all ranks have returned
            answers += self._answers()
        errors = [answer["error"] for rank, answer in enumerate(answers) if "error" in answer and rank not in dying]
        assert not errors, "\n".join(errors)
        if dying:
            self.stop()
        return [answer.get("result") for answer in answers[: self.size]]

    def _tell(self, order):
        for process in self._processes:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()

    def _answers(self):
        return [json.loads(process.stdout.readline() or '{"error": "died"}') for process in self._processes]

    def stop(self):
        for process in self._processes:
            process.kill()
            process.communicate()
        self._processes = []
        self._stack.close()

    def _start(self):
        if self._processes:
            return
        port = self._stack.enter_context(reserved_port())
        for rank in range(self.size):
            place = {"RANK": rank, "WORLD_SIZE": self.size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            more = {**place, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": 1}
            environment = {**os.environ, **{name: str(value) for name, value in more.items()}}
            process = subprocess.Popen(
                [sys.executable, __file__], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            self._processes.append(process)
        for process in self._processes:  # a rank that still imports must not use up the time-out of a group
            assert process.stdout.readline() == READY


@contextlib.contextmanager
def reserved_port():
    """Give a port that the system hands to nobody meanwhile; who asks for it by its number can listen there."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def die(group):
    """Kill the last rank as the system does when memory ends; return how the others fare."""
    from holdfast.domain.errors import TrainingError

    try:
        group.barrier()
        if group.rank == group.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        group.barrier()
    except TrainingError as error:
        return type(error).__name__
    return None


def stand_beside_another_group(group):
    """Use torch's default group, made later, between two uses of this one, and make a second one of these beside it."""
    import torch
    from torch import distributed

    from holdfast.adapters.process_group.torch import TorchProcessGroup
    from holdfast.domain.commands import Evaluate

    distributed.init_process_group("gloo")
    ones = torch.ones(1)
    distributed.all_reduce(ones)
    time.sleep(0.5 * group.rank)  # whoever comes first must not find the addresses of the first group
    second = TorchProcessGroup(90)
    agreed = [group.agree([Evaluate()]), second.agree([Evaluate()])]
    second.close()
    distributed.destroy_process_group()
    agreed.append(group.agree([Evaluate()]))
    return [int(ones), *map(len, agreed)]


def serve():
    from holdfast.adapters.process_group.torch import TorchProcessGroup

    sys.stdout.write(READY)
    sys.stdout.flush()
    group = None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if "close" in order:
                answer = {} if group is None else {"result": group.close()}
                group = None
            else:
                group = TorchProcessGroup(order["timeout_seconds"])
                answer = {"result": getattr(importlib.import_module(order["module"]), order["task"])(group)}
        except Exception:  # noqa: BLE001  the owner shows it
            answer = {"error": traceback.format_exc()}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
