"""The command ``data``: profiles of a cache, and their comparison."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from tokenizers import Tokenizer, models

from holdfast.adapters.key_provider.environment import EnvironmentKeyProvider
from holdfast.adapters.shared.token_store.token_encryption import ShardEncryption
from holdfast.adapters.token_cache.disk import DiskTokenCache
from holdfast.bootstrap.cli.main import main
from holdfast.bootstrap.stages.prepare.dataset_versions import VersionStore
from holdfast.domain.data.dataset_version import DatasetVersion, Step, VersionSource, VersionTotals
from holdfast.domain.data.drift import OF_TOKENS
from holdfast.domain.data.profile import Profile, ProfileBuilder
from holdfast.ports.token_source import Tokens
from tests.support.profiles import documents
from tests.support.run_folders import STARTED, make_run

_VOID = {"link", "meta"}


def fill(root, name, *, encryption=None, with_profile=True, tokenizer="ours", **options):
    """Write a dataset of two shards into the token cache ``root``, and the version that names its ``tokenizer``."""
    cache = DiskTokenCache(root, name, encryption=encryption)
    for seed in (len(name), len(name) + 50):
        texts, ids, offsets, hashes = documents(seed, 150, **options)
        meta = {"drops": {"c4.<b>short": 5}}
        if with_profile:
            builder = ProfileBuilder()
            builder.add(texts, ids, offsets, hashes)
            meta["profile"] = builder.to_json()
        cache.put(f"{seed:06d}", [Tokens(ids, offsets, hashes)], meta)
    if tokenizer is not None:
        steps = [Step("tokenizer", "tokenizers", "1", tokenizer)]
        source, totals = VersionSource(name, name), VersionTotals(300, 300, 1, 1, 1)
        VersionStore(root).add(DatasetVersion(f"id-{name}", "2026-11-25", [], source, name, steps, totals))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("cache") / "tokens"
    fill(root, "march")
    fill(root, "april-24")
    fill(root, "doubled", factor=2)
    fill(root, "old-data", with_profile=False)
    return root


class _Checker(HTMLParser):
    """Collects the text of a page, and requires that its tags close and that it refers to nothing elsewhere."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.svgs = [], [], 0

    def handle_starttag(self, tag, attrs):
        assert tag not in {"script", "img", "iframe"}
        assert [value for name, value in attrs if name in {"src", "href"}] in ([], ["data:,"])
        self.svgs += tag == "svg"
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in {"rect", "line", "polyline"}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def page_of(path):
    checker = _Checker()
    text = path.read_text(encoding="utf-8")
    assert "://" not in text
    checker.feed(text)
    assert checker.open == []
    return checker


def test_a_profile_is_shown_and_written(root, tmp_path, capsys):
    """The figures of all shards are added up, the last line is a sentence, and the page has the escaped reasons."""
    assert main(["data", "profile", str(root / "march"), "--html", str(tmp_path / "page.html")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["documents", "300"] in [line.split() for line in lines]
    assert lines[-1] == "300 of 310 records kept (96.8%)"
    page = page_of(tmp_path / "page.html")
    assert page.svgs == 8
    assert "c4.<b>short" in page.text


def test_tokens_are_shown_by_their_text(root, tmp_path, capsys):
    """With a tokenizer the most frequent tokens are decoded, and their text is escaped in the page."""
    vocabulary = {f"<i>{number}": number for number in range(5000)}
    Tokenizer(models.WordLevel(vocabulary)).save(str(tmp_path / "tokenizer.json"))
    page = tmp_path / "page.html"
    assert main(["data", "profile", str(root / "march"), "--tokenizer", str(tmp_path), "--html", str(page)]) == 0
    assert "'<i>1' (id 1)" in capsys.readouterr().out
    assert "'<i>1' (id 1)" in page_of(page).text


def test_planted_drift_fails_a_pipeline(root, tmp_path, capsys):
    """Doubled lengths are named in table, sentence and page, and end with exit code 3 only if asked."""
    arguments = ["data", "compare", str(root / "march"), str(root / "doubled")]
    assert main(arguments) == 0
    assert main([*arguments, "--fail-on", "drift", "--html", str(tmp_path / "page.html")]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("major drift: tokens a document (major, PSI ")
    page = page_of(tmp_path / "page.html")
    assert lines[-1] in page.text
    assert page.svgs == 8


@pytest.mark.parametrize(
    ("theirs", "why"),
    [("another", "the tokenizers differ"), (None, "the cache does not record the tokenizer of april")],
)
def test_tokens_of_two_tokenizers_are_not_compared(theirs, why, tmp_path, capsys):
    """Ids and lengths in tokens say nothing about the documents then, so only figures of texts are compared."""
    root, page = tmp_path / "tokens", tmp_path / "page.html"
    fill(root, "march", tokenizer="ours")
    fill(root, "april", tokenizer=theirs)
    arguments = ["data", "compare", str(root / "march"), str(root / "april")]
    assert main([*arguments, "--html", str(page)]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-2:] == [f"figures of tokens are not compared: {why}", "no drift in 6 figures"]
    assert f"figures of tokens are not compared: {why}" in page_of(page).text
    assert main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert not result["same_tokenizer"]
    assert not {figure["name"] for figure in result["figures"]} & set(OF_TOKENS)


def test_two_samples_pass_a_pipeline(root, capsys):
    """Two versions of one corpus end with exit code 0, and JSON has each figure with its level."""
    arguments = ["data", "compare", str(root / "march"), str(root / "april-24"), "--fail-on", "drift", "--json"]
    assert main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["verdict"] == "no drift in 9 figures"
    assert {figure["level"] for figure in result["figures"]} == {"none"}


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("", 2, "holds 4 datasets: name the folder of one"),
        ("may", 3, "there is no version 'may'"),
        ("../nowhere", 2, "is not the folder of a dataset"),
        ("old-data", 3, "has no profile, as an earlier version made it"),
    ],
)
def test_wrong_datasets_are_one_sentence(root, name, code, message, capsys):
    """A dataset that is not there, ambiguous or without a profile ends with its exit code and a remedy."""
    assert main(["data", "profile", str(root / name)]) == code
    assert message in capsys.readouterr().err


def test_an_encrypted_dataset_needs_its_key(tmp_path, capsys, monkeypatch):
    """The profile lies in the encrypted manifest, so it is read only with the key, by the cache's folder too."""
    monkeypatch.setenv("DATA_KEY", "A" * 43 + "=")
    provider = EnvironmentKeyProvider({"DATA_KEY": "A" * 43 + "="}, "DATA_KEY", old=[])
    fill(tmp_path / "secret", "march", encryption=ShardEncryption(provider))
    assert main(["data", "profile", str(tmp_path / "secret")]) == 2
    assert "name their key with --key-from" in capsys.readouterr().err
    assert main(["data", "profile", str(tmp_path / "secret"), "--key-from", "env:DATA_KEY"]) == 0
    assert "300 of 310 records kept" in capsys.readouterr().out
    manifests = [path.read_text("ascii") for path in (tmp_path / "secret").rglob("manifest.json")]
    assert len(manifests) == 2
    assert not any("histograms" in manifest for manifest in manifests)


def test_the_json_of_a_profile_is_that_of_all_shards(root, capsys):
    """The JSON of the command can be read as the merged profile."""
    assert main(["data", "profile", str(root / "march"), "--json"]) == 0
    assert Profile.from_json(json.loads(capsys.readouterr().out)).documents == 300


def rejecting(root, encryption=None):
    """Write a dataset with a record that cannot be used, one that a rule left out, and one that is only counted."""
    rejected = [
        {"unit": "a.jsonl", "position": 3, "reason": "a.jsonl, byte 3: not JSON\n"},
        {"unit": "a.jsonl", "position": 9, "rule": "validation.lang.one_of", "reason": "holds https://u:secret@h/x"},
    ]
    drops = {"unusable": 1, "validation.lang.one_of": 1, "c4.short": 1}
    _, ids, offsets, hashes = documents(1, 20)
    meta = {"drops": drops, "rejected": rejected}
    DiskTokenCache(root, "march", encryption=encryption).put("000000", [Tokens(ids, offsets, hashes)], meta)


def test_rejected_records_are_listed(tmp_path, capsys):
    """Each has its place, its rule and its reason in one line without secrets; all are counted by rule."""
    rejecting(tmp_path)
    assert main(["data", "rejects", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a.jsonl, byte 3: not JSON\\n",
        "a.jsonl, position 9: validation.lang.one_of: holds https://<masked>@h/x",
        f"{tmp_path}/march: 3 records left out",
        "         1  c4.short",
        "         1  unusable",
        "         1  validation.lang.one_of",
    ]
    assert main(["data", "rejects", str(tmp_path), "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["position"] for record in records] == [3, 9]


def test_rejected_records_of_a_run_are_asked_for_by_its_name(tmp_path, capsys, monkeypatch):
    """The name of a run stands for its folder, unless it is that of a token cache."""
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "mine")
    (tmp_path / "mine").mkdir()
    for record, why in (
        ({}, "made by an earlier Holdfast"),
        ({"auto": {"data.mode": {"value": "stream", "reason": "large"}}}, "the run streams its data"),
        ({"start": {"time": STARTED, "phase": "looking", "error": "no space"}}, "its start ended before.* .no space"),
    ):
        make_run(tmp_path / "runs" / "mine", **record)
        assert main(["data", "rejects", "mine"]) == 3
        assert re.search(f"runs/mine/run.json names no version of data: .*{why}", capsys.readouterr().err)
    rejecting(tmp_path / "mine")
    assert main(["data", "rejects", "mine"]) == 0
    assert "mine/march: 3 records left out" in capsys.readouterr().out


@pytest.mark.parametrize(("roles", "lacking"), [("[write, delete, key]", "read"), ("[read]", "key")])
@pytest.mark.parametrize("command", ["rejects", "profile"])
def test_descriptions_are_read_by_role(tmp_path, capsys, monkeypatch, command, roles, lacking):
    """Who may not read checkpoints, or not use the key, reads neither rejected records nor profiles."""
    monkeypatch.setenv("DATA_KEY", "A" * 43 + "=")
    provider = EnvironmentKeyProvider({"DATA_KEY": "A" * 43 + "="}, "DATA_KEY", old=[])
    rejecting(tmp_path, ShardEncryption(provider))
    monkeypatch.setenv("HOLDFAST_STATE_STORE__ROLES", roles)
    assert main(["data", command, str(tmp_path), "--key-from", "env:DATA_KEY"]) == 2
    said = capsys.readouterr()
    assert f"needs the role {lacking}, and state_store.roles has" in said.err
    assert said.out == ""


@pytest.mark.parametrize("command", [["versions"], ["show", "all"], ["diff", "all", "all"]], ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("variable", "place"), [("HOLDFAST_RUN__CACHE_DIR", "cache"), ("HOLDFAST_DATA__CACHE__DIR", "cache/tokens")]
)
def test_versions_are_found_in_the_cache_of_the_environment(tmp_path, monkeypatch, capsys, command, variable, place):
    """The variable that leads `prepare` to a cache leads the commands on versions to the same one."""
    fill(tmp_path / "cache/tokens", "all")
    monkeypatch.setenv(variable, str(tmp_path / place))
    assert main(["data", *command]) == 0, capsys.readouterr().err
