"""Preparation of data by several workers: ``python -m benchmarks.prepare``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from benchmarks.report import Figure, interval_of_median, main
from benchmarks.smoke import has_peer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

_FILES, _FILE_BYTES = 8, 6_000_000
_UNITS = (1_000, 100_000)
_GOAL = 1.8
_WORDS = "the of and a to in is was he for it with as his on be at by had not are but from or have an they"


def write_corpus(folder: Path, *, num_files: int = _FILES, num_bytes: int = _FILE_BYTES) -> None:
    """Write files of equal size, each of which becomes a shard."""
    chance, letters = np.random.default_rng(0), list("etaoinshrdlucmfwypvbgkjqxz")
    words = [*_WORDS.split(), *("".join(chance.choice(letters, chance.integers(3, 10))) for _ in range(20_000))]
    folder.mkdir()
    for number in range(num_files):
        with (folder / f"{number:02}.jsonl").open("w", encoding="utf-8") as file:
            while file.tell() < num_bytes:
                file.write(json.dumps({"text": " ".join(chance.choice(words, 400))}) + "\n")


def settings_of(home: Path, cache: Path) -> list[str]:
    """Return the settings of all ways; the shards go to ``cache``."""
    return [
        f"data.path={home / 'corpus'}",
        "data.kind=files",
        "tokenizer.vocabulary_size=1000",
        "tokenizer.backend=huggingface",
        f"run.cache_dir={cache}",
        "data.workers=1",
    ]


def seconds_of_parts(home: Path, cache: Path, num_workers: int) -> float:
    """Return the time in which processes of one thread each make all shards, one part of them each."""
    began = time.monotonic()
    parts = [
        subprocess.Popen(
            [sys.executable, "-m", "holdfast", "prepare", "--part", f"{part}/{num_workers}", *settings_of(home, cache)],
            env=os.environ | _one_thread(),
            stdout=subprocess.DEVNULL,
        )
        for part in range(num_workers)
    ]
    codes = [part.wait() for part in parts]
    seconds = time.monotonic() - began
    if any(codes):
        message = f"prepare --part ended with the codes {codes}"
        raise SystemExit(message)
    return seconds


def seconds_on_ray(home: Path, cache: Path, num_workers: int) -> float:
    """Return the time in which a local Ray with that many processors makes all shards, without the start of Ray."""
    found = _child("shards", *settings_of(home, cache), num_cpus=num_workers)
    if found["object_store_bytes"]:
        message = f"{found['object_store_bytes']} bytes were in Ray's object store, which no text passes through"
        raise SystemExit(message)
    return float(found["seconds"])


def tokens_in(cache: Path) -> Mapping[str, bytes]:
    """Return the bytes of the shards in ``cache``."""
    paths = sorted((cache / "tokens").rglob("*.bin"))
    return {str(path.relative_to(cache)): path.read_bytes() for path in paths}


def _one_thread() -> Mapping[str, str]:
    from holdfast.bootstrap.operations.prepare_on_ray import ONE_THREAD

    return ONE_THREAD


def _child(task: str, *arguments: str, num_cpus: int) -> Mapping[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.prepare", "child", task, str(num_cpus), *arguments],
        env=os.environ | {"RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": num_cpus})},
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def child(task: str, *arguments: str) -> None:
    """Print what ``task`` measures on a local Ray, as JSON."""
    import ray

    from holdfast.bootstrap.operations.prepare_on_ray import ONE_THREAD

    ray.init(log_to_driver=False, include_dashboard=False, runtime_env={"env_vars": ONE_THREAD})
    print(json.dumps(_TASKS[task](ray, *arguments)))


def _make_shards(ray: Any, num_cpus: str, *words: str) -> Mapping[str, Any]:
    from holdfast.bootstrap.operations.open_preparation import open_preparation
    from holdfast.bootstrap.operations.prepare_on_ray import RayTasks, make_part
    from holdfast.configs.rendering import dump_settings
    from holdfast.configs.settings_layers import load_settings
    from holdfast.domain.data.work_part import NO_WORK
    from holdfast.domain.phase import show_nothing

    settings = load_settings([], list(words), {}).settings
    opened = open_preparation(settings, _forget, _forget, show_nothing, NO_WORK)
    _, num_shards = opened.num_missing()
    most = _Peak(ray)
    dumped = json.dumps(dump_settings(settings))
    RayTasks(ray, dumped, int(num_cpus), show_nothing).run(_warm_up, "starting workers")
    began = time.monotonic()
    RayTasks(ray, dumped, num_shards, lambda *_: most.look()).run(make_part, "tokenizing")
    return {"seconds": time.monotonic() - began, "object_store_bytes": most.object_store_bytes}


def _hold_units(ray: Any, _: str, num_units: str) -> Mapping[str, Any]:
    from holdfast.bootstrap.operations.prepare_on_ray import RayTasks
    from holdfast.domain.phase import show_nothing

    RayTasks(ray, "", 100, show_nothing).run(_do_nothing, "warming up")
    before = psutil.Process().memory_info().rss
    most = _Peak(ray)
    RayTasks(ray, "", int(num_units), lambda *_: most.look()).run(_do_nothing, "counting")
    return {"grown_bytes": most.rss - before, "object_store_bytes": most.object_store_bytes}


class _Peak:
    """The peaks of this process's memory and of the cluster's object store, where they are looked at."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._next = 0.0
        self.rss, self.object_store_bytes = psutil.Process().memory_info().rss, 0

    def look(self) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + 0.2
        self.rss = max(self.rss, psutil.Process().memory_info().rss)
        total = self._ray.cluster_resources()["object_store_memory"]
        used = total - self._ray.available_resources().get("object_store_memory", total)
        self.object_store_bytes = max(self.object_store_bytes, int(used))


def _warm_up(_: str, number: int, num_parts: int) -> int:
    from holdfast.bootstrap.operations import open_preparation  # noqa: F401  the import is not the work

    time.sleep(0.5)
    return number * 0 + num_parts * 0


def _do_nothing(_: str, number: int, num_parts: int) -> int:
    return number * 0 + num_parts * 0


def _forget(_: object) -> None:
    pass


_TASKS: Mapping[str, Callable[..., Mapping[str, Any]]] = {"shards": _make_shards, "units": _hold_units}


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the gain of a second worker, and the memory of the process that coordinates."""
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        write_corpus(home / "corpus", **({"num_files": 2, "num_bytes": 20_000} if options.smoke else {}))
        ways: dict[str, Callable[[Path, Path, int], float]] = {
            "`--part` in processes": seconds_of_parts,
        }
        has_ray = has_peer("ray", is_smoke=options.smoke)
        if has_ray:
            ways["`--on ray`"] = seconds_on_ray
        for name, way in ways.items():
            figures.append(_gain(home, name, partial(way, home), 1 if options.smoke else options.pairs))
    if has_ray:
        figures.append(_memory((10, 100) if options.smoke else _UNITS))
    return figures


def _gain(home: Path, name: str, seconds_with: Callable[[Path, int], float], pairs: int) -> Figure:
    seconds_with(home / "warm", 1)  # trains the tokenizer, which all then share
    expected, gains = tokens_in(home / "warm"), []
    for _ in range(pairs):
        found = {}
        for num_workers in (1, 2):
            cache = home / f"with-{num_workers}"
            shutil.copytree(home / "warm", cache)
            shutil.rmtree(cache / "tokens")
            found[num_workers] = seconds_with(cache, num_workers)
            if tokens_in(cache) != expected or not expected:
                message = f"{name} with {num_workers} workers made other bytes"
                raise SystemExit(message)
            shutil.rmtree(cache)
        gains.append(found[1] / found[2])
    shutil.rmtree(home / "warm")
    middle, low, high = interval_of_median(gains)
    title = f"{name}: time of one worker of one thread / of two, median of {pairs} pairs [95 % interval]"
    return Figure(title, f"{middle:.2f} [{low:.2f}, {high:.2f}]", f">= {_GOAL}", high >= _GOAL)


def _memory(units: tuple[int, int]) -> Figure:
    few, many = (_child("units", str(number), num_cpus=2)["grown_bytes"] for number in units)
    title = f"`--on ray`: growth of the coordinating process over {units[0]:,} and over {units[1]:,} empty units"
    return Figure(title, f"{few / 2**20:.1f} and {many / 2**20:.1f} MiB", "within 20 MiB", abs(many - few) < 20 << 20)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(*sys.argv[2:])
    else:
        main(
            "prepare",
            f"`prepare` of {_FILES} files of {_FILE_BYTES // 10**6} MB each by workers of one thread. `--part` counts "
            "the start of its processes, `--on ray` does not count that of Ray and of its workers. The bytes are "
            "compared before times count, and "
            "Ray's object store has to stay empty.",
            measure,
            ("tokenizers", "ray"),
            add_options=lambda parser: parser.add_argument(
                "--pairs", type=int, default=5, metavar="N", help="pairs of each way; default: 5"
            ),
        )
