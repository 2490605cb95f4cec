"""The checks of this machine that settings call for, and their findings."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import tempfile
import threading
import time
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.device.host_memory import usable_cpus
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.doctor.device_checks import (
    bind_briefly,
    check_clock,
    check_host_name,
    check_loopback,
    check_memory_room,
    check_model_fits,
    check_open_files,
    check_port,
    check_processes,
    check_threads,
    judge_devices,
    probe_torch,
)
from holdfast.bootstrap.doctor.expected_sizes import named_folders
from holdfast.bootstrap.doctor.finding import Check, Finding, bad, failed, good
from holdfast.bootstrap.doctor.named_places import (
    data_places,
    database_places,
    http_places,
    hub_places,
    is_on_disk,
    places_with_clocks,
)
from holdfast.bootstrap.doctor.needed_extras import (
    PACKAGE,
    allowed_python,
    check_extras,
    check_packages,
    check_plugins,
    check_python,
    check_secrets,
    installed_version,
    needed_extras,
    requirements,
    warn_of_checkout,
)
from holdfast.bootstrap.doctor.network_checks import (
    ask_postgres,
    check_archive,
    check_data,
    check_database,
    check_hub,
    check_ray,
    check_server,
    check_wandb_key,
    connect_briefly,
    mlflow_authorization,
    send_request,
    time_of_servers,
)
from holdfast.bootstrap.doctor.storage_checks import check_shared_memory, check_temporary, look_at_folder, record_checks
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.run_lock import holder_of, is_locked
from holdfast.bootstrap.stages.choose.memory_check import refuse_from_settings
from holdfast.configs.secret_masking import mask_text
from holdfast.configs.sections.distributed import AutoDistributedSettings
from holdfast.domain.fault_tolerance.restart_policy import RetryPolicy
from holdfast.domain.phase import show_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.adapters.state_store.archive.object_store import ObjectStore
    from holdfast.bootstrap.doctor.storage_checks import CheckedFolder
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.phase import ShowPhase

_SECONDS_OF_TORCH = 120.0  # the import of torch and transformers on a busy machine
_SECONDS_OF_FOLDER = 3.0  # times the limit of a check: a folder has five
_NEWEST_FILES = 1000


def diagnose(settings: TrainSettings, seconds: float, show: ShowPhase = show_nothing) -> list[Finding]:
    """Return the findings on this machine for ``settings``; a check may take ``seconds``, that of torch two minutes.

    ``show`` gets the part of the machine that is looked at.
    """
    facts: dict[str, Any] = {}
    software = [
        *version_checks(settings, seconds),
        Check("plugins", lambda: check_plugins(settings), seconds),
        Check("secrets", lambda: check_secrets(settings), seconds),
    ]
    show("software and devices")
    findings = perform_together([*software, _devices(settings, facts)])
    number = _num_processes(settings, len(facts.get("gpus", ())))
    show("memory, names and ports")
    findings += perform_together(_machine(settings, number, seconds))
    show("disks")
    findings += perform_in_turn(_storage(settings, seconds))
    show("network and clock")
    findings += perform_together(_network(settings, seconds))
    return findings + perform_together([Check("clock", lambda: look_at_clock(settings, seconds), seconds)])


def version_checks(settings: TrainSettings, seconds: float) -> Sequence[Check]:
    """Return the checks of Python, packages and extras; without an installation, one that says so in their place."""
    if installed_version(PACKAGE) is None:
        return [Check("packages", lambda: [warn_of_checkout()], seconds)]
    return [
        Check("python", lambda: [check_python(allowed_python())], seconds),
        Check("packages", lambda: check_packages(requirements()), seconds),
        Check("extras", lambda: check_extras(needed_extras(settings), requirements()), seconds),
    ]


def _num_processes(settings: TrainSettings, num_gpus: int) -> int:
    """Return the number of processes of the run on this machine, as far as it is known before Ray starts them."""
    launched = int(os.environ.get("LOCAL_WORLD_SIZE") or 0)
    distributed = settings.distributed
    if launched or not isinstance(distributed, AutoDistributedSettings):
        return max(1, launched)
    if distributed.processes != "auto":
        return distributed.processes
    return max(1, num_gpus) if settings.optimizer.device in ("auto", "cuda") else 1


def _devices(settings: TrainSettings, facts: dict[str, Any]) -> Check:
    """Return the check of the devices, which enters what torch says into ``facts``."""

    def look() -> Iterator[Finding]:
        facts.update(probe_torch(settings, _SECONDS_OF_TORCH))
        yield from judge_devices(facts, is_asked_for_gpu=settings.optimizer.device == "cuda")
        if "failed" in facts:
            return
        on_gpu, number = facts.get("device") == "cuda", _num_processes(settings, len(facts["gpus"]))
        yield check_processes(number, len(facts["gpus"]), on_gpu=on_gpu)
        shared = Path("/dev/shm")  # noqa: S108  it is looked at, no file is made there
        total = shutil.disk_usage(shared).total if shared.is_dir() else None
        if number > 1:
            yield check_shared_memory(total, number, has_gpu=on_gpu)

    return Check("torch", look, _SECONDS_OF_TORCH + 10)


def _machine(settings: TrainSettings, number: int, seconds: float) -> Sequence[Check]:
    def memory() -> Iterator[Finding]:
        room: Any = lazy("holdfast.adapters.shared.device.memory_gauge:host_room")(number)
        free = lazy("holdfast.adapters.shared.device.host_memory:free_bytes")()
        yield check_memory_room(room, free)
        yield check_model_fits(lambda: refuse_from_settings(settings, number))

    def limits() -> Iterator[Finding]:
        yield check_open_files(*resource.getrlimit(resource.RLIMIT_NOFILE), resource.RLIM_INFINITY)
        granted = usable_cpus(environment={})
        yield check_threads(granted, os.environ.get("OMP_NUM_THREADS"), number)

    def names() -> Iterator[Finding]:
        yield check_loopback(bind_briefly)
        yield check_host_name(socket.gethostname(), socket.gethostbyname, bind_briefly, number)
        yield from _ports(settings)

    return [Check("memory", memory, seconds), Check("limits", limits, seconds), Check("host name", names, seconds)]


def _ports(settings: TrainSettings) -> Iterator[Finding]:
    is_new = not RunLayout(settings.run.directory).holds_checkpoints
    for monitor in settings.monitors:
        port = dict(monitor).get("port")
        if monitor.kind in ("prometheus", "page") and port:
            setting, host = f"monitors.{monitor.kind}.port", dict(monitor)["host"]
            needed = monitor.kind == "prometheus" and is_new
            yield check_port(setting, host, port, bind_briefly, is_needed=needed)


def _storage(settings: TrainSettings, seconds: float) -> Sequence[Check]:
    def look(make: Callable[[], CheckedFolder]) -> Iterator[Finding]:
        yield from look_at_folder(make())

    folders = named_folders(settings).items()
    return [
        Check("run lock", lambda: [check_run_lock(settings.run.directory)], seconds),
        *(Check(name, partial(look, make), seconds * _SECONDS_OF_FOLDER) for name, make in folders),
        Check("temporary files", _temporary, seconds),
    ]


def check_run_lock(folder: Path) -> Finding:
    """Return whether another process trains in the run ``folder``."""
    if is_locked(folder):
        remedy = "wait for it, end it, or give this run another run.name"
        return bad("run lock", f"{folder} is in use by {holder_of(folder) or 'another process'}", remedy)
    return good("run lock", "no process trains in the run folder")


def _temporary() -> Iterator[Finding]:
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError:
        remedy = "set TMPDIR to a folder that can be written"
        yield bad("temporary files", "there is no folder that can be written", remedy)
        return
    yield check_temporary(folder, shutil.disk_usage(folder).free, os.environ.get("TMPDIR"))


def _network(settings: TrainSettings, seconds: float) -> Sequence[Check]:
    data = [*data_checks(settings, seconds), *record_checks(settings, seconds)]
    return [*data, *archive_checks(settings, seconds), *_server_checks(settings, seconds)]


def data_checks(settings: TrainSettings, seconds: float) -> Iterator[Check]:
    """Yield a check for each place of data and each repository of the hub that the settings name."""

    def reach(url: str) -> None:
        access = lazy("holdfast.adapters.data_source.file_access:FileAccess")
        policy = RetryPolicy(deadline=seconds / 2, max_delay=1.0)
        lazy("holdfast.adapters.data_source.listing:reach")(url, access(policy, seconds / 2))

    for place in data_places(settings):
        if not place.is_dataset:
            yield Check(place.setting, lambda place=place: [check_data(place, reach)], seconds)  # type: ignore[misc]
    hub = "holdfast.adapters.shared.network.hub:"
    for named in hub_places(settings):

        def look(named: Any = named) -> list[Finding]:
            ask = partial(lazy(f"{hub}ask"), named.path, named.revision, kind=named.kind, seconds=seconds)
            cached = named.kind == "model" and lazy(f"{hub}is_cached")(named.path, named.revision)
            return [check_hub(named, ask, is_offline=lazy(f"{hub}is_offline")(), is_cached=cached)]

        yield Check(named.setting, look, seconds + 10)  # the import of the hub's client takes a while


def archive_checks(settings: TrainSettings, seconds: float) -> Iterator[Check]:
    """Yield the check of the archive, if the settings name one that is no folder."""
    archive, roles = settings.state_store.archive, settings.state_store.roles
    if archive is None or is_on_disk(archive.url):
        return
    url = f"{archive.url.rstrip('/')}/{settings.run.name}"

    def open_store() -> ObjectStore:
        open_object_store = lazy("holdfast.adapters.state_store.archive.open_object_store:open_object_store")
        policy = RetryPolicy(deadline=seconds / 2, max_delay=1.0)
        store: ObjectStore = open_object_store(url, mask=mask_text, policy=policy)
        return store

    def look() -> list[Finding]:
        return [check_archive(url, open_store, may_write="write" in roles, may_delete="delete" in roles)]

    yield Check("state_store.archive.url", look, seconds)


def _server_checks(settings: TrainSettings, seconds: float) -> Iterator[Check]:
    for server in http_places(settings):

        def look(server: Any = server) -> Iterator[Finding]:
            authorization = mlflow_authorization() if "mlflow" in server.setting else None
            yield check_server(server, lambda url: send_request(url, seconds / 2, authorization))
            if "wandb" in server.setting:
                yield check_wandb_key(server.url)

        yield Check(server.setting, look, seconds)
    for database in database_places(settings):

        def ask(database: Any = database) -> list[Finding]:
            has_recorded = RunLayout(settings.run.directory).ledger_calls.is_dir()
            return [check_database(database, lambda dsn: ask_postgres(dsn, seconds / 2), has_recorded=has_recorded)]

        yield Check(database.setting, ask, seconds)
    if settings.distributed.kind == "ray":
        connect = partial(connect_briefly, seconds=seconds / 2)
        yield Check("RAY_ADDRESS", lambda: [check_ray(os.environ.get("RAY_ADDRESS"), connect)], seconds)


def look_at_clock(settings: TrainSettings, seconds: float) -> list[Finding]:
    """Return the finding on the clock, by the files of the package and the run and by servers of the settings."""
    places = places_with_clocks(settings)
    server = time_of_servers(places, lambda url: send_request(url, seconds / max(2, len(places) + 1)))
    newest, installed = _newest_file(settings.run.directory), Path(__file__).stat().st_mtime
    return [check_clock(time.time(), installed, newest, server, needs_network=bool(places))]


def _newest_file(folder: Path) -> float:
    """Return the time of the newest of some files of the run in ``folder``, 0 without a folder that can be listed."""
    newest = 0.0
    with suppress(OSError):  # that of a new run; another cause is a finding on the folder itself
        for file in islice(folder.iterdir(), _NEWEST_FILES):
            newest = max(newest, file.lstat().st_mtime)
    return newest


def perform_together(checks: Sequence[Check]) -> list[Finding]:
    """Return the findings of all ``checks`` in their order; all run at once, each within its own time limit.

    A check that takes longer is left alone in its thread; the findings that it had until then count.
    """
    running = [_Running(check) for check in checks]
    return [finding for each in running for finding in each.findings()]


def perform_in_turn(checks: Sequence[Check]) -> list[Finding]:
    """Return the findings of ``checks``, each of which begins after the one before, so that they do not compete."""
    return [finding for check in checks for finding in perform_together([check])]


class _Running:
    def __init__(self, check: Check) -> None:
        self._check = check
        self._found: list[Finding] = []
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._look, name=f"holdfast-{check.name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the memory limit leaves no room for another thread
            self._look()

    def findings(self) -> list[Finding]:
        """Wait for the rest of the time limit; return the findings until then."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, self._began + self._check.seconds - time.monotonic()))
        findings = [*self._found]
        if self._thread.is_alive():
            detail = f"no answer within {self._check.seconds:g} s"
            remedy = "check whether a disk, file system or server that it needs hangs; --timeout allows more time"
            findings.append(bad(self._check.name, detail, remedy))
        return findings

    def _look(self) -> None:
        try:
            for finding in self._check.look():
                self._found.append(finding)  # one by one, as the reader may not wait for the last
        except Exception as error:  # noqa: BLE001  any error of a check is a finding
            self._found.append(failed(self._check.name, error))
