"""How long training waits for checkpoints, and how fast they are written and restored, against peers."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import main
from benchmarks.state.groups import (
    Plan,
    measure_encrypted,
    measure_files,
    measure_restores,
    measure_saves,
    measure_stall,
)
from benchmarks.state.overhead import Training, measure_overhead, steps_of
from benchmarks.turns import WayEndedError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.report import Figure

_GIGABYTES, _ROUNDS, _CLOSE_ROUNDS = 0.85, 11, 21
_SMALL_GIGABYTES = 0.03
_ROWS, _LENGTH, _PERIOD, _PERIODS = 2, 512, 50, 11
_SLOW_SECONDS = 0.2
_SMALL_PERIOD, _TRIAL_PERIOD, _SMALL_SECONDS = 50, 2, 0.001
_REST = 3.0  # seconds

DESCRIPTION = (
    f"The saved state is the weights of a Llama and the two moments of AdamW in fp32, {_GIGABYTES} GB. The benchmark "
    "runs on a CPU and on the disk of the temporary folder. Each method runs in its own process, which is stopped "
    "while the other methods are measured. The order of the methods changes from round to round. Each ratio compares "
    "two measurements of the same round. Before the measurements, each method saves the state, changes it and "
    "restores it, and all bits must be as before. Before a save begins, the files of the previous save are deleted "
    "and the disk has completed its pending writes. No deletion is timed. Each save or restore is done twice, with a "
    "pause of 3 s between, and only the second is timed. The reason is that a virtual machine returns memory to its "
    "host about 2 s after the memory was freed, and a process that then needs memory waits. With the repetition, no "
    "method has this wait. Without it, when saves were minutes apart on such a machine, each method took two to "
    "three times as long, and the fastest method changed from run to run. The bytes of the raw file are also copied "
    "anew. All processes use Holdfast's settings of the heap and its huge pages. The wait for a save ends when the "
    "parameters may change. `async_save` keeps its staging buffers between saves, in one process (`no_dist`), and "
    "copies in the calling thread or in a separate thread. The captured state and the raw file are hashed (BLAKE3, "
    "all cores) in pieces of 4 MiB. A restore loads into a live model and optimizer. Holdfast verifies the state "
    "while it reads the state, with a small older checkpoint in the same place. The comparison of restores with "
    f"other libraries is repeated {_CLOSE_ROUNDS} times, each time with a new save, because all methods wait for the "
    f"disk and their times are close. The runs with saves train the model of `train` on {_ROWS} rows of {_LENGTH} "
    f"tokens. Each of these runs saves in every second period of {_PERIOD} steps. The time of such a period is "
    "compared with the mean time of the two adjacent periods, so that a process is compared with itself. The losses "
    "are bit-identical."
)

GROUPS: Mapping[str, tuple[Callable[[Plan], Sequence[Figure]], int]] = {
    "stall": (measure_stall, _ROUNDS),
    "write": (measure_files, _ROUNDS),
    "encrypted": (measure_encrypted, _ROUNDS),
    "save": (measure_saves, _ROUNDS),
    "restore": (measure_restores, _CLOSE_ROUNDS),
}
OVERHEAD = "overhead"


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Return the figures of the groups that ``options`` ask for."""
    if options.smoke:
        options.gigabytes = _SMALL_GIGABYTES
    is_whole = options.gigabytes == _GIGABYTES
    if options.write and (options.only or not is_whole):
        message = "--write puts down the whole table, so it takes neither --only nor --gigabytes"
        raise SystemExit(message)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-benchmark-") as folder:
        try:
            if options.only != OVERHEAD:
                figures += _measure_groups(Path(folder), options.gigabytes, options.only, is_whole=is_whole)
            if options.only in (None, OVERHEAD):
                print(f"measuring {OVERHEAD}", file=sys.stderr)
                training = _training(Path(folder), is_whole=is_whole, is_trial=options.smoke)
                figures += measure_overhead(training, is_trial=options.smoke)
        except WayEndedError as error:
            raise SystemExit(str(error)) from error
    return figures


def add_options(parser: argparse.ArgumentParser) -> None:
    """Let one group be measured, or another size."""
    parser.add_argument("--only", choices=[*GROUPS, OVERHEAD], help="measure one group")
    parser.add_argument(
        "--gigabytes", type=float, default=_GIGABYTES, help="size of the state; another one means one quick round"
    )


def _measure_groups(folder: Path, gigabytes: float, only: str | None, *, is_whole: bool) -> Sequence[Figure]:
    from benchmarks.state.material import prepare

    material = folder / "material"
    material.mkdir()
    size = prepare(material, gigabytes)
    print(f"a state of {size / 1e9:.3f} GB", file=sys.stderr)
    figures: list[Figure] = []
    for name, (measure_group, rounds) in GROUPS.items():
        if only in (None, name):
            print(f"measuring {name}", file=sys.stderr)
            room = folder / name
            room.mkdir()
            plan = Plan(material, room, rounds, _REST) if is_whole else Plan(material, room, 1, 0.0, stays=True)
            figures += measure_group(plan)
    return figures


def _training(folder: Path, *, is_whole: bool, is_trial: bool) -> Training:
    from benchmarks.train.__main__ import _SMALL, _WHOLE
    from benchmarks.train.material import prepare as prepare_text

    small = _TRIAL_PERIOD if is_trial else _SMALL_PERIOD
    period, periods, slow = (_PERIOD, _PERIODS, _SLOW_SECONDS) if is_whole else (small, 1, _SMALL_SECONDS)
    scale = _WHOLE if is_whole else _SMALL
    length = _LENGTH if is_whole else scale.length
    room = folder / OVERHEAD
    room.mkdir()
    text = prepare_text(room, vocabulary=scale.vocabulary, length=length, rows=_ROWS * steps_of(period, periods))
    model = [item for item in scale.overrides if not item.startswith("optimizer.")]
    return Training(text, room, [*model, f"optimizer.batch_size={_ROWS}"], period, periods, slow)


if __name__ == "__main__":
    packages = ("torch", "transformers", "safetensors", "blake3", "cryptography", "numpy")
    main("state", DESCRIPTION, measure, packages, add_options=add_options)
