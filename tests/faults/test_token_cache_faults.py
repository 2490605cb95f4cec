"""What a token cache on disk holds after a kill, a full disk or a damaged byte, whenever it happens."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from holdfast.adapters.key_provider.memory import MemoryKeyProvider
from holdfast.adapters.shared.token_store.folder_operations import TokenFileOperations
from holdfast.adapters.shared.token_store.token_encryption import ShardEncryption
from holdfast.adapters.token_cache.disk import DiskTokenCache
from holdfast.domain.errors import StateError, TokensLost
from holdfast.ports.token_source import Tokens
from tests.support.crash_driver import in_child
from tests.support.file_faults import MEMORY, FailAt, KillAt, Recorder, files_under, run_through

REPOSITORY = Path(__file__).parents[2]
NAMES = ["0", "1", "2", "3"]
BUDGET = 20_000


class WatchedTokenFiles(TokenFileOperations):
    def __init__(self, around):
        self.around = around


def _watched(name):
    operation = getattr(TokenFileOperations, name)
    return lambda self, path, *arguments: self.around(name, path, lambda: operation(self, path, *arguments))


for _name in dir(TokenFileOperations):
    if not _name.startswith("_") and _name != "remove_tree":
        setattr(WatchedTokenFiles, _name, _watched(_name))


def mask_of(name, ids):
    """Return the loss mask of a part: the shards with an odd name have one."""
    return ids % 3 != 0 if int(name) % 2 else None


def parts(name, around=run_through):
    """Yield three parts that follow from the name alone."""
    for number in range(3):
        ids = np.random.default_rng([int(name), number]).integers(0, 1000, 1000).astype(np.uint16)
        yield around(
            "part",
            Path(name),
            lambda ids=ids: Tokens(ids, np.array([0, 400, 1000]), ids[:2].astype(np.uint64), mask_of(name, ids)),
        )


def halves(tokens):
    return {"halves": np.array([len(tokens.ids) // 2])}


def fill(root, around=run_through, budget=None, names=NAMES, encryption=None):
    tokens = DiskTokenCache(root, "dataset", files=WatchedTokenFiles(around), budget=budget, encryption=encryption)
    for name in tokens.missing(names):
        tokens.derive(tokens.put(name, parts(name, around), {"name": name}), "halves", halves)


def finish(root, names=NAMES):
    """Fill what is missing, derive again, and return all files."""
    fill(root, names=names)
    tokens = DiskTokenCache(root, "dataset")
    for shard in tokens.shards():
        tokens.derive(shard, "halves", halves)
    return files_under(root)


@pytest.fixture
def root():
    with TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder) / "deep/cache"


@cache
def undisturbed():
    with TemporaryDirectory(dir=MEMORY) as folder:
        return finish(Path(folder) / "cache")


def outcomes_after_kills(act, judge):
    """Print what ``judge`` says of a place after a child was killed before and after each file operation of ``act``."""
    outcomes = []
    for point in range(2000):
        killer = KillAt(point)
        status, count = in_child(lambda: act(point, killer) or killer.count)  # noqa: B023
        if status == 0 and 2 * count <= point:
            break
        if status != 0:  # an operation that failed as it should was none to be killed after
            assert os.WIFSIGNALED(status), f"the child failed by itself at point {point}"
            outcomes.append(in_child(lambda: judge(point))[1])  # noqa: B023
    sys.stdout.write(json.dumps(outcomes))


def killed_everywhere(folder):
    expected = finish(folder / "expected", NAMES[1:2])
    outcomes_after_kills(
        lambda point, killer: fill(folder / f"{point}/deep/cache", killer, names=NAMES[1:2]),
        lambda point: finish(folder / f"{point}/deep/cache", NAMES[1:2]) == expected,
    )


def killed_evicting(folder):
    fill(folder / "full", names=NAMES[:2])

    def evict(point, killer):
        shutil.copytree(folder / "full", folder / f"{point}")
        fill(folder / f"{point}", killer, BUDGET, NAMES[2:3])

    outcomes_after_kills(evict, lambda point: is_sound_within_budget(folder / f"{point}"))


def killed_encrypting(folder):
    def is_dark_and_sound(place):
        secret = next(parts(NAMES[1])).ids.tobytes()[:64]
        is_dark = not any(secret in data for data in files_under(place).values())
        fill(place, names=NAMES[1:2], encryption=encryption())
        tokens = DiskTokenCache(place, "dataset", encryption=encryption())
        return is_dark and is_sound(tokens) and tokens.missing(NAMES[1:2]) == []

    outcomes_after_kills(
        lambda point, killer: fill(folder / f"{point}", killer, names=NAMES[1:2], encryption=encryption()),
        lambda point: is_dark_and_sound(folder / f"{point}"),
    )


def encryption():
    return ShardEncryption(MemoryKeyProvider(b"\x01" * 32))


def is_sound(tokens):
    return all(is_as_put(tokens.open(shard), shard.name) for shard in tokens.shards())


def is_as_put(opened, name):
    ids = np.concatenate([part.ids for part in parts(name)])
    mask = mask_of(name, ids)
    has_mask = opened.loss_mask is not None and np.array_equal(opened.loss_mask[:], mask)
    return np.array_equal(opened.ids[:], ids) and (opened.loss_mask is None if mask is None else has_mask)


def is_sound_within_budget(place):
    tokens = DiskTokenCache(place, "dataset", budget=BUDGET)
    tokens.put("4", parts("4"), {})
    if not is_sound(tokens):
        return False
    return sum(map(len, files_under(place / "dataset").values())) <= BUDGET and not any((place / ".tmp").iterdir())


def driven(*arguments):
    """Run this file as a program."""
    command = [sys.executable, __file__, *map(str, arguments)]
    environment = {"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    "scenario",
    [
        "killed_everywhere",
        *(pytest.param(f"killed_{kind}", marks=pytest.mark.slow) for kind in ("evicting", "encrypting")),
    ],
)
def test_a_kill_at_any_point_is_made_good(scenario):
    """Killed at any file operation, a cache is filled to the same tokens, in budget, and a sealed one tells nothing."""
    with TemporaryDirectory(dir=MEMORY) as folder:
        driver = driven(scenario, folder)
        output, errors = driver.communicate(timeout=100)
    assert driver.returncode == 0, errors
    outcomes = json.loads(output)
    assert len(outcomes) > 60
    assert [point for point, is_good in enumerate(outcomes) if not is_good] == []


@pytest.mark.parametrize("seed", range(5))
def test_a_process_killed_at_a_random_moment_is_made_good(root, seed):
    """A process that fills a cache, killed from outside at any moment, leaves what another fills to the same bytes."""
    filler = driven("slowly", root)
    for _ in range(random.Random(seed).randrange(1, 60)):
        filler.stdout.readline()
    filler.send_signal(signal.SIGKILL)
    filler.communicate(timeout=100)
    assert finish(root) == undisturbed()
    assert list((root / ".tmp").iterdir()) == []


def test_the_draft_of_a_killed_process_is_removed_although_nothing_is_missing(root):
    """Another process has made the shard meanwhile: the next start deletes what nobody writes any more, and no more."""
    writer = driven("waiting", root)
    assert writer.stdout.readline() == "waits\n"
    expected = finish(root)
    assert DiskTokenCache(root, "dataset").missing(NAMES) == []
    assert len(list((root / ".tmp").iterdir())) == 1
    writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=100)
    assert DiskTokenCache(root, "dataset").missing(NAMES) == []
    assert list((root / ".tmp").iterdir()) == []
    assert {name: data for name, data in expected.items() if not name.startswith(".tmp/")} == files_under(root)


def waiting(root):
    """Wait for ever in the middle of a shard."""

    def wait(name, path, operation):
        if (name, path.name) == ("part", "2"):
            sys.stdout.write("waits\n")
            sys.stdout.flush()
            time.sleep(1000)
        return operation()

    fill(root, wait)


def slowly(root):
    def tell(name, path, operation):
        sys.stdout.write(f"{name} {path.name}\n")
        sys.stdout.flush()
        return operation()

    fill(root, tell)


def test_two_processes_fill_one_cache(root):
    """Processes that fill the same cache at once end well, and leave the bytes of one."""
    fillers = [driven("slowly", root) for _ in range(2)]
    outputs = [filler.communicate(timeout=100) for filler in fillers]
    assert [filler.returncode for filler in fillers] == [0, 0], outputs
    assert finish(root) == undisturbed()
    assert list((root / ".tmp").iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for-good"])
def test_a_failing_operation_damages_nothing(root, code, for_good):
    """Whichever file operation fails, the error is ``StateError``, complete shards stay, and mended it is filled."""
    for point in range(1000):
        place = root / f"{point}/cache"
        fault = FailAt(point, code, for_good=for_good)
        with contextlib.suppress(StateError):
            fill(place, lambda name, path, operation: operation() if name == "part" else fault(name, path, operation))  # noqa: B023
        for shard in DiskTokenCache(place, "dataset").shards():
            assert is_as_put(DiskTokenCache(place, "dataset").open(shard), shard.name), fault
        assert finish(place) == undisturbed(), fault
        if not fault.failed:
            break
    assert point > 60


def test_nothing_gets_its_name_before_it_is_durable(root):
    """A shard's files and its folder are synced before it is moved to its place, and its place after."""
    recorder = Recorder()
    DiskTokenCache(root, "dataset", files=WatchedTokenFiles(recorder)).put("1", parts("1"), {})
    operations = [(name, path.name) for name, path in recorder.operations]
    draft = next(
        path.name for name, path in recorder.operations if name == "make_folder" and path.parent.name == ".tmp"
    )
    publish = operations.index(("rename", draft))
    files = ["tokens.bin", "offsets.bin", "hashes.bin", "loss_mask.bin", "manifest.json"]
    for name in files:
        written = max(
            operations.index(each) for each in [("append_file", name), ("write_file", name)] if each in operations
        )
        assert ("sync_file", name) in operations[written:publish]
    assert ("sync_folder", draft) in operations[operations.index(("sync_file", "manifest.json")) : publish]
    assert {("sync_folder", "dataset"), ("sync_folder", ".tmp")} <= set(operations[publish:])
    assert operations.index(("sync_folder", "cache"), operations.index(("make_folder", "dataset"))) < publish


def test_a_full_disk_is_told_and_leaves_what_was_there(root):
    """A shard that does not fit raises ``StateError`` with the place and a remedy, and takes nothing with it."""
    tokens = DiskTokenCache(root, "dataset")
    tokens.put("0", parts("0"), {})
    before, limit = files_under(root), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limit[1]))
    try:
        with pytest.raises(StateError, match=str(root)):
            tokens.put("1", parts("1"), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert files_under(root) == before
    with pytest.raises(StateError, match="no space left on device: free some space"):
        DiskTokenCache(root, "dataset", files=WatchedTokenFiles(FailAt(6, errno.ENOSPC))).put("1", parts("1"), {})


@pytest.mark.parametrize("name", ["tokens.bin", "offsets.bin", "hashes.bin", "loss_mask.bin", "manifest.json"])
def test_a_damaged_byte_is_found_and_made_good(root, name):
    """A flipped bit, a cut or a longer file in any place of a shard never gets used, and running again mends it."""
    chance = random.Random(name)
    for damage in ["flip"] * 12 + ["cut", "empty", "grow", "gone"]:
        expected = finish(root)
        path = next(path for path in root.rglob(name) if b'"name":"1"' in (path.parent / "manifest.json").read_bytes())
        data = bytearray(path.read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        changed = {"flip": bytes(data), "cut": bytes(data[:-1]), "empty": b"", "grow": bytes(data) + b"\0"}
        tokens = DiskTokenCache(root, "dataset")
        shard = next(shard for shard in tokens.shards() if shard.name == "1")
        path.unlink()
        if damage in changed:
            path.write_bytes(changed[damage])
        with pytest.raises(TokensLost, match=r"'1'.*run the same command"):
            tokens.open(shard)
        assert tokens.missing(NAMES) == ["1"]
        mended = finish(root)
        assert {name: mended[name] for name in expected if not name.startswith(".quarantine")} == {
            name: data for name, data in expected.items() if not name.startswith(".quarantine")
        }


def test_damage_is_found_by_another_process_before_it_is_listed(root):
    """A shard whose manifest is no longer right is missing for whoever comes next, and is made again."""
    expected = finish(root)
    manifest = next(root.rglob("manifest.json"))
    manifest.write_bytes(manifest.read_bytes().replace(b'"num_documents":6', b'"num_documents":5'))
    tokens = DiskTokenCache(root, "dataset")
    assert len(tokens.missing(NAMES)) == 1
    assert {name: data for name, data in finish(root).items() if not name.startswith(".quarantine")} == expected


@pytest.mark.parametrize("damage", [lambda data: data[:-8], lambda data: b"", lambda data: b"\xff" * 8, None])
def test_damaged_derived_arrays_are_made_again(root, damage):
    """A derived file that is torn, empty, strange or has a flipped bit is made anew."""
    expected = finish(root)
    path = next(root.rglob("derived-*"))
    data = path.read_bytes()
    path.write_bytes(damage(data) if damage else data[:-1] + bytes([data[-1] ^ 1]))
    assert finish(root) == expected


def test_the_derived_arrays_of_another_shard_are_made_again(root):
    """A derived file that was put in the place of another is sound by itself, and is not taken for the other."""
    expected = finish(root)
    first, second, *_ = sorted(root.rglob("derived-*"))
    first.write_bytes(second.read_bytes())
    assert finish(root) == expected


if __name__ == "__main__":
    scenarios = (killed_everywhere, killed_evicting, killed_encrypting, slowly, waiting)
    {scenario.__name__: scenario for scenario in scenarios}[sys.argv[1]](Path(sys.argv[2]))


def test_a_pipe_in_place_of_derived_arrays_is_replaced(root, caplog):
    """A pipe where arrays are stored is not waited for: they are computed again and stored there."""
    expected = finish(root, NAMES[:1])
    (path,) = root.rglob("derived-*")
    path.unlink()
    os.mkfifo(path)
    assert finish(root, NAMES[:1]) == expected
    assert "is computed again" in caplog.text
