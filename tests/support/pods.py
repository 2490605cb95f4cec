"""Pods of a Kubernetes Job, as processes of this machine with a network, a name and a process 1 of their own."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import yaml

from tests.support.command_line import environment

PROGRAMS = ("ip", "unshare", "mount", "hostname")
BEGIN = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'
NETWORK = "10.213.77"


def can_start():
    """Return whether this user may create network namespaces, and the programs for it are installed."""
    if os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)):
        return False
    return subprocess.run(["unshare", "--net", "--uts", "--pid", "--fork", "true"], check=False).returncode == 0


class Pods:
    """The two pods of the Job in a file of ``launch kubernetes``, connected by a cable; ``remove`` ends them.

    As in a cluster, the name of another pod is known only some time after its start: once ``publish`` is called.
    """

    def __init__(self, file, folder):
        *_, job = yaml.safe_load_all(file.read_text())
        self._spec, self._folder = job["spec"]["template"]["spec"], folder
        self._name = job["metadata"]["name"]
        self.grace_seconds = self._spec["terminationGracePeriodSeconds"]
        self._undo = ExitStack()
        self._spaces = [f"hf-{secrets.token_hex(3)}" for _ in range(2)]
        for space in self._spaces:
            _call("ip", "netns", "add", space)
            self._undo.callback(_call, "ip", "netns", "del", space)
        ends = [f"{space}-e" for space in self._spaces]
        first, second = self._spaces
        _call("ip", "link", "add", ends[0], "netns", first, "type", "veth", "peer", "name", ends[1], "netns", second)
        for number, (space, end) in enumerate(zip(self._spaces, ends, strict=True)):
            _call("ip", "-n", space, "addr", "add", f"{NETWORK}.{number + 1}/24", "dev", end)
            for device in (end, "lo"):
                _call("ip", "-n", space, "link", "set", device, "up")

    def start(self, number):
        """Start the pod ``number``, which knows only its own name; return its process."""
        pod = f"{self._name}-{number}"
        hosts = self._hosts(number)
        own = f"{NETWORK}.{number + 1} {pod}.{self._spec['subdomain']}.default.svc.cluster.local {pod}\n"
        hosts.write_text(f"127.0.0.1 localhost\n{own}")
        words = [self._expanded(word, number) for word in self._spec["containers"][0]["command"]]
        inside = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = ["ip", "netns", "exec", self._spaces[number], *inside, "bash", "-c", BEGIN, "pod", pod, hosts, *words]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        with (self._folder / f"{pod}.log").open("a") as log:
            process = subprocess.Popen(
                command, cwd=self._folder, env=environment() | {"PATH": path}, stdout=log, stderr=log
            )
        self._undo.callback(process.kill)
        return process

    def publish(self):
        """Let all pods find each other by the names that the Service gives them."""
        service = self._spec["subdomain"]
        for number in range(2):
            with self._hosts(number).open("a") as hosts:
                for other in range(2):
                    name = f"{self._name}-{other}.{service}"
                    hosts.write(f"{NETWORK}.{other + 1} {name} {name}.default.svc.cluster.local\n")

    def delete(self, process):
        """Send the signal that Kubernetes sends to the first process of a pod."""
        (inner,) = psutil.Process(process.pid).children()
        inner.terminate()

    def logs(self):
        """Return what the pods have printed."""
        return "".join(path.read_text() for path in sorted(self._folder.glob(f"{self._name}-*.log")))

    def remove(self):
        """End the pods and take their network away."""
        self._undo.close()

    def _hosts(self, number):
        return self._folder / f"hosts-{number}"

    def _expanded(self, word, number):
        """Return ``word`` as Kubernetes gives it to the container."""
        found = re.sub(r"(?<!\$)\$\(JOB_COMPLETION_INDEX\)", str(number), word)
        return found.replace("$$(", "$(")


def _call(*words):
    subprocess.run(words, check=True)
