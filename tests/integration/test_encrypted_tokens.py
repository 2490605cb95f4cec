"""Token caches that are encrypted where they lie."""

from __future__ import annotations

import gc
import json
import os
from itertools import islice

import numpy as np
import psutil
import pytest

from holdfast.adapters.key_provider.memory import MemoryKeyProvider
from holdfast.adapters.shared.token_store.token_encryption import ShardEncryption
from holdfast.adapters.token_cache.disk import DiskTokenCache
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.bootstrap.stages.alone import choose_alone, prepare_alone
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.errors import ConfigurationError, DataError, StateError
from holdfast.ports.testing.token_cache import large, mask_in, tokens_of
from holdfast.ports.testing.token_source import lengths_of

KEY, OTHER = b"\x01" * 32, b"\x02" * 32
SECRET = [[7, 77, 777, 7, 77, 777, 999], [70, 71, 72, 999]]
BASE64_KEY = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="


def cache_in(root, *keys, **options):
    """Return the cache of these keys, the first to write with; with none it is a plain one."""
    encryption = ShardEncryption(MemoryKeyProvider(keys[0], old=keys[1:])) if keys else None
    return DiskTokenCache(root, "dataset", encryption=encryption, **options)


def told(folder):
    """Return all names and bytes below ``folder`` as one text."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return b"".join(os.fsencode(path) + path.read_bytes() for path in paths)


def filled(root, *keys):
    cache = cache_in(root, *keys)
    shard = cache.put("a", [tokens_of(SECRET)], {"rejected": ["a canary"]})
    cache.derive(shard, f"lengths {cache.fingerprint()}", lengths_of)
    return told(root)


def test_no_plaintext_comes_to_rest(tmp_path):
    """Neither tokens, nor lengths, hashes of documents, what is derived, meta nor any hash of content lies there."""
    tokens = tokens_of(SECRET)
    (tmp_path / "plain").mkdir()
    cache = cache_in(tmp_path / "plain")
    shard, whole = cache.put("a", [tokens], {}), cache.fingerprint()
    digests = json.loads(next((tmp_path / "plain").rglob("manifest.json")).read_bytes())["digests"].values()
    plain = [each.tobytes() for each in (tokens.ids, tokens.offsets, tokens.hashes, np.diff(tokens.offsets))]
    words = [*plain, b"a canary", shard.fingerprint.encode(), whole.encode(), *(digest.encode() for digest in digests)]
    assert all(word in filled(tmp_path / "plain") for word in words[:4])
    dark = filled(tmp_path / "dark", KEY)
    assert [word for word in words if word in dark] == []
    assert cache_in(tmp_path / "dark", KEY).shards() == [shard]


def test_a_loss_mask_is_encrypted_too(tmp_path):
    """The bits of the mask lie nowhere, the shard is the same as in a plain cache, and a changed bit is told."""
    documents = [np.random.default_rng(number).integers(0, 99, 200).tolist() for number in range(5)]
    plain = cache_in(tmp_path / "plain").put("a", [tokens_of(documents, modulus=2)], {})
    bits = next((tmp_path / "plain").rglob("loss_mask.bin")).read_bytes()
    cache = cache_in(tmp_path / "dark", KEY)
    assert cache.put("a", [tokens_of(documents, modulus=2)], {}) == plain
    assert mask_in(cache.open(plain)) == mask_in(tokens_of(documents, modulus=2))
    assert bits[:20] not in told(tmp_path / "dark")
    file = next((tmp_path / "dark").rglob("loss_mask.bin"))
    file.write_bytes(bytes([*file.read_bytes()[:-1], file.read_bytes()[-1] ^ 1]))
    with pytest.raises(DataError, match=r"'a'.*cannot be authenticated.*run the same command"):
        cache_in(tmp_path / "dark", KEY).open(plain)


def test_each_shard_has_a_key_of_its_own(tmp_path):
    """Equal shards are other bytes each time, and one cannot be put in the place of another."""
    cache = cache_in(tmp_path / "cache", KEY)
    for name in "ab":
        cache.put(name, [tokens_of(SECRET)], {})
    first, second = (tmp_path / "cache/dataset").iterdir()
    assert (first / "tokens.bin").read_bytes() != (second / "tokens.bin").read_bytes()
    (first / "tokens.bin").write_bytes((second / "tokens.bin").read_bytes())
    damaged = json.loads((first / "manifest.json").read_bytes())["name"]
    cache = cache_in(tmp_path / "cache", KEY)
    with pytest.raises(DataError, match=f"'{damaged}'.*cannot be authenticated.*run the same command"):
        [cache.open(shard) for shard in cache.shards()]


def test_without_its_key_a_cache_is_left_alone(tmp_path):
    """No key and another key are one sentence each, and nothing is set aside, written or deleted."""
    before = filled(tmp_path / "cache", KEY)
    with pytest.raises(ConfigurationError, match=r"encrypted: name their key with data\.cache\.encryption\.key_from"):
        cache_in(tmp_path / "cache").missing("a")
    for act in (lambda cache: cache.missing("a"), lambda cache: cache.put("a", [], {})):
        with pytest.raises(StateError, match=r"data\.cache\.encryption.*add that key as an old one"):
            act(cache_in(tmp_path / "cache", OTHER))
    assert told(tmp_path / "cache") == before
    assert cache_in(tmp_path / "cache", OTHER, KEY).missing("ab") == ["b"]


def test_encrypted_tokens_do_not_lie_among_others(tmp_path):
    """A key for a folder of plain tokens, which would stay there as they are, is refused before anything is written."""
    before = filled(tmp_path / "cache")
    with pytest.raises(ConfigurationError, match=r"are not encrypted.*another folder with data\.cache\.dir"):
        cache_in(tmp_path / "cache", KEY).put("b", [tokens_of(SECRET)], {})
    assert told(tmp_path / "cache") == before


def test_a_key_that_is_not_at_hand_does_not_hinder_making_room(tmp_path):
    """Shards of other datasets, by whatever key, make room for those of this one."""
    DiskTokenCache(tmp_path / "cache", "other", encryption=ShardEncryption(MemoryKeyProvider(OTHER))).put(
        "a", large(1), {}
    )
    cache = cache_in(tmp_path / "cache", KEY, budget=100_000)
    cache.put("b", large(2), {})
    assert [path.name for path in (tmp_path / "cache/other").iterdir()] == []
    assert cache.missing("b") == []


def test_what_is_damaged_later_is_told_when_it_is_read(tmp_path):
    """A slice that can no longer be authenticated is a sentence, and never other tokens."""
    cache = cache_in(tmp_path / "cache", KEY)
    ids = cache.open(cache.put("a", large(5), {})).ids
    path = next(tmp_path.rglob("tokens.bin"))
    data = bytearray(path.read_bytes())
    data[20_000] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    assert ids[:100].tolist() == [5] * 100
    with pytest.raises(StateError, match="cannot be authenticated at its segment 4"):
        ids[9_000:11_000]


def test_descriptors_are_let_go(tmp_path):
    """Ids that nobody holds any more leave no file open."""
    cache = cache_in(tmp_path / "cache", KEY, max_open=2)
    shards = [cache.put(str(number), large(number), {}) for number in range(6)]
    before = psutil.Process().num_fds()
    for shard in shards * 2:
        assert cache.open(shard).ids[29_999:].tolist() == [int(shard.name)]
    del cache
    gc.collect()
    assert psutil.Process().num_fds() <= before


def batches_of(folder, *more):
    """Return the first batches of a run on the corpus in ``folder``, and the settings' cache folder."""
    settings = load_settings(
        [],
        [
            "data.kind=files",
            f"data.path={folder / 'corpus.jsonl'}",
            "data.mode=cache",
            "data.holdout=0.1",
            "data.sequence_length=64",
            "data.packing.kind=best_fit",
            f"run.cache_dir={folder / 'cache'}",
            *more,
        ],
        {},
    ).settings
    rows = prepare_alone(choose_alone(settings, {"tokenizer": MemoryTokenizer()}))
    return [batch.input_ids.tolist() for batch in islice(rows.stream.batches(Cursor()), 40)]


def test_a_run_gets_the_same_batches(tmp_path, monkeypatch):
    """Encrypted or not, in the folders of their own that they get, tokens and their order are the same."""
    monkeypatch.setenv("TOKEN_KEY", BASE64_KEY)
    texts = [f"document {number} " * (number % 7 + 3) for number in range(200)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    plain = batches_of(tmp_path)
    assert batches_of(tmp_path, "data.cache.encryption.key_from=env:TOKEN_KEY") == plain
    assert len(plain) == 40
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["encrypted-tokens", "tokens"]


TOKENS = ["data.kind=tokens", "tokenizer.kind=huggingface", "tokenizer.path=x"]


@pytest.mark.parametrize(
    ("place", "more", "words"),
    [
        ("env:NO_SUCH_KEY", [], "NO_SUCH_KEY is not set"),
        ("secret", [], r"data\.cache\.encryption\.key_from .* must be env:NAME, file:PATH or KIND:PLACE"),
        ("env:A_KEY", TOKENS, r"data\.kind=tokens reads existing files unchanged"),
    ],
)
def test_a_key_that_is_of_no_use_is_one_sentence(tmp_path, place, more, words):
    """A key that is not there, is named in no way, or would encrypt nothing, ends the start."""
    (tmp_path / "corpus.jsonl").write_text('{"text": "one document"}\n')
    with pytest.raises(ConfigurationError, match=words):
        batches_of(tmp_path, f"data.cache.encryption.key_from={place}", *more)
