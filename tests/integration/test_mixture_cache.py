"""The token cache of a mixture, as the settings make it: which sources are in it, and what makes room in it."""

from __future__ import annotations

import json
import os
from contextlib import closing
from importlib.metadata import EntryPoint
from itertools import islice

import pytest

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.data_source.mixture import MixtureDataSource
from holdfast.adapters.token_cache.disk import DiskTokenCache
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.bootstrap.adapter_choice.ports import Ports
from holdfast.bootstrap.operations.prepare_data import prepare_ahead
from holdfast.bootstrap.stages.alone import build_alone, choose_alone, prepare_alone
from holdfast.bootstrap.stages.build.stage import open_evaluation
from holdfast.bootstrap.stages.identify.stage import find_data, identify
from holdfast.bootstrap.stages.prepare.dataset_registry import cache_key
from holdfast.bootstrap.stages.prepare.stage import open_readers
from holdfast.bootstrap.stages.request import Request
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.testing.token_cache import large

DROP = "data.packing.overflow=drop"
TEXTS = [f"document {number} " * 20 for number in range(30)]
ROOM_FOR_FIVE = "data.cache.budget=355000"


def write(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def settings_of(folder, weights, *more):
    """Return the settings of a mixture whose sources, by name with their weights, are the files in ``folder``."""
    sources = {
        name: {"kind": "files", "path": str(folder / f"{name}.jsonl"), "weight": weight}
        for name, weight in weights.items()
    }
    data = [
        "data.kind=mixture",
        f"data.sources={json.dumps(sources)}",
        "data.mode=cache",
        "data.holdout=0",
        "data.sequence_length=64",
        f"run.cache_dir={folder / 'cache'}",
    ]
    return load_settings([], [*data, *more], {}).settings


def choice_of(settings, **parts):
    return choose_alone(settings, {"tokenizer": MemoryTokenizer(), **parts})


def readers_of(settings):
    """Return the readers of the sources, for which no token is made."""
    found = find_data(choice_of(settings).request)
    return open_readers(identify(found, found.data))


def rows_of(settings, **parts):
    return prepare_alone(choice_of(settings, **parts))


def held_out_of(settings):
    """Return the ids of the documents that are held out."""
    chosen = choice_of(settings)
    rows = prepare_alone(chosen)
    built = build_alone(chosen, rows.data.tokenizer)
    held_out = open_evaluation(chosen, built, rows.readers, lambda: rows.tokens).held_out
    return [batch.input_ids.tolist() for batch in held_out.batches]


def batches_of(rows):
    """Return the ids of the first batches."""
    with closing(rows.stream.batches(Cursor())) as batches:
        return [batch.input_ids.tolist() for batch in islice(batches, 20)]


def prepare(folder, weights, *more):
    """Fill the cache of a mixture; return its shards as ``dataset/shard``."""
    rows = rows_of(settings_of(folder, weights, *more))
    own = {cache_key(reader) for reader in rows.readers.all}
    return {path for path in shards_in(rows.data.found.cache_folder) if path.split("/")[0] in own}


def shards_in(root):
    return {path.parent.relative_to(root).as_posix() for path in root.glob("*/*/manifest.json")}


class Hoarder:
    """An outside policy that evicts by name, but those in ``letters`` last."""

    def __init__(self, *, letters="x"):
        self.letters = letters

    def first_to_go(self, shards):
        return sorted(shards, key=lambda shard: (shard.name in self.letters, shard.name))


def no_policy():
    """Give something that is none, as the entry point of a test."""
    return 5


@pytest.fixture
def offered(monkeypatch):
    """Offer names of this file as entry points of the group ``holdfast.eviction``."""
    points = [
        EntryPoint(name, f"{__name__}:{target}", "holdfast.eviction")
        for name, target in {"hoarder": "Hoarder", "nothing": "no_policy"}.items()
    ]
    monkeypatch.setattr(
        "holdfast.bootstrap.adapter_choice.plugins.entry_points", lambda group: points * (group == "holdfast.eviction")
    )


def evictions(folder, *more):
    """Fill a cache, put four more shards into it, and return the names of those that went, in order.

    There are a and c of a source that the run needs at once, b of one that it needs later, x and y of somebody else's;
    they were read last in the order a, c, b, x, y.
    """
    write(folder / "now.jsonl", ["now"])
    write(folder / "later.jsonl", ["later"])
    stages = "data.stages=[{after_tokens: 1e6, weights: {now: 1, later: 1}}]"
    readers = readers_of(settings_of(folder, {"now": 1, "later": 0}, stages, ROOM_FOR_FIVE, *more))
    later, now = (readers.cache(cache_key(reader)) for reader in readers.all)
    root = readers.data.found.cache_folder
    others = DiskTokenCache(root, "others")
    for time, (name, cache) in enumerate({"a": now, "c": now, "b": later, "x": others, "y": others}.items()):
        cache.put(name, large(1), {})
        [manifest] = root.glob(f"*/*-{name}/manifest.json")
        os.utime(manifest, (time, time))
    gone, before = "", shards_in(root)
    for name in "defg":
        now.put(name, large(1), {})
        gone += "".join(path[-1] for path in before - shards_in(root))
        before = shards_in(root)
    return gone


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize(
    ("settings", "gone"),
    [
        ((), "xyba"),
        (("data.cache.eviction=next_use",), "xyba"),
        (("data.cache.eviction=lru",), "xyac"),
        (("data.cache.eviction=hoarder",), "yxab"),
        (("data.cache.eviction=hoarder", "data.cache.eviction_options={letters: xa}"), "yxbc"),
    ],
)
def test_the_settings_choose_what_makes_room(tmp_path, settings, gone):
    """Others' shards go first, then the run's own: each time as lru, next_use or an outside policy orders them."""
    assert evictions(tmp_path, *settings) == gone


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["data.cache.eviction=lur"], ["lur", "did you mean lru?"]),
        (["data.cache.eviction=horder"], ["horder", "did you mean hoarder?", "holdfast.eviction"]),
        (["data.cache.eviction=nothing"], ["nothing", "int", "first_to_go"]),
        (["data.cache.eviction_options={letters: x}"], ["next_use", "letters"]),
        (["data.cache.eviction=hoarder", "data.cache.eviction_options={words: x}"], ["hoarder", "words"]),
    ],
)
def test_a_policy_that_cannot_be_had_is_refused(tmp_path, settings, named):
    """A name that is none, an entry point that gives no policy and options that none takes are named in a sentence."""
    write(tmp_path / "a.jsonl", TEXTS)
    with pytest.raises(ConfigurationError) as caught:
        prepare(tmp_path, {"a": 1}, *settings)
    assert [name for name in named if name not in str(caught.value)] == []


@pytest.mark.parametrize("policy", ["next_use", "lru"])
def test_no_source_of_a_run_drives_out_another(tmp_path, policy):
    """Where two sources fit, what somebody else read just now makes room for the second, and not the first."""
    for name in "abz":
        write(tmp_path / f"{name}.jsonl", [f"{name} {text}" for text in TEXTS])
    root = tmp_path / "cache/tokens"
    for time, name in enumerate("az"):
        for path in prepare(tmp_path, {name: 1}):
            os.utime(root / path / "manifest.json", (time, time))
    room = sum(path.stat().st_size for path in root.glob("*/*/*")) * 5 // 4
    both = prepare(tmp_path, {"a": 1, "b": 1}, f"data.cache.budget={room}", f"data.cache.eviction={policy}")
    assert len({path.split("/")[0] for path in both}) == 2
    assert shards_in(root) == both


@pytest.mark.parametrize("mode", ["cache", "stream"])
def test_a_source_that_never_gives_is_not_read(tmp_path, mode):
    """A source of weight 0 in every stage changes nothing: not the rows, what is held out, or what text there is."""
    write(tmp_path / "a.jsonl", [f"a {text}" for text in TEXTS])
    write(tmp_path / "z.jsonl", [f"z {text}" for text in TEXTS])
    more = (f"data.mode={mode}", "data.holdout=0.2")
    without, among = (
        settings_of(tmp_path, weights, *more) for weights in ({"a": 2, "z": 1}, {"a": 2, "missing": 0, "z": 1})
    )
    assert batches_of(rows_of(among)) == batches_of(rows_of(without))
    assert held_out_of(among) == held_out_of(without)
    fingerprints = [rows_of(each).data.run.source.fingerprint() for each in (without, among)]
    assert fingerprints[0] == fingerprints[1]


def test_a_source_that_never_gives_is_not_prepared(tmp_path):
    """A tokenizer is trained, and a cache filled, without a source of weight 0 in every stage."""
    write(tmp_path / "a.jsonl", TEXTS)
    write(tmp_path / "b.jsonl", [f"another {text}" for text in TEXTS])
    prepared = prepare_ahead(settings_of(tmp_path, {"a": 1, "b": 0}, "tokenizer.vocabulary_size=260")).prepared
    assert prepared.documents == len(TEXTS)


@pytest.mark.parametrize("mode", ["cache", "stream"])
def test_a_host_brings_as_many_sources_as_have_a_weight(tmp_path, mode):
    """Sources that a host puts in the place of a mixture's are refused where some of them would have no weight."""
    source = MixtureDataSource({name: MemoryDataSource({"unit": TEXTS}) for name in "abc"})
    settings = settings_of(tmp_path, {"a": 1, "b": 1}, f"data.mode={mode}")
    with pytest.raises(ConfigurationError, match="there are 3 sources, but 2 with a weight"):
        batches_of(rows_of(settings, data_source=source))


def test_a_source_that_gives_later_is_tokenized(tmp_path):
    """Weight 0 in the first stage alone keeps no source out of the cache."""
    for name in "ab":
        write(tmp_path / f"{name}.jsonl", TEXTS)
    stage = "data.stages=[{after_tokens: 1e6, weights: {b: 1}}]"
    tokens = rows_of(settings_of(tmp_path, {"a": 1, "b": 0}, stage)).tokens
    assert [len(each.shards()) for each in tokens] == [1, 1]


def test_what_never_gives_needs_no_room(tmp_path):
    """``data.mode=auto`` counts those sources only that are tokenized."""
    write(tmp_path / "a.jsonl", TEXTS[:1])
    write(tmp_path / "b.jsonl", TEXTS)
    modes = []
    for weight in (0, 1):
        settings = settings_of(tmp_path, {"a": 1, "b": weight}, "data.mode=auto", "data.cache.budget=4000")
        ports = Ports(settings, {})
        find_data(Request(settings, tmp_path, ports, print, decide=lambda *kept: modes.append(kept[:2])))
    assert modes == [("data.mode", "cache"), ("data.mode", "stream")]


def test_a_source_without_rows_is_named(tmp_path):
    """A source with a weight, of which packing leaves no row, is refused by the name that it has in the settings."""
    write(tmp_path / "books.jsonl", TEXTS)
    write(tmp_path / "wiki.jsonl", ["x" * 1000])
    settings = settings_of(tmp_path, {"books": 1, "wiki": 1}, DROP, "data.sequence_length=512")
    with pytest.raises(ConfigurationError, match="source 'wiki' has a weight, but no records"):
        batches_of(rows_of(settings))
