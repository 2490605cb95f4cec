"""Makes the shards of the data of a run on the machines of a Ray cluster."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, final

from holdfast.bootstrap.operations.open_preparation import open_preparation
from holdfast.bootstrap.stages.open_run.screen import phases_shown
from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings_layers import restore_settings
from holdfast.domain.data.work_part import NO_WORK, WHOLE, WorkPart
from holdfast.domain.errors import ConfigurationError, RestartNeeded, TrainingError
from holdfast.domain.phase import Amount, show_nothing

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.bootstrap.operations.open_preparation import OpenPreparation
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.phase import ShowPhase

    Task = Callable[[str, int, int], int]

MISSING = '--on ray needs another package: pip install "holdfast-lm[ray]"'

_WAITING = 2  # tasks for each processor of the cluster that Ray has at a time
ONE_THREAD = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}


def make_on_ray(settings: TrainSettings, *, is_quiet: bool = False) -> int:
    """Make the missing shards of the data of ``settings`` in tasks of Ray; return the number of their tokens.

    The tasks open the text themselves.

    The cluster is that of ``RAY_ADDRESS``, or this machine. All its machines need the data, ``run.cache_dir`` and the
    folder of the token cache at the same paths. A task whose process or machine dies is started again, and after a kill
    of this process another call makes what is missing. Settings, numbers and counts are all that passes through Ray.

    Raises ``ConfigurationError`` without the extra ``ray``, the error of a task, and ``TrainingError`` if the cluster
    ends the tasks.
    """
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise ConfigurationError(MISSING) from error
    with phases_shown(is_quiet=is_quiet) as show:
        opened = open_preparation(settings, _forget, _forget, show, NO_WORK)
        num_missing, num_shards = opened.num_missing()
        if not num_missing:
            return 0
        ray.init(log_to_driver=False, include_dashboard=False, runtime_env={"env_vars": ONE_THREAD})
        cluster = RayTasks(ray, json.dumps(dump_settings(settings)), num_shards, show)
        try:
            while not _is_searched(opened):
                cluster.run(search_part, "finding duplicates")
            return cluster.run(make_part, "tokenizing")
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, TrainingError):
                raise error.cause from None
            raise
        except ray.exceptions.RayError as error:
            msg = f"Ray ended the preparation: {error}; the same command continues it"
            raise TrainingError(msg) from error
        finally:
            ray.shutdown()


@final
class RayTasks:
    """Runs one task for each of ``num_parts`` parts of the work, a few for each processor of the cluster at a time.

    ``ray`` is the module, connected to a cluster. Tasks get ``settings`` as JSON.
    """

    def __init__(self, ray: Any, settings: str, num_parts: int, show: ShowPhase) -> None:
        self._ray = ray
        self._settings = settings
        self._num_parts = num_parts
        self._show = show

    def run(self, task: Task, phase: str) -> int:
        """Run ``task`` for each part, with the settings, its number and the number of parts; return the sum.

        ``phase`` is shown with the number of parts that are done.
        """
        remote = self._ray.remote(num_cpus=1, max_retries=-1)(task)
        most = max(1, _WAITING * int(self._ray.cluster_resources().get("CPU", 1)))
        running: list[Any] = []
        done, total = 0, 0
        for number in range(self._num_parts):
            running.append(remote.remote(self._settings, number, self._num_parts))
            if len(running) >= most:
                ready, running = self._ray.wait(running)
                total += sum(self._ray.get(ready))
                done += len(ready)
                self._show(phase, Amount(done, self._num_parts, "shards"))
        total += sum(self._ray.get(running))
        self._show(phase, Amount(self._num_parts, self._num_parts, "shards"))
        return int(total)


def make_part(settings: str, number: int, num_parts: int) -> int:
    """Make the missing shards of a part of the work; return the number of new tokens. ``settings`` are JSON."""
    return _opened(settings, str(WHOLE)).make(WorkPart(number, num_parts), workers=1).new_tokens


def search_part(settings: str, number: int, num_parts: int) -> int:
    """Compute the keys of a part of the units for the next search of duplicates; return 0. ``settings`` are JSON."""
    _is_searched(_opened(settings, f"{number}/{num_parts}"))
    return 0


def _is_searched(opened: OpenPreparation) -> bool:
    """Return whether all searches have found their result, False if one of them waits for keys of other parts."""
    try:
        opened.search()
    except RestartNeeded:
        return False
    return True


@lru_cache(maxsize=1)
def _opened(settings: str, part: str) -> OpenPreparation:
    """Return the parts that tokenize, which one process of Ray uses for several tasks."""
    restored = restore_settings(json.loads(settings))
    return open_preparation(restored, _forget, _forget, show_nothing, WorkPart.parse(part))


def _forget(_: object) -> None:
    pass
