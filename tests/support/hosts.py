"""Two hosts with a network between them, as network namespaces of this machine."""

from __future__ import annotations

import secrets
import subprocess
import sys
from contextlib import ExitStack

from tests.support.command_line import ROOT, environment
from tests.support.slow_link import DEVICE

NETWORK = "10.213.78"
PORT = 29500


class Hosts:
    """Two hosts whose packets take ``delay`` seconds and of which a share of ``loss`` is lost; ``remove`` ends them."""

    def __init__(self, folder, *, delay=0.0, loss=0.0):
        self._folder, self._undo = folder, ExitStack()
        self._spaces = [f"hf-{secrets.token_hex(3)}" for _ in range(2)]
        try:
            self._connect(delay, loss)
        except BaseException:
            self.remove()
            raise

    def _connect(self, delay, loss):
        for space in self._spaces:
            _call("ip", "netns", "add", space)
            self._undo.callback(_call, "ip", "netns", "del", space)
        self._link = subprocess.Popen(
            [sys.executable, "-m", "tests.support.slow_link", *self._spaces, str(delay), str(loss)],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._undo.callback(self._close_link)
        assert self._link.stdout.readline() == "open\n"
        for number, space in enumerate(self._spaces):
            _call("ip", "-n", space, "addr", "add", f"{NETWORK}.{number + 1}/24", "dev", DEVICE)
            for device in (DEVICE, "lo"):
                _call("ip", "-n", space, "link", "set", device, "up")

    def start(self, number, *arguments):
        """Start the rank of host ``number`` with the ``arguments`` of `application`; return its process.

        To kill the process is to kill all processes of the host.
        """
        meeting = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=test"]
        # the hosts share one name, by which torchrun would find the one that serves
        meeting += [f"--rdzv-conf=is_host={number == 0},join_timeout=90"]
        meeting += [f"--rdzv-endpoint={NETWORK}.1:{PORT}", f"--local-addr={NETWORK}.{number + 1}"]
        inside = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = ["ip", "netns", "exec", self._spaces[number], *inside, sys.executable, "-m", "holdfast.torchrun"]
        with self.log(number).open("a") as log:
            process = subprocess.Popen(
                [*command, *meeting, "-m", "application", *arguments],
                cwd=self._folder,
                env=environment() | {"GLOO_SOCKET_IFNAME": DEVICE},
                text=True,
                stdout=log,
                stderr=log,
            )
        self._undo.callback(process.wait)
        self._undo.callback(process.kill)
        return process

    def lose(self, share):
        """Lose a ``share`` of the packets from now on; 1 cuts the link."""
        self._link.stdin.write(f"{share}\n")
        self._link.stdin.flush()

    def log(self, number):
        """Return the file with all that host ``number`` has printed."""
        return self._folder / f"host-{number}.log"

    def logs(self):
        """Return all that was printed."""
        return "".join(self.log(number).read_text() for number in range(2))

    def remove(self):
        """End all processes and take the network away."""
        self._undo.close()

    def _close_link(self):
        self._link.stdin.close()
        self._link.stdout.close()
        self._link.wait()


def _call(*words):
    subprocess.run(words, check=True)
