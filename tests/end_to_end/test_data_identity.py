"""A run is tied to what its data contain, and neither to where they lie nor to when they were written."""

from __future__ import annotations

import json
import os
import shutil

import datasets
import numpy as np
import pytest

from tests.support.command_line import corpus, losses, run, run_here, tiny

LENGTH = ("run.budget.steps=8", "evaluation.every=0", "state_store.every=4", "evaluation.at_start=false")


def data_in(folder):
    """Write a folder of two files of text; return it."""
    folder.mkdir(parents=True)
    for number, name in enumerate(("a", "b")):
        corpus(folder, documents=60, seed=number).rename(folder / f"{name}.jsonl")
    return folder


def settings_of(path, cache, *more):
    """Return the settings of a run on the data at ``path``."""
    return tiny(cache / "any", f"data.path={path}", *LENGTH, *more)


def train(cwd, path, *more, cache=None):
    """Train in ``cwd`` on the data at ``path``."""
    return run_here("train", *settings_of(path, cache or cwd, *more), cwd=cwd)


def stopped_at_four(cwd, path, *more):
    """Begin a run and end it after four steps."""
    process = train(cwd, path, "run.budget.steps=4", *more)
    assert process.returncode == 0, process.stderr


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the losses of a run that nothing befell, by ``data.mode``."""
    found = {}

    def of(mode):
        if mode not in found:
            whole = tmp_path_factory.mktemp("undisturbed")
            process = train(whole, data_in(whole / "md"), f"data.mode={mode}")
            assert process.returncode == 0, process.stderr
            found[mode] = losses(whole / "runs/default")
        return found[mode]

    return of


def touched(place):
    for path in (place / "md").iterdir():
        os.utime(path, (1, 1))
    return place, "md"


def spelled_otherwise(place):
    return place, "./md"


def as_absolute(place):
    return place, place / "md"


def as_glob(place):
    return place, "md/*.jsonl"


def moved(place):
    target = place.with_name("elsewhere")
    place.rename(target)
    return target, "md"


def copied_with_times(place):
    target = place.with_name("copy")
    shutil.copytree(place, target)
    return target, "md"


def copied_without_times(place):
    target, _ = copied_with_times(place)
    return touched(target)


def mounted_elsewhere(place):
    target = place.with_name("mount")
    shutil.move(place / "md", target)
    return place, target


SLOWLY = [
    pytest.param(mode, disturb, marks=pytest.mark.slow)
    for mode, disturb in [
        *(("cache", disturb) for disturb in (touched, as_glob, copied_with_times, mounted_elsewhere)),
        *(("stream", disturb) for disturb in (spelled_otherwise, as_absolute, as_glob, moved, copied_with_times)),
        ("stream", mounted_elsewhere),
    ]
]


@pytest.mark.parametrize(
    ("mode", "disturb"),
    [
        ("cache", spelled_otherwise),
        ("cache", as_absolute),
        ("cache", moved),
        ("cache", copied_without_times),
        ("stream", touched),
        ("stream", copied_without_times),
        *SLOWLY,
    ],
)
def test_a_run_continues_with_the_same_data_wherever_they_lie(tmp_path, undisturbed, disturb, mode):
    """Data of the same content continue the run bit for bit: touched, moved, copied or spelled in another way."""
    place = tmp_path / "here"
    data_in(place / "md")
    stopped_at_four(place, "md", f"data.mode={mode}")
    place, path = disturb(place)
    process = train(place, path, f"data.mode={mode}")
    assert process.returncode == 0, process.stderr
    assert losses(place / "runs/default") == undisturbed(mode)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda md: swap_a_letter(md / "b.jsonl"), "the content of b.jsonl has changed, its size has not"),
        (lambda md: (md / "b.jsonl").write_text("\n"), "the content of b.jsonl has changed: it had"),
        (lambda md: (md / "b.jsonl").unlink(), "b.jsonl is missing"),
        (lambda md: shutil.copy(md / "a.jsonl", md / "c.jsonl"), "c.jsonl is new"),
    ],
)
def test_the_first_file_that_differs_is_named(tmp_path, change, told):
    """Data of other content are refused with 4, in a sentence that names the first file that differs and how."""
    md = data_in(tmp_path / "md")
    stopped_at_four(tmp_path, "md")
    change(md)
    process = train(tmp_path, "md")
    assert process.returncode == 4, process.stderr
    assert told in process.stderr
    assert "--accept-changed-data" in process.stderr
    assert ("set data.grow=true" in process.stderr) == ("is new" in told)


def swap_a_letter(path):
    """Change one byte of ``path``, and keep its size."""
    text = path.read_text()
    path.write_text(text.replace("model", "nodel", 1))


@pytest.mark.parametrize("mode", ["cache", "stream"])
def test_a_repaired_line_continues_the_run_on_purpose(tmp_path, mode):
    """A bad line ends a run; repaired, it continues with --accept-changed-data, which stands in all its records."""
    md = data_in(tmp_path / "md")
    good = (md / "b.jsonl").read_text()
    lines = good.splitlines(keepends=True)
    stopped_at_four(tmp_path, "md", f"data.mode={mode}")
    lines[-1] = "{" + lines[-1]
    (md / "b.jsonl").write_text("".join(lines))
    broken = train(tmp_path, "md", f"data.mode={mode}")
    assert broken.returncode == 4, broken.stderr
    (md / "b.jsonl").write_text(good + good.splitlines(keepends=True)[0])
    repaired = run_here(
        "train", "--accept-changed-data", *settings_of("md", tmp_path, f"data.mode={mode}"), cwd=tmp_path
    )
    assert repaired.returncode == 0, repaired.stderr
    assert ("the files are dealt anew" in repaired.stdout + repaired.stderr) == (mode == "stream")
    assert sorted(losses(tmp_path / "runs/default")) == list(range(1, 9))
    record = json.loads((tmp_path / "runs/default/run.json").read_text())
    assert any("b.jsonl" in entry.get("data", "") for entry in record["history"])
    manifests = sorted((tmp_path / "runs/default/checkpoints").glob("checkpoint-*/MANIFEST.json"))
    contracts = [json.loads(path.read_text())["contract"] for path in manifests]
    assert contracts == ["bitwise", "numerical"]
    again = train(tmp_path, "md", f"data.mode={mode}", "run.budget.steps=9")
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("mode", ["cache", "stream"])
def test_a_run_with_changed_data_evaluates_nothing_that_it_was_trained_on(tmp_path, mode):
    """Groups of similar documents are chosen from all data, but those of a run when it begins."""
    md, record = data_in(tmp_path / "md"), tmp_path / "runs/default/run.json"
    options = (f"data.mode={mode}", "data.holdout_by=similar_documents", "evaluation.every=4")
    stopped_at_four(tmp_path, "md", *options)
    begun = json.loads(record.read_text())["holdout"]
    lines = (md / "a.jsonl").read_text().splitlines(keepends=True)
    (md / "a.jsonl").write_text("".join(lines[30:] + [line.replace("model", "word") for line in lines]))
    process = run_here("train", "--accept-changed-data", *settings_of("md", tmp_path, *options), cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert f"the run keeps the {begun['num']} documents held out" in process.stdout + process.stderr
    assert json.loads(record.read_text())["holdout"] == begun
    evaluation = run_here("evaluate", "runs/default", cwd=tmp_path)
    assert evaluation.returncode == 0, evaluation.stderr
    assert f"held out {begun['num']}" not in evaluation.stdout + evaluation.stderr  # no choice is made again


def test_a_run_of_an_earlier_version_continues_and_takes_the_contents_over(tmp_path, undisturbed):
    """A record that tells data by path, size and time alone continues where they are, and then wherever they are."""
    data_in(tmp_path / "md")
    stopped_at_four(tmp_path, "md")
    path = tmp_path / "runs/default/run.json"
    record = json.loads(path.read_text())
    del record["data"]
    path.write_text(json.dumps(record | {"schema": 1}))
    process = train(tmp_path, "md", "run.budget.steps=6")
    assert process.returncode == 0, process.stderr
    assert all(not line.startswith("?") for line in json.loads(path.read_text())["data"]["files"])
    touched(tmp_path)
    process = train(tmp_path, "md")
    assert process.returncode == 0, process.stderr
    assert losses(tmp_path / "runs/default") == undisturbed("cache")


def test_tokens_of_moved_files_are_found_in_the_cache(tmp_path):
    """Files that were moved and written anew are not tokenized again, and neither is a new run on them."""
    place = tmp_path / "here"
    data_in(place / "md")
    first = train(place, "md", cache=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "prepared" in first.stdout + first.stderr
    place, _ = moved(place)
    touched(place)
    tokens = sorted((tmp_path / "cache/tokens").glob("*/*"))
    for more in ("run.budget.steps=10", "run.name=another"):
        again = train(place, "md", more, cache=tmp_path)
        assert again.returncode == 0, again.stderr
        assert "prepared" not in again.stdout + again.stderr
    assert sorted((tmp_path / "cache/tokens").glob("*/*")) == tokens


def test_a_changed_byte_is_tokenized(tmp_path):
    """Files of the same names and sizes with another byte are others: they get tokens of their own."""
    md = data_in(tmp_path / "md")
    assert train(tmp_path, "md", "tokenizer.max_bytes=9000").returncode == 0
    swap_a_letter(md / "b.jsonl")
    again = train(tmp_path, "md", "run.name=another", "tokenizer.max_bytes=9000")
    assert "prepared" in again.stdout + again.stderr


def test_token_files_continue_the_run_wherever_they_lie(tmp_path):
    """A run on token files continues bit for bit where they were moved to and touched, and names one that changed."""
    place = tmp_path / "here"
    for name in ("a", "b"):
        write_ids(place / "ids" / f"{name}.npy", seed=len(name))
    told = ["data.kind=tokens", "tokenizer.kind=huggingface", f"tokenizer.path={trained_tokenizer(tmp_path)}"]
    base = [
        each for each in settings_of("?", tmp_path) if not each.startswith(("data.kind", "data.path", "tokenizer."))
    ]
    settings = ["train", *base, *told]
    whole = run_here(*settings, "data.path=ids", "run.name=whole", cwd=place)
    assert whole.returncode == 0, whole.stderr
    assert run_here(*settings, "data.path=ids", "run.budget.steps=4", cwd=place).returncode == 0
    place, _ = moved(place)
    for file in (place / "ids").iterdir():
        os.utime(file, (1, 1))
    again = run_here(*settings, "data.path=./ids", cwd=place)
    assert again.returncode == 0, again.stderr
    assert losses(place / "runs/default") == losses(place / "runs/whole")
    write_ids(place / "ids/b.npy", seed=7)
    changed = run_here(*settings, "data.path=ids", "run.budget.steps=9", cwd=place)
    assert changed.returncode == 4, changed.stderr
    assert "the content of b.npy has changed" in changed.stderr


def write_ids(path, *, seed):
    """Write documents of token ids, end-of-text 0 behind each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = np.random.default_rng(seed).integers(1, 280, 6000)
    ids[99::100] = 0
    np.save(path, ids.astype(np.uint16))


def trained_tokenizer(folder):
    """Return a file with a tokenizer of 300 ids."""
    whole = folder / "text"
    process = train(whole, data_in(whole / "md"), "run.budget.steps=1")
    assert process.returncode == 0, process.stderr
    return next((whole / "runs/default/checkpoints").glob("checkpoint-*")) / "tokenizer.json"


def test_sources_of_a_mixture_keep_their_order_and_their_names(tmp_path):
    """A mixture of files that were moved apart continues bit for bit, and a changed file is named with its source."""
    data_in(tmp_path / "x")
    data_in(tmp_path / "y")
    whole = ["data.kind=mixture", *mixed(tmp_path / "x", tmp_path / "y")]
    base = [each for each in settings_of("?", tmp_path) if not each.startswith(("data.kind", "data.path"))]
    assert run_here("train", *base, *whole, "run.name=whole", cwd=tmp_path).returncode == 0
    assert run_here("train", *base, *whole, "run.budget.steps=4", cwd=tmp_path).returncode == 0
    shutil.move(tmp_path / "x", tmp_path / "z")
    apart = ["data.kind=mixture", *mixed(tmp_path / "z", tmp_path / "y")]
    process = run_here("train", *base, *apart, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert losses(tmp_path / "runs/default") == losses(tmp_path / "runs/whole")
    swap_a_letter(tmp_path / "z/b.jsonl")
    changed = run_here("train", *base, *apart, "run.budget.steps=9", cwd=tmp_path)
    assert changed.returncode == 4, changed.stderr
    assert "the content of one: b.jsonl has changed" in changed.stderr


def mixed(one, two):
    """Return the settings of a mixture of two folders."""
    return [f"data.sources={{one: {{kind: files, path: {one}}}, two: {{kind: files, path: {two}}}}}"]


def test_files_of_several_paths_keep_their_order(tmp_path):
    """Folders that are given together keep the order of their files when they are moved to places of other names."""
    for name in ("x", "y"):
        data_in(tmp_path / name)
    assert train(tmp_path, "[x, y]", "run.name=whole").returncode == 0
    assert train(tmp_path, "[x, y]", "run.budget.steps=4").returncode == 0
    (tmp_path / "x").rename(tmp_path / "z")
    process = train(tmp_path, "[z, y]")
    assert process.returncode == 0, process.stderr
    assert losses(tmp_path / "runs/default") == losses(tmp_path / "runs/whole")


def test_contents_of_a_stream_become_known_as_it_is_read(tmp_path, monkeypatch):
    """What a stream reads is hashed on the way, and stands in run.json as if it had been hashed before."""
    data_in(tmp_path / "md")
    limit = ("data.mode=stream", "state_store.every=100", "run.budget.steps=2")
    assert train(tmp_path, "md", *limit, "run.name=before").returncode == 0
    monkeypatch.setattr("holdfast.bootstrap.stages.identify.data_identity._AT_ONCE_BYTES", 0)
    assert train(tmp_path, "md", *limit).returncode == 0
    before, read = (json.loads((tmp_path / f"runs/{name}/run.json").read_text()) for name in ("before", "default"))
    assert read["data"] == before["data"]


def test_a_stream_that_was_not_read_to_its_end_is_known_by_its_sizes_where_it_was_moved_to(tmp_path, monkeypatch):
    """A stream continues where it was moved to before all of it was read; what is written to there is refused."""
    monkeypatch.setattr("holdfast.bootstrap.stages.identify.data_identity._AT_ONCE_BYTES", 0)
    (tmp_path / "md").mkdir()
    path = corpus(tmp_path / "md")
    path.write_bytes(path.read_bytes() * 400)
    limit = ("data.mode=stream", "tokenizer.max_bytes=10000")
    assert train(tmp_path, "md", *limit, "run.budget.steps=1").returncode == 0
    shutil.move(tmp_path / "md", tmp_path / "moved")
    for steps in (2, 3):
        process = train(tmp_path, "moved", *limit, f"run.budget.steps={steps}")
        assert process.returncode == 0, process.stderr
    os.utime(tmp_path / "moved/corpus.jsonl", (1, 1))
    process = train(tmp_path, "moved", *limit)
    assert process.returncode == 4
    assert "corpus.jsonl was written to before all of it had been read" in process.stderr


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_archived_run_continues_at_another_place(tmp_path, undisturbed, processes):
    """A run whose disk was lost continues from its archive where its data lie elsewhere, also on more processes."""
    archive = f"state_store.archive.url={tmp_path / 'archive'}"
    (tmp_path / "archive").mkdir()
    data_in(tmp_path / "here/md")
    stopped_at_four(tmp_path / "here", "md", archive)
    other = tmp_path / "another/machine"
    shutil.copytree(tmp_path / "here/md", other / "corpus")
    shutil.rmtree(tmp_path / "here")
    for path in (other / "corpus").iterdir():
        os.utime(path, (1, 1))
    settings = settings_of("corpus", other, archive, f"distributed.processes={processes}")
    process = (run_here if processes == 1 else run)("train", *settings, cwd=other)
    assert process.returncode == 0, process.stderr
    found = losses(other / "runs/default")
    assert sorted(found) == [5, 6, 7, 8]
    if processes == 1:
        assert found == {step: loss for step, loss in undisturbed("cache").items() if step > 4}


@pytest.mark.parametrize("mode", ["cache", "stream"])
def test_a_saved_dataset_continues_the_run_wherever_it_lies(tmp_path, mode):
    """A dataset that was saved, moved and touched continues bit for bit, and its first file that differs is named."""
    place = tmp_path / "here"
    saved(place / "set")
    base = [each for each in settings_of("?", tmp_path) if not each.startswith(("data.kind", "data.path"))]
    settings = ["train", *base, "data.kind=huggingface", f"data.mode={mode}"]
    assert run_here(*settings, "data.path=set", "run.name=whole", cwd=place).returncode == 0
    assert run_here(*settings, "data.path=set", "run.budget.steps=4", cwd=place).returncode == 0
    (place / "set").rename(place / "elsewhere")
    for path in (place / "elsewhere").iterdir():
        os.utime(path, (1, 1))
    again = run_here(*settings, "data.path=elsewhere", cwd=place)
    assert again.returncode == 0, again.stderr
    assert losses(place / "runs/default") == losses(place / "runs/whole")
    file = sorted((place / "elsewhere").glob("*.arrow"))[1]
    file.write_bytes(file.read_bytes().replace(b"model", b"nodel", 1))
    changed = run_here(*settings, "data.path=elsewhere", "run.budget.steps=9", cwd=place)
    assert changed.returncode == 4, changed.stderr
    assert f"the content of {file.name} has changed, its size has not" in changed.stderr


def saved(folder):
    """Write the documents of a corpus as the datasets library saves them, in two files."""
    folder.parent.mkdir(parents=True)
    lines = corpus(folder.parent).read_text().splitlines()
    datasets.Dataset.from_list([json.loads(line) for line in lines]).save_to_disk(folder, num_shards=2)
