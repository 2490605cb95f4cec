"""A Slurm cluster of two nodes on the test machine: Debian's packages slurm-wlm and munge."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.support.command_line import environment

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "srun")
_SECONDS_OF_A_CREDENTIAL = 3
ADMIN_PATHS = "/usr/sbin:/sbin"
CONFIGURATION = """\
ClusterName=holdfast
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmctldPort={controller}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1
KillWait=30
ReturnToService=2
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=2 State=UNKNOWN
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def can_start():
    """Return whether Slurm's programs are installed, and this is the user whose jobs it may start."""
    return os.geteuid() == 0 and all(shutil.which(name, path=_path()) for name in PROGRAMS)


class SlurmCluster:
    """A cluster whose jobs run on this machine, with this Python as ``python``; ``remove`` ends its daemons."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-slurm-"))
        self._daemons = ExitStack()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        (self.folder / "state").mkdir()
        controller, first, second = _free_ports(3)
        host = socket.gethostname().partition(".")[0]
        places = {"host": host, "folder": self.folder, "controller": controller, "first": first, "second": second}
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(**places))
        self.environment = environment() | {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": _path()}
        own = [f"--{name}={self.folder}/munge.{end}" for name, end in (("socket", "sock"), ("pid-file", "pid"))]
        own += [f"--log-file={self.folder}/munge.log", f"--seed-file={self.folder}/munge.seed", f"--key-file={key}"]
        self._start("munged", "--foreground", "--force", *own)
        self._start("slurmctld", "-D")
        for node in (host, "localhost"):  # both names are known to be this machine
            self._start("slurmd", "-D", "-N", node)
        self.wait(lambda: self.call("scontrol", "show", "node").count("State=IDLE") == 2, "the nodes are not ready")

    def call(self, *words, cwd=None):
        """Return the output of a program of Slurm, or its complaint."""
        command = subprocess.run(words, cwd=cwd, env=self.environment, capture_output=True, text=True, check=False)
        return command.stdout + command.stderr

    def submit(self, file, *options):
        """Submit the job ``file``, from its folder; return the number of the job."""
        answer = self.call("sbatch", "--parsable", *options, file.name, cwd=file.parent)
        assert answer.strip().isdecimal(), answer
        return answer.strip()

    def of_job(self, number, name):
        """Return the field ``name`` of the job, such as its JobState."""
        found = re.search(rf"\b{name}=(\S*)", self.call("scontrol", "show", "job", number))
        return "" if found is None else found[1]

    def wait(self, has_happened, complaint, seconds=150):
        """Return once it ``has_happened``; raises ``AssertionError`` with the logs if it takes too long."""
        deadline = time.monotonic() + seconds
        while not has_happened():
            logs = "".join(path.read_text() for path in self.folder.glob("*.log"))
            assert time.monotonic() < deadline, f"{complaint}: {self.call('scontrol', 'show', 'job')} {logs[-3000:]}"
            time.sleep(0.2)

    def begin_now(self, number):
        """Start a job that was queued again, which Slurm otherwise does two minutes later.

        A node refuses a start in the second in which it has revoked the credential of the former one.
        """
        self.wait(lambda: self.of_job(number, "JobState") == "PENDING", "the job is not queued")
        time.sleep(_SECONDS_OF_A_CREDENTIAL)
        self.call("scontrol", "update", f"JobId={number}", "StartTime=now")

    def remove(self):
        """End all jobs and the daemons."""
        self.call("scancel", "--user=root")
        self._daemons.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, *command):
        log = self._daemons.enter_context((self.folder / f"{command[0]}.log").open("a"))
        process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        self._daemons.callback(process.wait)
        self._daemons.callback(process.terminate)
        time.sleep(0.5)


def _path():
    """Return the folders of programs: this Python's first, so that a job finds it, and those of daemons."""
    return f"{Path(sys.executable).parent}:{os.environ['PATH']}:{ADMIN_PATHS}"


def _free_ports(number):
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]
