"""Files that are added to the data of a run are taken up from its next epoch on, exactly."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.support.command_line import corpus, losses, run, run_here, tiny

GROW = "data.grow=true"
RARELY = ("evaluation.every=0", "state_store.every=3", "evaluation.at_start=false")
CONSTANT = "optimizer.schedule.kind=constant"  # another length of the run changes no step


def write(md, *names):
    """Write a file of text for each of ``names`` in the folder ``md``; return it."""
    md.mkdir(parents=True, exist_ok=True)
    for name in names:
        corpus(md.parent, documents=30, seed=ord(name)).rename(md / f"{name}.jsonl")
    return md


def train(cwd, *more, steps, start=run_here):
    """Train to ``steps`` on the data in ``md``, with a checkpoint every third step."""
    lasting = (f"run.budget.steps={steps}", CONSTANT, *RARELY)
    return start("train", *tiny(cwd / "any", "data.path=md", *lasting, *more), cwd=cwd)


def trained(cwd, *more, steps):
    """Train as ``train`` does, well; return what stands in run.json."""
    process = train(cwd, *more, steps=steps)
    assert process.returncode == 0, process.stderr
    return json.loads((cwd / "runs/default/run.json").read_text())


def begun(cwd, *more):
    """Begin a run on two files, end it after four steps, and add a file whose name comes before theirs."""
    write(cwd / "md", "b", "c")
    trained(cwd, *more, steps=4)
    write(cwd / "md", "a")


def weights(cwd):
    """Return the bytes of the newest checkpoint's model."""
    newest = max((cwd / "runs/default/checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
    return (newest / "model.safetensors").read_bytes()


STEPS = 60  # the first epoch ends in the 42nd


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Return the folder of a run that grew after four steps and was not interrupted again, and its record."""
    cwd = tmp_path_factory.mktemp("uninterrupted")
    begun(cwd)
    return cwd, trained(cwd, GROW, steps=STEPS)


def test_a_run_grows_from_its_next_epoch_on(uninterrupted, tmp_path):
    """Until the next epoch the losses are those of a run without the file; run.json says what came from where on."""
    cwd, record = uninterrupted
    (grown,) = [entry for entry in record["history"] if "grown" in entry]
    assert (grown["grown"], grown["epoch"]) == (["a.jsonl"], 1)
    boundary = grown["sample"] // 4  # rows of a step
    assert boundary == 41
    write(tmp_path / "md", "b", "c")
    trained(tmp_path, steps=STEPS)
    small, large = losses(tmp_path / "runs/default"), losses(cwd / "runs/default")
    assert [large[step] for step in range(1, boundary + 1)] == [small[step] for step in range(1, boundary + 1)]
    assert large[STEPS] != small[STEPS]


def test_a_file_of_a_set_is_refused_when_it_is_added(tmp_path):
    """A file that joins the data of a run is not trained on if a set for evaluation holds it."""
    begun(tmp_path)
    process = train(tmp_path, GROW, "evaluation.sets={own: {path: md/a.jsonl}}", steps=8)
    assert process.returncode == 2
    assert "evaluation.sets.own holds" in process.stderr


@pytest.mark.parametrize("stops", [(6, 44), pytest.param((5, 41, 42), marks=pytest.mark.slow)])
def test_a_resume_after_a_growth_is_bit_for_bit_the_uninterrupted_run(uninterrupted, tmp_path, stops):
    """A grown run that stops before and after the boundary continues bit for bit, with and without data.grow."""
    cwd, record = uninterrupted
    begun(tmp_path)
    for number, steps in enumerate((*stops, STEPS)):
        again = trained(tmp_path, *([GROW] if number == 0 else []), steps=steps)
        assert [part["epoch"] for part in again["growth"]] == [part["epoch"] for part in record["growth"]]
    assert losses(tmp_path / "runs/default") == losses(cwd / "runs/default")
    assert weights(tmp_path) == weights(cwd)


def test_a_run_grows_again_and_again(tmp_path):
    """A second growth has an epoch of its own, and a file that was taken up is held to its content."""
    begun(tmp_path)
    first = trained(tmp_path, GROW, steps=50)
    write(tmp_path / "md", "d", "e")
    second = trained(tmp_path, GROW, steps=80)
    assert second["growth"][0] == first["growth"][0]
    assert [len(part["files"]) for part in second["growth"]] == [1, 2]
    assert second["growth"][1]["epoch"] > second["growth"][0]["epoch"]
    write(tmp_path / "md", "f")
    refused = train(tmp_path, steps=81)
    assert refused.returncode == 4, refused.stderr
    assert "f.jsonl is new; move it away, or set data.grow=true" in refused.stderr
    (tmp_path / "md/f.jsonl").unlink()
    text = (tmp_path / "md/d.jsonl").read_text()
    (tmp_path / "md/d.jsonl").write_text(text.replace("model", "nodel", 1))
    refused = train(tmp_path, steps=81)
    assert refused.returncode == 4, refused.stderr
    assert "the content of d.jsonl has changed" in refused.stderr


def test_a_grown_run_is_evaluated_on_what_it_held_out_at_first(tmp_path):
    """The documents of files that were added are not among those that a run is evaluated on, so evaluations compare."""
    write(tmp_path / "md", "b", "c")
    trained(tmp_path, GROW, "evaluation.every=1", steps=2)
    before = run_here("evaluate", "runs/default", cwd=tmp_path)
    assert before.returncode == 0, before.stderr
    write(tmp_path / "md", "a")
    after = run_here("evaluate", "runs/default", cwd=tmp_path)
    assert (after.returncode, after.stdout) == (0, before.stdout), after.stderr


@pytest.mark.parametrize("more", [("data.mode=stream",), ("data.kind=python_library", "data.mode=cache")])
def test_what_cannot_grow_exactly_is_refused(tmp_path, more):
    """Where growth cannot be exact, data.grow is refused in one sentence with exit code 2."""
    write(tmp_path / "md", "b", "c")
    settings = [each for each in more if not each.startswith("data.kind=python")]
    process = train(tmp_path, GROW, *settings, *(each for each in more if each not in settings), steps=1)
    assert process.returncode == 2, process.stderr
    assert "grow" in process.stderr


def test_how_far_a_run_has_come_is_known_from_its_archive(tmp_path):
    """A run whose checkpoints lie in the archive alone grows from the epoch after them, and not from the first."""
    (tmp_path / "archive").mkdir()
    archive = f"state_store.archive.url={tmp_path / 'archive'}"
    begun(tmp_path, archive)
    shutil.rmtree(tmp_path / "runs/default/checkpoints")
    record = trained(tmp_path, archive, GROW, steps=5)
    assert [part["epoch"] for part in record["growth"]] == [1]


@pytest.mark.slow
def test_a_run_grows_on_all_ranks(uninterrupted, tmp_path):
    """Two processes take up the same files from the same sample on, and one continues what they did."""
    _, record = uninterrupted
    begun(tmp_path)
    process = train(tmp_path, GROW, "distributed.processes=2", steps=44, start=run)
    assert process.returncode == 0, process.stderr
    again = trained(tmp_path, steps=46)
    assert [part["epoch"] for part in again["growth"]] == [part["epoch"] for part in record["growth"]]
    assert sorted(losses(tmp_path / "runs/default")) == list(range(1, 47))


def test_a_run_that_may_grow_generates_without_its_data(tmp_path):
    """What needs no data works where they are gone."""
    write(tmp_path / "md", "b", "c")
    trained(tmp_path, GROW, steps=1)
    shutil.rmtree(tmp_path / "md")
    process = run_here("generate", "runs/default", "--prompt", "the", cwd=tmp_path)
    assert process.returncode == 0, process.stderr


def test_what_is_prepared_after_a_growth_is_what_the_run_uses(tmp_path):
    """After `prepare` of grown data the run tokenizes nothing, and nothing that it began with was tokenized again."""

    def tokens():
        return {path: path.read_bytes() for path in tmp_path.glob("cache/tokens/*/*/*.bin")}

    begun(tmp_path)
    before = tokens()
    ahead = run_here("prepare", *tiny(tmp_path / "any", "data.path=md", GROW), cwd=tmp_path)
    assert ahead.returncode == 0, ahead.stderr
    prepared = tokens()
    assert before.items() < prepared.items()
    assert len({path.parent.parent for path in prepared}) == len({path.parent.parent for path in before}) + 1
    assert sum(map(len, prepared.values())) < 2 * sum(map(len, before.values()))
    trained(tmp_path, GROW, steps=6)
    assert tokens() == prepared
