"""Token caches on a disk: whose folder it is, who holds what open, and what a budget does to it."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import psutil
import pytest

from holdfast.adapters.key_provider.memory import MemoryKeyProvider
from holdfast.adapters.shared.token_store.token_encryption import ShardEncryption
from holdfast.adapters.token_cache.disk import DiskTokenCache
from holdfast.domain.data.cache_eviction import FarthestNextUse
from holdfast.domain.errors import ConfigurationError, DataError, TokensLost
from holdfast.ports.testing.token_cache import large, tokens_of
from holdfast.ports.testing.token_source import DOCUMENTS, documents_in, lengths_of
from holdfast.ports.token_source import Tokens

REPOSITORY = Path(__file__).parents[2]
ROOM_FOR_TWO = 150_000


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cache"


def files_under(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_is_made_before_the_first_shard(root):
    """A cache that is only asked what it has leaves no folder behind."""
    cache = DiskTokenCache(root, "dataset")
    assert (list(cache.shards()), cache.missing(["a"]), root.exists()) == ([], ["a"], False)


def test_files_are_raw_and_little_endian(root):
    """Other programs can read the ids, offsets and hashes as they lie, and the manifest says what they are."""
    cache = DiskTokenCache(root, "dataset")
    cache.put("a/b", [tokens_of(DOCUMENTS[:4]), tokens_of(DOCUMENTS[4:])], {"source": "x"})
    (shard,) = (root / "dataset").iterdir()
    expected = tokens_of(DOCUMENTS)
    manifest = json.loads((shard / "manifest.json").read_bytes())
    assert np.fromfile(shard / "tokens.bin", "<u2").tolist() == expected.ids.tolist()
    assert np.fromfile(shard / "offsets.bin", "<i8").tolist() == expected.offsets.tolist()
    assert np.fromfile(shard / "hashes.bin", "<u8").tolist() == expected.hashes.tolist()
    assert (manifest["name"], manifest["dtype"], manifest["meta"]) == ("a/b", "uint16", {"source": "x"})
    assert manifest["sizes"] == {path.name: path.stat().st_size for path in shard.glob("*.bin")}


def test_a_shard_without_a_loss_mask_is_as_earlier_versions_wrote_it(root):
    """Its files are those of version 1 of the format, byte for byte, so caches need not be made again."""
    tokens = Tokens(np.arange(12, dtype=np.uint16), np.array([0, 5, 12]), np.array([3, 2**60], np.uint64))
    shard = DiskTokenCache(root, "dataset").put("a", [tokens], {"units": [["f", 2]]})
    written = {path.name: sha256(path.read_bytes()).hexdigest()[:16] for path in (root / "dataset").rglob("*.*")}
    assert written == {
        "tokens.bin": "a46b67c8fb1c4c35",
        "offsets.bin": "45208bb826c3d396",
        "hashes.bin": "8d956514fd941760",
        "manifest.json": "1aa6dd8bd5439379",
    }
    assert shard.fingerprint == "a96ae15cb6b4097d2a598d7245609daa"


def test_a_loss_mask_is_a_file_of_bits_in_a_newer_format(root):
    """Other programs can read the mask, eight tokens a byte, and versions that would ignore it refuse the shard."""
    cache = DiskTokenCache(root, "dataset")
    cache.put("a", [tokens_of(DOCUMENTS[:4]), tokens_of(DOCUMENTS[4:], modulus=3)], {})
    (shard,) = (root / "dataset").iterdir()
    bits = np.unpackbits(np.fromfile(shard / "loss_mask.bin", "u1"), bitorder="little")
    before = sum(map(len, DOCUMENTS[:4]))
    expected = [*[True] * before, *(token % 3 != 0 for document in DOCUMENTS[4:] for token in document)]
    assert bits[: len(expected)].tolist() == expected
    assert not bits[len(expected) :].any()
    manifest = json.loads((shard / "manifest.json").read_bytes())
    assert manifest["schema"] == 2
    assert manifest["sizes"] == {path.name: path.stat().st_size for path in shard.glob("*.bin")}


def test_the_bytes_do_not_tell_who_wrote_them_or_when(tmp_path):
    """Two caches of the same tokens, cut differently and put in another order, are equal file by file."""
    for name, names, cut in (("one", "ab", 1), ("two", "ba", len(DOCUMENTS))):
        cache = DiskTokenCache(tmp_path / name, "dataset")
        for each in names:
            parts = [tokens_of(DOCUMENTS[start : start + cut]) for start in range(0, len(DOCUMENTS), cut)]
            cache.derive(cache.put(each, parts, {"z": 1, "a": 2}), "lengths", lengths_of)
    assert files_under(tmp_path / "one") == files_under(tmp_path / "two")


def test_a_shard_larger_than_the_buffers_is_whole(root):
    """Parts of any size, some larger than what is written at once, make one shard that verifies."""
    sizes = [10, 3_000_000, 1, 2_500_000]
    cache = DiskTokenCache(root, "dataset")
    shard = cache.put("a", (tokens_of([[number] * size]) for number, size in enumerate(sizes)), {})
    tokens = DiskTokenCache(root, "dataset").open(shard)
    assert np.array_equal(tokens.ids[:], np.repeat(np.arange(4), sizes))


def test_ids_of_two_widths_are_refused(root):
    """Parts of another width than the first, which could not be told apart later, leave no shard."""
    cache = DiskTokenCache(root, "dataset")
    with pytest.raises(TypeError):
        cache.put("a", [tokens_of([[1]]), tokens_of([[1]], np.uint32)], {})
    assert cache.missing(["a"]) == ["a"]


@pytest.mark.parametrize("act", ["shards", "put", "missing"])
def test_a_folder_of_somebody_else_is_refused(root, act):
    """A folder that holds anything and lacks the marker is neither written to nor listed."""
    root.mkdir()
    (root / "thesis.txt").write_text("mine")
    cache = DiskTokenCache(root, "dataset", budget=1)
    arguments = {"shards": (), "put": ("a", large(1), {}), "missing": (["a"],)}[act]
    with pytest.raises(ConfigurationError, match=rf"{root} holds files that Holdfast did not write"):
        getattr(cache, act)(*arguments)
    assert files_under(root) == {"thesis.txt": b"mine"}


@pytest.mark.parametrize("marker", [b"", b"[]", b'{"schema":2}'])
def test_a_marker_that_cannot_be_trusted_is_refused(root, marker):
    """A folder whose marker is damaged or of another version is left alone."""
    root.mkdir()
    (root / "holdfast-token-cache.json").write_bytes(marker)
    with pytest.raises(ConfigurationError, match=str(root)):
        DiskTokenCache(root, "dataset").put("a", large(1), {})
    assert files_under(root) == {"holdfast-token-cache.json": marker}


@pytest.mark.parametrize(
    "encryption", [None, ShardEncryption(MemoryKeyProvider(bytes(32)))], ids=["plain", "encrypted"]
)
def test_a_damaged_marker_is_made_again_beside_sound_shards(root, encryption):
    """Whichever bit of the marker is another, or if it is empty, the shards tell whose folder it is, and stay."""
    DiskTokenCache(root, "dataset", encryption=encryption).put("a", large(1), {})
    before = files_under(root)
    marker = root / "holdfast-token-cache.json"
    sound = marker.read_bytes()
    flipped = []
    for bit in range(0, 8 * len(sound), 5):
        changed = bytearray(sound)
        changed[bit // 8] ^= 1 << bit % 8
        flipped.append(bytes(changed))
    for damaged in [b"", bytes(len(sound)), sound[:10], b"[" * 100_000, *flipped]:
        marker.write_bytes(damaged)
        cache = DiskTokenCache(root, "dataset", encryption=encryption)
        assert cache.missing(["a"]) == []
        cache.put("a", large(1), {})
        found = files_under(root)
        assert found.keys() == before.keys()
        assert json.loads(found.pop(marker.name))["holds"], damaged
        assert found.items() <= before.items()


def test_a_damaged_marker_does_not_mix_encrypted_and_plain_tokens(root):
    """What the shards are decides, also where only the marker said so before."""
    DiskTokenCache(root, "dataset", encryption=ShardEncryption(MemoryKeyProvider(bytes(32)))).put("a", large(1), {})
    (root / "holdfast-token-cache.json").write_bytes(b"{")
    with pytest.raises(ConfigurationError, match="are encrypted: name their key"):
        DiskTokenCache(root, "dataset").put("b", large(1), {})


@pytest.mark.parametrize("fingerprint", ["../outside", "", ".tmp", "a/b", "x" * 500])
def test_a_fingerprint_leads_nowhere_else(tmp_path, root, fingerprint):
    """Whatever a fingerprint says, its shards lie inside the cache and are found again."""
    DiskTokenCache(root, fingerprint).put("a", large(1), {})
    assert DiskTokenCache(root, fingerprint).missing(["a"]) == []
    assert DiskTokenCache(root, "other").missing(["a"]) == ["a"]
    assert list(tmp_path.iterdir()) == [root]


def test_eviction_deletes_only_what_a_cache_wrote(root):
    """Files that somebody put into the cache stay where they are, whatever room is needed."""
    cache = DiskTokenCache(root, "dataset", budget=ROOM_FOR_TWO)
    cache.put("a", large(1), {})
    strange = {
        "mine.txt": b"1",
        "dataset/mine.txt": b"2",
        "dataset/mine/tokens.bin": b"3",
        "other/mine/manifest.json": b"{}",
    }
    for name, data in strange.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    for name in "bcd":
        cache.put(name, large(1), {})
    assert [shard.name for shard in cache.shards()] == ["c", "d"]
    assert strange.items() <= files_under(root).items()


def test_other_datasets_make_room_first(root):
    """Shards of a dataset that nobody reads any more go before our own, even if those are older."""
    ours = DiskTokenCache(root, "new", budget=ROOM_FOR_TWO)
    ours.put("a", large(1), {})
    DiskTokenCache(root, "old").put("x", large(1), {})
    ours.put("b", large(1), {})
    assert [shard.name for shard in ours.shards()] == ["a", "b"]
    assert list(DiskTokenCache(root, "old").shards()) == []


def test_the_future_decides_where_it_is_known(root):
    """Where next uses are known the shard that is needed last goes, though it was read last."""
    next_use = {"a": 9, "b": 1, "c": 2}
    policy = FarthestNextUse(lambda shard: next_use[shard.name])
    cache = DiskTokenCache(root, "dataset", budget=ROOM_FOR_TWO, eviction=policy)
    for name in "ba":
        cache.open(cache.put(name, large(1), {}))
    cache.put("c", large(1), {})
    assert [shard.name for shard in cache.shards()] == ["b", "c"]


def test_the_slower_of_two_lets_the_faster_be(root):
    """A shard that another process completes while this one writes it stays as it is, and nothing makes room twice."""
    cache, other = (DiskTokenCache(root, "dataset", budget=80_000) for _ in range(2))

    def parts():
        other.put("a", large(1), {"faster": True})
        yield from large(1)

    shard = cache.put("a", parts(), {"faster": False})
    assert list(cache.shards()) == [shard]
    assert cache.meta(shard) == {"faster": True}
    assert list((root / ".tmp").iterdir()) == []


def test_what_another_process_has_open_stays(root):
    """A shard that another process holds is pinned until that process ends, however it ends."""
    cache = DiskTokenCache(root, "dataset", budget=ROOM_FOR_TWO)
    for name in "ab":
        cache.put(name, large(1), {})
    code = (
        "import sys; from pathlib import Path; from holdfast.adapters.token_cache.disk import DiskTokenCache\n"
        "cache = DiskTokenCache(Path(sys.argv[1]), 'dataset'); tokens = [cache.open(each) for each in cache.shards()]\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(root)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, **pipes) as other:
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(ConfigurationError, match="set the budget to at least"):
            cache.put("c", large(1), {})
        assert [shard.name for shard in cache.shards()] == ["a", "b"]
        other.kill()
    cache.put("c", large(1), {})
    assert [shard.name for shard in cache.shards()] == ["b", "c"]


def test_the_ids_of_a_shard_pin_it(root):
    """As long as the ids of a shard are held, the shard stays; without them, it goes."""
    cache = DiskTokenCache(root, "dataset", budget=ROOM_FOR_TWO)
    ids = cache.open(cache.put("a", large(7), {})).ids
    for name in "bcd":
        cache.put(name, large(1), {})
    assert [shard.name for shard in cache.shards()] == ["a", "d"]
    assert ids[10:12].tolist() == [7, 7]
    del ids
    for name in "ef":
        cache.put(name, large(1), {})
    assert [shard.name for shard in cache.shards()] == ["e", "f"]


def overwrite(path, position, data):
    """Change bytes in place; size and time of the file stay."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: overwrite(path, 40_000, b"\xff"),
        lambda path: path.write_bytes(b"\0" * 60_000),
        lambda path: os.truncate(path, 100),
        lambda path: os.truncate(path, 0),
    ],
)
def test_an_open_shard_that_changes_is_not_used(root, damage):
    """What is written into an open shard, or cut off from it, reaches nobody: the shard is set aside."""
    cache = DiskTokenCache(root, "dataset")
    shard = cache.put("a", large(3), {})
    ids = cache.open(shard).ids
    assert ids[29_000:29_010].tolist() == [3] * 10
    damage(next(root.rglob("tokens.bin")))
    with pytest.raises(TokensLost, match=r"the shard 'a' .* is damaged .* was moved to"):
        ids[19_000:25_000]
    assert cache.missing(["a"]) == ["a"]


def test_arrays_in_use_do_not_change(root):
    """Offsets, hashes, loss masks and derived arrays stay as they were verified, whatever happens to their files."""
    cache = DiskTokenCache(root, "dataset")
    shard = cache.put("a", [tokens_of(DOCUMENTS, modulus=2)], {})
    tokens, derived = cache.open(shard), cache.derive(shard, "lengths", lengths_of)["lengths"]
    before = [array[:].tolist() for array in (tokens.offsets, tokens.hashes, tokens.loss_mask, derived)]
    for path in root.rglob("*.bin"):
        if path.name != "tokens.bin":
            os.truncate(path, 0)
    for path in root.rglob("derived-*"):
        overwrite(path, path.stat().st_size - 8, b"\xff" * 8)
    assert [array[:].tolist() for array in (tokens.offsets, tokens.hashes, tokens.loss_mask, derived)] == before


def test_comparing_costs_a_few_blocks_a_row(root):
    """For a row of a batch two blocks of 16 KiB are hashed at most, and none again for the rows that follow."""
    cache = DiskTokenCache(root, "dataset")
    ids = cache.open(cache.put("a", large(3), {})).ids
    ids[8000:9000]
    assert ids.file.num_hashed == 2 * 16384
    for start in range(9000, 16000, 500):
        ids[start : start + 100]
    assert ids.file.num_hashed == 2 * 16384
    ids[:]
    assert ids.file.num_hashed == 2 * 16384 + 60_000


def test_quarantine_makes_room_first(root):
    """Damaged shards that were set aside go before any sound one."""
    cache = DiskTokenCache(root, "dataset", budget=ROOM_FOR_TWO)
    shard = cache.put("a", large(1), {})
    path = next(root.rglob("tokens.bin"))
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(DataError, match="damaged"):
        cache.open(shard)
    assert list((root / ".quarantine").iterdir()) != []
    for name in "bc":
        cache.put(name, large(1), {})
    assert [shard.name for shard in cache.shards()] == ["b", "c"]
    assert list((root / ".quarantine").iterdir()) == []


def test_descriptors_are_bounded(root):
    """Of many shards only those kept open take descriptors, even while all derived arrays are held."""
    cache = DiskTokenCache(root, "dataset", max_open=5)
    shards = [cache.put(f"{number:03d}", [tokens_of([[number]])], {}) for number in range(60)]
    gc.collect()
    before = psutil.Process().num_fds()
    held = []
    for _ in range(2):
        for number, shard in enumerate(shards):
            assert documents_in(cache.open(shard)) == [[number]]
            held.append(cache.derive(shard, "lengths", lengths_of))
    assert psutil.Process().num_fds() - before <= 5
    assert all(arrays["lengths"].tolist() == [1] for arrays in held)


def test_what_is_read_cannot_be_written_to(root):
    """Ids, offsets, hashes and derived arrays refuse to be changed, since others read the same bytes."""
    cache = DiskTokenCache(root, "dataset")
    shard = cache.put("a", [tokens_of(DOCUMENTS)], {})
    tokens = cache.open(shard)
    for array in (tokens.ids[:], tokens.offsets, tokens.hashes, *cache.derive(shard, "lengths", lengths_of).values()):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 1


def test_opening_again_costs_next_to_nothing(root):
    """An open shard is at hand in a few calls, none of which touches the disk: fast enough for each row of a batch."""
    cache = DiskTokenCache(root, "dataset")
    shard = cache.put("a", large(1), {})
    cache.derive(shard, "lengths", lengths_of)
    cache.open(shard)
    calls = []
    sys.setprofile(lambda _frame, kind, what: calls.append(what) if kind in {"call", "c_call"} else None)
    try:
        cache.open(shard)
    finally:
        sys.setprofile(None)
    assert len(calls) <= 10, calls
    assert cache.open(shard) is cache.open(shard)


def test_what_a_hash_would_find_is_found_without_by_size_alone(root):
    """Without ``verify`` a flipped byte is read as it is, and another size still is an error."""
    shard = DiskTokenCache(root, "dataset").put("a", large(1), {})
    path = next(root.rglob("tokens.bin"))
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    assert DiskTokenCache(root, "dataset", verify=False).open(shard).ids[:1] != 1
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DataError, match="59998 bytes instead of 60000"):
        DiskTokenCache(root, "dataset", verify=False).open(shard)


def test_a_later_version_is_not_judged(root):
    """A shard that a later version wrote is neither read nor set aside."""
    cache = DiskTokenCache(root, "dataset")
    cache.put("a", large(1), {})
    manifest = next(root.rglob("manifest.json"))
    manifest.write_bytes(manifest.read_bytes().replace(b'"schema":1', b'"schema":3'))
    with pytest.raises(DataError, match="later version"):
        DiskTokenCache(root, "dataset").shards()
    assert manifest.exists()
