"""Versions of data, from the preparation to the run that reads them, as a user sees them."""

from __future__ import annotations

import json
import shutil
from base64 import b64encode

import pytest

from tests.support.command_line import corpus, run_here, tiny

LENGTH = "data.transforms=[{kind: length, options: {min_characters: 400}}]"


def data(*arguments, cwd):
    """Run a subcommand of ``data``."""
    return run_here("data", *arguments, cwd=cwd)


def prepare(path, *more, cwd):
    result = run_here("prepare", *tiny(path, *more), cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result


def versions(cwd, cache="cache/tokens"):
    return json.loads(data("versions", cache, "--json", cwd=cwd).stdout)


def test_versions_form_a_chain_that_explains_itself(tmp_path):
    """Other data and other steps make a new version after the last; `show`, `diff` and the run name what is in it."""
    path = corpus(tmp_path)
    assert "version: " in prepare(path, cwd=tmp_path).stdout
    prepare(path, cwd=tmp_path)
    [first] = versions(tmp_path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:90]) + "\n")
    settings = (LENGTH, "data.mode=cache", "run.budget.steps=2", "data.lineage.file=events.jsonl")
    trained = run_here("train", *tiny(path, *settings), cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    before, second = versions(tmp_path)
    assert before == first
    assert second["parents"] == [first["id"]]
    totals = second["totals"]
    assert (totals["records"], totals["documents"] + totals["drops"]["length"]) == (90, 90)
    assert [step["name"] for step in second["steps"]] == ["read", "length", "tokenizer"]
    record = json.loads((tmp_path / "runs/default/run.json").read_text())
    assert [entry["id"] for entry in record["data_versions"]] == [second["id"]]

    shown = data("show", "runs/default", cwd=tmp_path)
    assert (shown.returncode, shown.stdout.splitlines()[0]) == (0, f"version {second['id']} of corpus.jsonl")
    folder = f"cache/tokens/{first['dataset']}"
    difference = data("diff", folder, second["id"][:6], "--cache", "cache/tokens", cwd=tmp_path)
    assert difference.returncode == 0, difference.stderr
    for line in ("  ~ corpus.jsonl", "  + length", "dropped: length", "-25.0%"):
        assert line in difference.stdout
    assert "nothing differs" in data("diff", folder, first["id"], "--cache", "cache/tokens", cwd=tmp_path).stdout
    newest = "cache/tokens/corpus.jsonl"  # by the name of the data
    assert "nothing differs" in data("diff", "runs/default", newest, cwd=tmp_path).stdout
    profiles = [data("profile", name, cwd=tmp_path).stdout for name in (newest, "runs/default")]
    assert profiles[0] == profiles[1] != data("profile", folder, cwd=tmp_path).stdout
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(event["job"]["name"], event["eventType"]) for event in events] == [
        (f"default.{job}", state) for job in ("prepare", "train") for state in ("START", "COMPLETE")
    ]
    assert events[1]["outputs"][0]["facets"]["version"]["datasetVersion"] == second["id"]
    assert events[3]["inputs"][0]["facets"]["version"]["datasetVersion"] == second["id"]


def test_the_id_follows_the_content_and_not_the_place(tmp_path):
    """The same bytes in another folder and another cache are the same version."""
    prepare(corpus(tmp_path), cwd=tmp_path)
    there = tmp_path / "there"
    there.mkdir()
    shutil.copy(tmp_path / "corpus.jsonl", there / "corpus.jsonl")
    prepare(there / "corpus.jsonl", cwd=tmp_path)
    assert [each["id"] for each in versions(there)] == [each["id"] for each in versions(tmp_path)]


def test_a_version_of_an_encrypted_cache_reveals_counts_alone(tmp_path, monkeypatch):
    """No name, no hash and no option stands in it; its figures do, and a second preparation finds it again."""
    monkeypatch.setenv("TOKEN_KEY", b64encode(bytes(range(32))).decode())
    path = corpus(tmp_path)
    secret = "data.transforms=[{kind: replace, options: {pattern: canary, replacement: x}}]"
    settings = ("data.cache.encryption.key_from=env:TOKEN_KEY", secret)
    prepare(path, cwd=tmp_path)
    [plain] = versions(tmp_path)
    prepare(path, *settings, cwd=tmp_path)
    prepare(path, *settings, cwd=tmp_path)
    [file] = (tmp_path / "cache/encrypted-tokens/.versions").iterdir()
    text = file.read_text()
    for word in ("corpus", "canary", str(tmp_path), plain["source"]["files"][0]["content"]):
        assert word not in text
    [version] = versions(tmp_path, "cache/encrypted-tokens")
    assert (version["is_encrypted"], version["totals"]["records"]) == (True, 120)
    shown = data("show", version["id"], "--cache", "cache/encrypted-tokens", cwd=tmp_path)
    assert "the cache is encrypted" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["show", "ffffff"], "there is no version 'ffffff' in cache/tokens: there are {id} (corpus.jsonl)"),
        (["diff", "{id}", "nowhere/run"], "there is no version 'nowhere/run' in cache/tokens: there are {id}"),
        (["versions", "elsewhere"], "there are no versions in elsewhere"),
    ],
)
def test_a_version_that_is_not_there_is_one_sentence(tmp_path_factory, arguments, sentence):
    """The sentence names the versions that there are, and the exit code is 3."""
    folder = tmp_path_factory.getbasetemp() / "prepared-once"
    if not folder.exists():
        folder.mkdir()
        prepare(corpus(folder), cwd=folder)
    [version] = versions(folder)
    cache = [] if arguments[0] == "versions" else ["--cache", "cache/tokens"]
    result = data(*(word.format(**version) for word in arguments), *cache, cwd=folder)
    assert (result.returncode, result.stderr.count("\n")) == (3, 1)
    assert sentence.format(**version) in result.stderr


def test_each_part_of_a_mixture_has_a_version(tmp_path):
    """The sources of a mixture are versions of their own, and a run that reads several is asked for one."""
    path = corpus(tmp_path)
    (tmp_path / "b.txt").write_text("some other words\n" * 50)
    sources = (
        "data.kind=mixture",
        f"data.sources={{a: {{kind: files, path: {path}}}, b: {{kind: files, path: {tmp_path / 'b.txt'}}}}}",
    )
    settings = [word for word in tiny(path) if not word.startswith(("data.kind", "data.path"))]
    trained = run_here("train", *settings, *sources, "data.mode=cache", "run.budget.steps=1", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert sorted(each["source"]["name"] for each in versions(tmp_path)) == ["a", "b"]
    several = data("show", "runs/default", cwd=tmp_path)
    assert several.returncode == 3
    assert "has read several datasets" in several.stderr


def test_no_receiver_of_lineage_ends_a_run(tmp_path):
    """A server that does not answer leaves one line on standard error, and the work is done."""
    result = prepare(corpus(tmp_path), "data.lineage.url=http://user:secret@127.0.0.1:9", cwd=tmp_path)
    assert result.stderr.count("lineage events could not be sent") == 1
    assert "secret" not in result.stderr


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("data.lineage.url=ftp://host", "must begin with http:// or https://"),
        ("data.lineage={}", "needs either url or file"),
        ("data.lineage={url: 'http://h', token_from: 'env:NO_SUCH_TOKEN'}", "the variable NO_SUCH_TOKEN"),
    ],
)
def test_a_wrong_receiver_is_one_sentence(tmp_path, setting, sentence):
    """Settings that name no receiver, or a token that is not there, end with exit code 2."""
    result = run_here("prepare", *tiny(corpus(tmp_path, documents=5), setting), cwd=tmp_path)
    assert (result.returncode, sentence in result.stderr) == (2, True), result.stderr
