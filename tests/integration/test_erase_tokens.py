"""Erasing an encrypted token cache: what is chosen, what is refused, and what a run finds afterwards."""

from __future__ import annotations

import gc
import json
import os

import pytest

from holdfast.adapters.key_provider.memory import MemoryKeyProvider
from holdfast.adapters.shared.token_store.folder_operations import TokenFileOperations
from holdfast.adapters.shared.token_store.token_encryption import ShardEncryption
from holdfast.adapters.shared.token_store.token_folder import TokenFolder
from holdfast.adapters.token_cache.disk import DiskTokenCache
from holdfast.bootstrap.cli.main import main
from holdfast.ports.testing.token_cache import large, tokens_of
from tests.integration.test_encrypted_tokens import BASE64_KEY, batches_of

SEALING = ShardEncryption(MemoryKeyProvider(b"\x01" * 32))


@pytest.fixture
def root(tmp_path):
    """Return the folder of an encrypted cache with two datasets of two shards each."""
    for dataset in ("first", "second"):
        cache = DiskTokenCache(tmp_path / "cache", dataset, encryption=SEALING)
        for name in "ab":
            cache.put(name, [tokens_of([[1, 2, 3], [4, 5]])], {})
    return tmp_path / "cache"


def keys_in(root):
    """Return the wrapped keys of all shards under ``root``."""
    manifests = [json.loads(path.read_bytes()) for path in sorted(root.rglob("manifest.json"))]
    return [manifest["encryption"]["wrapped_key"] for manifest in manifests]


def records_in(root):
    return [json.loads(path.read_text()) for path in sorted((root / ".erased").rglob("ERASED.json"))]


def test_no_token_is_erased_without_yes(root, capsys):
    """The command tells which datasets it would erase, and leaves them."""
    keys = keys_in(root)
    assert main(["erase", str(root)]) == 0
    told = capsys.readouterr().out
    assert told.splitlines() == [
        f"would erase {root}/first (2 shards)",
        f"would erase {root}/second (2 shards)",
        "nothing is erased without --yes",
    ]
    assert keys_in(root) == keys


def test_all_datasets_of_a_cache_are_erased(root, capsys):
    """No file holds a key or a token any more, and a record of each dataset says when, and by which user."""
    assert main(["erase", str(root), "--yes"]) == 0
    assert f"erased {root}/first (2 shards)" in capsys.readouterr().out
    assert keys_in(root) == []
    assert sorted(path.name for path in root.rglob("*") if path.is_file()) == [
        "ERASED.json",
        "ERASED.json",
        "holdfast-token-cache.json",
    ]
    assert [(record["name"], record["shards"]) for record in records_in(root)] == [("first", 2), ("second", 2)]
    assert all(record["by"]["user"] and record["erased_at"] for record in records_in(root))
    assert main(["erase", str(root), "--yes"]) == 4
    assert f"there are no tokens to erase in {root}" in capsys.readouterr().err


def test_one_dataset_is_erased_alone(root, capsys):
    """The folder of a dataset names it, and the others of the cache keep their keys."""
    assert main(["erase", str(root / "first"), "--yes"]) == 0
    assert [path.parents[1].name for path in root.rglob("manifest.json")] == ["second", "second"]
    assert len(DiskTokenCache(root, "second", encryption=SEALING).shards()) == 2
    capsys.readouterr()
    assert main(["erase", str(root / "first"), "--yes"]) == 4
    assert f"there are no tokens to erase in {root / 'first'}" in capsys.readouterr().err


def test_what_was_set_aside_or_left_by_a_crash_is_erased_too(root):
    """Damaged shards in quarantine and the drafts of dead processes hold keys as well, which are destroyed."""
    shard = next((root / "first").iterdir())
    shard.rename(root / ".quarantine" / f"first.{shard.name}.01234567")
    shard = next((root / "second").iterdir())
    shard.rename(root / ".tmp/0123")
    assert main(["erase", str(root), "--yes"]) == 0
    assert keys_in(root) == []
    assert [*(root / ".quarantine").iterdir(), *(root / ".tmp").iterdir()] == []


def test_a_cache_that_a_process_reads_is_left_alone(root, capsys):
    """While somebody holds the ids of one shard, nothing is erased, and nothing is said to be about to be."""
    keys = keys_in(root)
    cache = DiskTokenCache(root, "second", encryption=SEALING)
    tokens = cache.open(cache.shards()[0])
    for more in ([], ["--yes"]):
        assert main(["erase", str(root), *more]) == 4
        assert f"a process uses the tokens in {root}: wait for it or end it" in capsys.readouterr().err
    assert keys_in(root) == keys
    assert main(["erase", str(root / "first"), "--yes"]) == 0
    assert tokens.ids[:3].tolist() == [1, 2, 3]


def test_a_cache_that_a_process_fills_is_left_alone(root, capsys):
    """While a shard is being written, whatever dataset it is of, nothing is erased."""
    keys = keys_in(root)
    with TokenFolder(root, TokenFileOperations(), is_encrypted=True).draft():
        assert main(["erase", str(root / "first"), "--yes"]) == 4
    assert "a process uses the tokens" in capsys.readouterr().err
    assert keys_in(root) == keys


def test_plain_tokens_have_no_key_to_destroy(tmp_path, capsys):
    """A cache that is not encrypted is one sentence, which says what to do instead."""
    DiskTokenCache(tmp_path / "cache", "first").put("a", large(1), {})
    for place in ("cache", "cache/first"):
        assert main(["erase", str(tmp_path / place), "--yes", "--unencrypted"]) == 4
        error = capsys.readouterr().err
        assert f"the tokens in {tmp_path / place} are not encrypted, so there is no key to destroy: delete" in error
    assert len(DiskTokenCache(tmp_path / "cache", "first").shards()) == 1


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["300"], 2, "has no steps: leave out STEP"),
        (["--unencrypted"], 2, "leave out --unencrypted"),
    ],
)
def test_what_belongs_to_checkpoints_is_refused_for_tokens(root, capsys, more, code, words):
    """A step, or the permission to delete plain checkpoints, has no use for encrypted tokens."""
    assert main(["erase", str(root), *more, "--yes"]) == code
    assert words in capsys.readouterr().err
    assert len(keys_in(root)) == 4


def test_who_may_not_delete_may_not_erase_tokens(root, capsys, monkeypatch):
    """Without the role, by the environment, nothing is erased."""
    monkeypatch.setenv("HOLDFAST_STATE_STORE__ROLES", "[read, write, key]")
    assert main(["erase", str(root), "--yes"]) == 2
    assert "needs the role delete" in capsys.readouterr().err
    assert len(keys_in(root)) == 4


def test_any_other_folder_is_neither_run_nor_cache(root, tmp_path, capsys):
    """A folder that is nobody's, one above a cache, or one below a dataset is one sentence."""
    shard = next((root / "first").iterdir())
    for place in (tmp_path, shard, root / ".tmp", tmp_path / "nowhere/at/all"):
        assert main(["erase", str(place), "--yes"]) == 4
        assert f"{place} is neither a run folder nor the folder of a token cache" in capsys.readouterr().err
    assert len(keys_in(root)) == 4


@pytest.mark.parametrize("which", ["second", "second/*"])
def test_a_link_to_tokens_is_not_followed(root, tmp_path, capsys, which):
    """A dataset or a shard that lies elsewhere is named, so that its key is not thought to be destroyed."""
    linked = next(root.glob(which))
    linked.rename(tmp_path / "elsewhere")
    linked.symlink_to(tmp_path / "elsewhere")
    assert main(["erase", str(root), "--yes"]) == 4
    assert f"{linked} is a link, which is not followed" in capsys.readouterr().err
    assert len(keys_in(root / "first")) == 2


def test_a_run_tokenizes_again(tmp_path, monkeypatch):
    """After its cache was erased, a run makes the same tokens, with new keys, and gets the same batches."""
    monkeypatch.setenv("TOKEN_KEY", BASE64_KEY)
    texts = [f"document {number} " * (number % 7 + 3) for number in range(200)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    encrypted = "data.cache.encryption.key_from=env:TOKEN_KEY"
    before, keys = batches_of(tmp_path, encrypted), keys_in(tmp_path / "cache")
    gc.collect()  # the first run, which would use its tokens still
    assert main(["erase", os.fspath(tmp_path / "cache/encrypted-tokens"), "--yes"]) == 0
    assert batches_of(tmp_path, encrypted) == before
    again = keys_in(tmp_path / "cache")
    assert len(again) == len(keys) > 0
    assert set(again).isdisjoint(keys)


def test_versions_are_erased_with_their_datasets(root, capsys):
    """The record of a version goes with its dataset, also after the dataset, and a damaged one with the whole cache."""
    (root / ".versions").mkdir()
    for name, dataset in (("1", "first"), ("2", "second"), ("3", "second")):
        (root / f".versions/{name}.json").write_text(json.dumps({"dataset": dataset}))
    (root / ".versions/4.json").write_text("{")
    assert main(["erase", str(root / "first")]) == 0
    assert f"would erase {root}/.versions/1.json (version)" in capsys.readouterr().out
    assert main(["erase", str(root / "first"), "--yes"]) == 0
    assert sorted(path.stem for path in root.glob(".versions/*")) == ["2", "3", "4"]
    (root / ".versions/5.json").write_text(json.dumps({"dataset": "first"}))
    assert main(["erase", str(root / "first"), "--yes"]) == 0
    assert main(["erase", str(root), "--yes"]) == 0
    assert [*root.glob(".versions/*")] == []
