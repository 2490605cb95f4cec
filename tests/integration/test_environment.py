"""What the command line tells the C library, as its allocator then behaves."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.adapters.shared.device.host_memory import usable_cpus

ROOT = Path(__file__).resolve().parents[2]
HEAPS = usable_cpus() + 8
THREADS = HEAPS + 4
CHILD = f"""
import ctypes, re, sys, threading
from holdfast.bootstrap.cli.main import main
if sys.argv[2:]:
    assert main(sys.argv[2:]) != 0
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
together = threading.Barrier({THREADS})
def allocate():
    libc.malloc(1000)
    together.wait()  # a thread that ends leaves its heap to the next one
threads = [threading.Thread(target=allocate) for _ in range({THREADS})]
for thread in threads: thread.start()
for thread in threads: thread.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""
KEPT = """
import ctypes, sys
from holdfast.bootstrap.cli.main import main
assert main(["evaluate", "nowhere"]) != 0
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks u f k".split()]
libc.mallinfo2.restype = Info
before = libc.mallinfo2()
libc.free(ctypes.c_void_p(libc.malloc(100 << 20)))
print(libc.mallinfo2().arena - before.arena >= 90 << 20)
"""
HUGE_PAGES = """
from holdfast.bootstrap.process.library_environment import set_library_defaults
set_library_defaults()
import torch
tensor = torch.ones(300 << 20, dtype=torch.uint8)
regions = open("/proc/self/smaps").read().split("VmFlags:")
begins = [[int(word, 16) for word in line.split()[0].split("-")] for region in regions for line in region.splitlines()
          if line[:1] in "0123456789abcdef" and "-" in line.split(" ")[0]]
flags = [region.splitlines()[0].split() for region in regions[1:]]
print(any("hg" in own for (begin, end), own in zip(begins, flags) if begin <= tensor.data_ptr() < end))
"""
GIVEN_BACK = """
import psutil
from holdfast.adapters.shared.device.host_memory import give_back_freed
from holdfast.bootstrap.process.library_environment import set_library_defaults
set_library_defaults()
resident = lambda: psutil.Process().memory_info().rss >> 20
before = resident()
taken, last = [bytearray(b"x") * (1 << 20) for _ in range(200)], bytearray(b"x") * (1 << 20)
del taken
kept = resident() - before
give_back_freed()
print(kept > 180, resident() - before < 20)
"""


pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the limit is of glibc's allocator")


def heaps(folder, *command, **environ):
    """Return how many heaps ``THREADS`` threads share in a process that has run ``command``, which comes to nothing."""
    told = folder / "malloc_info.xml"
    known = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    child = [sys.executable, "-c", CHILD, str(told), *command]
    subprocess.run(child, cwd=folder, env=known | {"PYTHONPATH": str(ROOT)} | environ, check=True, timeout=280)
    return told.read_text().count("<heap nr=")


@pytest.mark.parametrize("command", ["train strange=1", "prepare strange=1", "evaluate nowhere", "generate nowhere"])
def test_a_command_limits_the_heaps_of_threads(tmp_path, command):
    """Threads of a process that runs a command share one heap a core and eight more."""
    assert heaps(tmp_path, *command.split()) == HEAPS


def test_the_heaps_are_as_many_as_the_user_says(tmp_path):
    """Another number in the environment stays, and a process that runs no command has the C library's own limit."""
    assert heaps(tmp_path, "evaluate", "nowhere", MALLOC_ARENA_MAX=str(HEAPS + 2)) == HEAPS + 2
    assert heaps(tmp_path) != HEAPS


def test_what_was_freed_can_be_given_back():
    """Memory that the process keeps for the next step, below what is in use too, goes back when it is told to."""
    child = subprocess.run(
        [sys.executable, "-c", GIVEN_BACK],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True, timeout=280,
    )  # fmt: skip
    assert child.stdout == "True True\n"


@pytest.mark.parametrize(("environ", "stays"), [({}, "True"), ({"MALLOC_TRIM_THRESHOLD_": "131072"}, "False")])
def test_freed_tensors_stay_mapped(environ, stays):
    """A block of 100 MiB that is freed stays the process's for the next step, unless the environment says otherwise."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", KEPT]
    child = subprocess.run(
        command,
        env=known | {"PYTHONPATH": str(ROOT)} | environ,
        check=True,
        timeout=280,
        capture_output=True,
        text=True,
    )
    assert child.stdout.split()[-1] == stays


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no huge pages")
def test_tensors_of_a_run_ask_for_huge_pages():
    """A large tensor lies in memory that was advised to be of huge pages, unless the user decided otherwise."""
    name = "THP_MEM_ALLOC_ENABLE"
    known = {key: value for key, value in os.environ.items() if key != name} | {"PYTHONPATH": str(ROOT)}
    asked = []
    for chosen in ({}, {name: "0"}):
        command = [sys.executable, "-c", HUGE_PAGES]
        child = subprocess.run(command, env=known | chosen, capture_output=True, text=True, check=True, timeout=280)
        asked.append(child.stdout.strip())

    assert asked == ["True", "False"]
