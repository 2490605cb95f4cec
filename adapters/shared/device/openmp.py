"""The number of torch's OpenMP threads, and the time they spin at a barrier."""

from __future__ import annotations

import ctypes
import os
import resource
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, final

import torch
from torch.utils import deterministic as _deterministic

from holdfast.adapters.shared.device.host_memory import allowed_cpus, usable_cpus
from holdfast.domain.resources.balance_policy import ThreadTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.domain.resources.balance_policy import Spinning

_ROOT = Path("/")
_MOST = 0.5  # fraction of a limit: other programs start threads too
_NEVER_OVERCOMMIT = "2"


def has_room_for_threads(number: int, root: Path = _ROOT) -> bool:
    """Return whether ``number`` more threads leave half of each limit on threads free, and memory is not limited.

    ``root`` is where ``proc`` and ``sys`` are mounted. Unreadable limits are ignored.
    """
    if any(
        resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    ):
        return False
    if _text(root / "proc/sys/vm/overcommit_memory") == _NEVER_OVERCOMMIT:
        return False
    return all(used + number <= _MOST * limit for used, limit in _limits(root))


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield the number of threads and its limit: of each control group, of the system, of this user."""
    for group in _groups(root):
        used, limit = _text(group / "pids.current"), _text(group / "pids.max")
        if used.isdigit() and limit.isdigit():
            yield int(used), int(limit)
    in_system = _text(root / "proc/loadavg").partition("/")[2].partition(" ")[0]
    for name in ("threads-max", "pid_max"):
        limit = _text(root / "proc/sys/kernel" / name)
        if in_system.isdigit() and limit.isdigit():
            yield int(in_system), int(limit)
    of_user, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if of_user != resource.RLIM_INFINITY:
        yield _threads_of_user(root), of_user


def _threads_of_user(root: Path) -> int:
    number = 0
    for process in (root / "proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == os.getuid():
                number += sum(1 for _ in (process / "task").iterdir())
        except OSError:  # it has ended since
            continue
    return number


def _groups(root: Path) -> Iterator[Path]:
    """Yield the control groups of this process, and those around them, that may limit threads."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        own = PurePosixPath(path.lstrip("/"))
        own = PurePosixPath() if ".." in own.parts else own  # outside what this container sees
        mounts = ("", "unified") if not controllers else ("pids",) if "pids" in controllers.split(",") else ()
        for mount in mounts:
            for group in (own, *own.parents):
                yield root / "sys/fs/cgroup" / mount / group


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape").strip()
    except OSError:
        return ""


_MAPS, _TASKS = Path("/proc/self/maps"), Path("/proc/self/task")
_SECONDS_BETWEEN_LOOKS = 0.5
_PROCESSORS = allowed_cpus()  # when libgomp was loaded, which counts them then


@contextmanager
def threads_of_run(recorded: str = "") -> Iterator[None]:
    """Within the block torch uses one thread for each processor that this process may use.

    A resumed run keeps the number ``recorded`` in its checkpoint if only a quota would change it, as a step's bits
    depend on it. ``OMP_NUM_THREADS`` takes precedence.
    """
    before, wanted = torch.get_num_threads(), usable_cpus()
    if recorded.isdigit() and wanted < int(recorded) <= allowed_cpus():
        wanted = int(recorded)
    if "OMP_NUM_THREADS" in os.environ or wanted >= before:
        yield
        return
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@final
class BriefWaits:
    """Makes the threads of libgomp sleep early at a barrier, whatever GOMP_SPINCOUNT says.

    libgomp lets waiting threads sleep early while it manages more threads in the process than it found processors when
    it was loaded. Therefore a thread of this object makes libgomp start one more thread. libgomp ends the process
    without a save if a thread cannot be started. So this object does nothing if libgomp is not loaded, and nothing from
    then on if ``has_room`` finds too little room for the threads of all ranks on this machine.
    """

    def __init__(self, maps: Path = _MAPS, *, has_room: Callable[[int], bool] = has_room_for_threads) -> None:
        self._libraries = [ctypes.CDLL(path) for path in _loaded(maps)]
        self._has_room = has_room
        self._over: Event | None = None
        self._thread: Thread | None = None

    def begin(self) -> None:
        """Let threads sleep early at barriers; may be called twice."""
        if self._thread is not None or not self._libraries:
            return
        num_ranks = max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
        if not self._has_room((_PROCESSORS + 1) * len(self._libraries) * num_ranks):
            self._libraries = []
            return
        over, is_there = Event(), Event()
        thread = Thread(target=self._crowd, args=(over, is_there), name="holdfast-openmp", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads
            self._libraries = []
            return
        self._over, self._thread = over, thread
        is_there.wait()

    def end(self) -> None:
        """Let threads spin again as GOMP_SPINCOUNT says; may be called twice."""
        if self._over is None or self._thread is None:
            return
        self._over.set()
        self._thread.join()
        self._over = self._thread = None

    def _crowd(self, over: Event, is_there: Event) -> None:
        try:
            nothing = ctypes.CDLL(None).free  # of a null pointer
            for library in self._libraries:
                library.GOMP_parallel(nothing, None, _PROCESSORS + 1, 0)
        except (AttributeError, OSError):  # a libgomp without that function
            self._libraries = []
        finally:
            is_there.set()
        over.wait()


@contextmanager
def spinning_by_load(spinning: Spinning, seconds: float = _SECONDS_BETWEEN_LOOKS) -> Iterator[None]:
    """Within the block a thread checks every ``seconds`` whether threads wait for a processor.

    While ``spinning`` advises it, the threads of libgomp sleep early at barriers. Results do not change.
    """
    waits, over = BriefWaits(), Event()

    def watch() -> None:
        while not over.wait(seconds):
            (waits.begin if spinning.is_brief(thread_times()) else waits.end)()

    thread = Thread(target=watch, name="holdfast-load", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the system gives no more threads
        yield
        return
    try:
        yield
    finally:
        over.set()
        thread.join()
        waits.end()


def thread_times(tasks: Path = _TASKS) -> ThreadTimes:
    """Return the seconds that this process's threads have run so far, and those that they waited for a processor."""
    ran = waited = 0
    for file in tasks.glob("*/schedstat"):
        try:
            own, delay, _ = file.read_text().split()
        except (OSError, ValueError):  # a thread that has ended since
            continue
        ran, waited = ran + int(own), waited + int(delay)
    return ThreadTimes(ran / 1e9, waited / 1e9)


def _loaded(maps: Path) -> Sequence[str]:
    try:
        lines = maps.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # another system, whose OpenMP is another too
        return []
    fields = (line.split(maxsplit=5) for line in lines)
    paths = {each[5] for each in fields if len(each) == 6 and Path(each[5]).name.startswith("libgomp")}
    return sorted(path for path in paths if Path(path).exists())


_fresh_memory: Any = _deterministic  # a module with a property, which type checkers do not see


@contextmanager
def torch_state_preserved(*, deterministic: bool) -> Iterator[None]:
    """Let the block seed torch and, if ``deterministic``, run deterministic kernels; then restore torch's state.

    On a CPU eager torch is deterministic anyway. On a GPU this makes two runs equal, at some cost in speed. Torch's
    default of filling newly allocated memory is off: it finds reads of uninitialized memory, and took 5 % of a step
    on a CPU.
    """
    was_filling = _fresh_memory.fill_uninitialized_memory
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    if deterministic and torch.cuda.is_available():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats itself only with a fixed workspace
    was_warning = torch.is_deterministic_algorithms_warn_only_enabled()
    with torch.random.fork_rng():
        torch.use_deterministic_algorithms(deterministic or was_deterministic, warn_only=True)
        _fresh_memory.fill_uninitialized_memory = was_deterministic and was_filling
        try:
            yield
        finally:
            _fresh_memory.fill_uninitialized_memory = was_filling
            torch.use_deterministic_algorithms(was_deterministic, warn_only=was_warning)
