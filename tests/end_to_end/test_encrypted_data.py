"""The descriptions of encrypted data: no file has a word, a value or a hash of them, and they are erased with them."""

from __future__ import annotations

import base64
import gc
import json

import pytest

from holdfast.domain.data.holdout import hash_of
from tests.support.command_line import corpus, run_here, tiny
from tests.support.file_faults import files_under

KEY = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
ENCRYPTED = ("data.cache.encryption.key_from=env:RUN_KEY", "state_store.encryption.key_from=env:RUN_KEY")
WORDS = ("Qkuxvortz", "Jyxplimqa", "Wvhzzacdu", "Zmoqbrygg", "Xfenvukjo")
IN_TEXT, REPEATED, VALUE, FIELD, NUMBER = WORDS
SENTENCE = "the model reads text about {} and keeps its place in small steps as it learns what comes next"
RULES = "{lang: {one_of: [en], required: true}, page: {unique: true}}"
SETTINGS = (
    *("data.mode=cache", "data.on_error=skip", "data.dedup=exact", "data.holdout=0", "monitors=[jsonl]"),
    *(f"data.validation={{fields: {RULES}}}", "run.budget.steps=2", "state_store.every=1"),
)


def planted(folder):
    """Write a corpus with words that occur nowhere else; return its path and the documents with them."""
    path = corpus(folder)
    lines = [{**json.loads(line), "lang": "en"} for line in path.read_text().splitlines()]
    texts = [SENTENCE.format(word) for word in (IN_TEXT, REPEATED, VALUE, NUMBER)]
    lines += [{"text": texts[0], "lang": "en"}, *({"text": texts[1], "lang": "en"} for _ in range(3))]
    lines += [{"text": texts[2], "lang": VALUE}, {FIELD: 1}]
    lines += [{"text": f"{texts[3]} {number}", "lang": "en", "page": NUMBER} for number in range(2)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path, [*texts[:3], *(f"{texts[3]} {number}" for number in range(2))]


def forms_of(data):
    """Return the forms in which a file may hold ``data``: as it is, in hexadecimal digits, and inside base64."""
    yield data
    yield data.hex().encode()
    yield data.hex().upper().encode()
    for shift in range(3):
        begin, end = -(-8 * shift // 6), 8 * (shift + len(data)) // 6
        yield base64.b64encode(bytes(shift) + data)[begin:end]
        yield base64.urlsafe_b64encode(bytes(shift) + data)[begin:end]


def secrets_of(texts):
    """Return all forms of the planted words, and of the ids of the documents ``texts``."""
    plain = [word.encode(code) for word in WORDS for code in ("utf-8", "utf-16-le", "utf-16-be")]
    for number in map(hash_of, texts):
        plain += [number.to_bytes(8, order) for order in ("little", "big")]
        plain += [str(signed).encode() for signed in (number, number - 2**64)]
    return {form for data in plain for form in forms_of(data)}


def holding(files, secrets):
    return [name for name, data in files.items() if any(secret in data for secret in secrets)]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Return a folder with a planted corpus in ``data``, in whose environment is the key."""
    monkeypatch.setenv("RUN_KEY", KEY)
    (tmp_path / "data").mkdir()
    return tmp_path


def settings_in(home, path, *more):
    return [*tiny(path, *SETTINGS, *more), f"run.cache_dir={home / 'cache'}"]


def said(*processes):
    return "".join(f"{process.stdout}{process.stderr}" for process in processes).encode()


def test_nothing_about_encrypted_data_is_readable_and_all_of_it_is_erased(home, monkeypatch):
    """Neither output nor files have a planted word or the id of a document, and `erase` leaves no key and no record."""
    path, texts = planted(home / "data")
    settings = settings_in(home, path, *ENCRYPTED)
    prepared, trained = (run_here(command, *settings, cwd=home) for command in ("prepare", "train"))
    assert (prepared.returncode, trained.returncode) == (0, 0), said(prepared, trained)
    for rule in ("2 dedup.exact", "1 unusable", "1 validation.lang.one_of", "1 validation.page.unique"):
        assert rule in prepared.stdout
    traced = run_here("samples", "runs/default", "--step", "1", "--full", cwd=home)
    assert (traced.returncode, "step 1" in traced.stdout) == (0, True), traced.stderr
    monkeypatch.setenv("HOLDFAST_STATE_STORE__ROLES", "[read, write]")
    refused = run_here("samples", "runs/default", "--step", "1", cwd=home)
    assert (refused.returncode, "needs the role key" in refused.stderr, refused.stdout) == (2, True, "")
    monkeypatch.delenv("HOLDFAST_STATE_STORE__ROLES")
    files = {name: data for place in ("runs", "cache") for name, data in files_under(home / place).items()}
    files["output"] = said(prepared, trained)
    rejected = files["default/rejected.jsonl"]
    assert (len(rejected.splitlines()), rejected.count(b"details are hidden")) == (5, 5)
    assert {"default/events.jsonl", "default/audit.jsonl", "default/run.json"} <= files.keys()
    assert any(".versions/" in name for name in files)
    assert b'"AccessRefused"' in files["default/audit.jsonl"]
    assert holding(files, secrets_of(texts)) == []

    tokens = home / "cache/encrypted-tokens"
    shown = run_here("data", "rejects", str(tokens), "--key-from", "env:RUN_KEY", cwd=home)
    assert all(word in shown.stdout for word in (VALUE, FIELD)), shown.stderr

    gc.collect()  # the run, which would use its tokens still
    for place in ("runs/default", str(tokens)):
        erased = run_here("erase", place, "--yes", cwd=home)
        assert erased.returncode == 0, erased.stderr
    assert not (home / "runs/default/rejected.jsonl").exists()
    assert {name.rpartition("/")[2] for name in files_under(tokens)} == {"ERASED.json", "holdfast-token-cache.json"}
    assert run_here("audit", "runs/default", cwd=home).returncode == 0


def test_the_words_are_found_where_nothing_is_encrypted(home):
    """The search finds the same words in the output and in the files if data.cache.encryption is not set."""
    path, texts = planted(home / "data")
    prepared = run_here("prepare", *settings_in(home, path), cwd=home)
    assert prepared.returncode == 0, prepared.stderr
    files = files_under(home / "cache") | {"output": said(prepared)}
    found = {name.rpartition("/")[2] for name in holding(files, secrets_of(texts))}
    assert {"output", "manifest.json", "hashes.bin"} <= found


@pytest.mark.parametrize("more", ["data.on_error=stop", "data.validation.fields.lang.on_violation=stop"])
def test_an_error_about_encrypted_data_is_told_and_recorded_without_them(home, more):
    """A record that ends the run is named by its place, and no file of the failed start has its words."""
    path, texts = planted(home / "data")
    failed = run_here("train", *settings_in(home, path, *ENCRYPTED, more), cwd=home)
    assert failed.returncode == 3
    assert "details are hidden" in failed.stderr
    files = files_under(home / "runs") | {"output": said(failed)}
    assert b"DataError" in files["default/run.json"]
    assert holding(files, secrets_of(texts)) == []
