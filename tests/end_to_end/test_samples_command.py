"""The documents behind the steps of a run, as a user looks for them."""

import json
import shutil

import pytest

from holdfast.domain.data.exclusion import shown_id
from holdfast.domain.data.holdout import hash_of
from tests.support.command_line import SAME_RHYTHM, corpus, run_here, tiny

STEPS = 12


@pytest.fixture(scope="module", params=["cache", "stream"])
def trained(request, tmp_path_factory):
    """Return the folder and the settings of a run; tests that change the run copy the folder."""
    folder = tmp_path_factory.mktemp(request.param)
    settings = tiny(corpus(folder, documents=40), f"data.mode={request.param}", "state_store.every=4", SAME_RHYTHM)
    settings += ["optimizer.batch_size=4", "data.sequence_length=64", "data.validation.fields.id.min=0"]
    run = run_here("train", *settings, f"run.budget.steps={STEPS}", cwd=folder)
    assert run.returncode == 0, run.stderr
    return folder, settings


def told(folder, *arguments):
    """Return the JSON that ``samples`` prints."""
    process = run_here("samples", "runs/default", *arguments, "--json", cwd=folder)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def tokens_of(folder):
    """Return the tokens that each step has trained on, by the metrics."""
    records = map(json.loads, (folder / "runs/default/metrics.jsonl").read_text().splitlines())
    totals = {0: 0} | {record["step"]: record["tokens"] for record in records if "loss" in record}
    return {step: totals[step] - totals[step - 1] for step in totals if step}


def test_the_documents_of_a_step_and_the_steps_of_a_document_agree(trained):
    """Each document of each step is found in the steps that were told, and nowhere else."""
    folder, _ = trained
    steps = {step: told(folder, "--step", str(step))["steps"][0] for step in range(1, STEPS + 1)}
    samples = [steps[step]["samples"] for step in steps]
    assert samples == [[4 * number, 4 * number + 4] for number in range(STEPS)]
    lines = (folder / "corpus.jsonl").read_text().splitlines()
    ids = {shown_id(hash_of(json.loads(line)["text"])) for line in lines}
    found = {piece["document"] for step in steps.values() for piece in step["documents"]}
    assert found <= ids
    document = steps[STEPS]["documents"][0]["document"]
    expected = [step for step in steps if document in {piece["document"] for piece in steps[step]["documents"]}]
    report = told(folder, "--document", document)
    assert sorted({piece["step"] for piece in report["steps"]}) == expected
    for step, tokens in tokens_of(folder).items():
        assert sum(piece["tokens"] for piece in steps[step]["documents"]) == tokens


def test_the_text_of_a_piece_is_that_of_its_document(trained):
    """The text is what the model read, from its own tokenizer, and a file with the text finds the same document."""
    folder, _ = trained
    texts = [json.loads(line)["text"] for line in (folder / "corpus.jsonl").read_text().splitlines()]
    by_id = {shown_id(hash_of(text)): text for text in texts}
    [step] = told(folder, "--step", "3", "--full")["steps"]
    for piece in step["documents"]:
        assert piece["text"] in by_id[piece["document"]]
    piece = max(step["documents"], key=lambda piece: piece["tokens"])
    assert len(piece["text"]) > piece["tokens"] // 2
    (folder / "page.txt").write_text(by_id[piece["document"]] + "\n")
    assert told(folder, "--text-of", "page.txt")["steps"] == told(folder, "--document", piece["document"])["steps"]


def test_the_tables_say_the_same(trained):
    """Without --json there are tables of the same pieces, and the spike comes with its text."""
    folder, _ = trained
    [step] = told(folder, "--step", "2")["steps"]
    process = run_here("samples", "runs/default", "--step", "2", cwd=folder)
    assert process.stdout.startswith("step 2: samples 4 to 7, ")
    assert [line.split()[-1] for line in process.stdout.splitlines()[3:]] == [
        piece["document"] for piece in step["documents"]
    ]
    spike = run_here("samples", "runs/default", "--spike", cwd=folder)
    assert spike.returncode == 0, spike.stderr
    report = told(folder, "--spike")
    jump = report["spike"]["step"]
    assert [entry["step"] for entry in report["steps"]] == [jump - 1, jump]
    assert f" in step {jump}; " in spike.stdout
    assert "\n    | " in spike.stdout
    document = step["documents"][0]["document"]
    found = run_here("samples", "runs/default", "--document", document, cwd=folder)
    assert found.stdout.startswith(f"document {document} was in ")


def test_a_document_that_is_held_out_was_in_no_step(trained):
    """The reason is told why a document was not seen."""
    folder, _ = trained
    texts = [json.loads(line)["text"] for line in (folder / "corpus.jsonl").read_text().splitlines()]
    reports = [told(folder, "--document", shown_id(hash_of(text))) for text in texts[:12]]
    assert all(not report["steps"] for report in reports if report["held_out"])
    process = run_here("samples", "runs/default", "--document", "0123456789abcdef", cwd=folder)
    assert process.returncode == 0
    assert "was in none of 12 steps" in process.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--document", "xyz"], "'xyz' is not the id of a document: an id has 16 hexadecimal digits"),
        (["--step", "13"], "runs/default has no step 13: its last one is 12"),
        (["--text-of", "missing.txt"], "missing.txt cannot be read"),
    ],
)
def test_wrong_questions_are_refused_in_a_sentence(trained, arguments, sentence):
    """A mistake is exit code 2 and one sentence."""
    process = run_here("samples", "runs/default", *arguments, cwd=trained[0])
    assert (process.returncode, process.stdout) == (2, "")
    assert sentence in process.stderr
    assert len(process.stderr.splitlines()) == 1


def test_a_resumed_run_trains_without_excluded_documents_from_then_on(trained, tmp_path):
    """The steps before the exclusion are the same, later ones lack the documents, and samples says which and when."""
    folder, settings = trained
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    longer = [*settings, "run.budget.steps=60"]  # through the second epoch
    first = told(folder, "--step", "1")["steps"][0]["documents"]
    document = first[0]["document"]
    (tmp_path / "bad.txt").write_text(f"# found in step 1\n{document}\n")
    before = told(tmp_path, "--document", document)["steps"]
    resumed = run_here("train", *longer, "data.exclude=bad.txt", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    report = told(tmp_path, "--document", document)
    assert report["steps"] == before
    assert report["excluded_from"]
    assert min(report["excluded_from"]) > STEPS
    step = report["excluded_from"][0]
    [without] = told(tmp_path, "--step", str(step))["steps"]
    assert without["excluded"] == [document]
    assert sum(piece["tokens"] for piece in without["documents"]) == tokens_of(tmp_path)[step]
    record = json.loads((tmp_path / "runs/default/run.json").read_text())
    [entry] = [entry for entry in record["history"] if "data" in entry]
    assert entry["data"] == "1 document excluded from here on (data.exclude)"
    inspected = run_here("inspect", "runs/default", "--json", cwd=tmp_path)
    assert [each["contract"] for each in json.loads(inspected.stdout)["checkpoints"]][-1] == "numerical"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "bad.txt, which is neither an id of 16 hexadecimal digits nor a file that can be read"),
        ("0123\n", "line 1 of bad.txt (data.exclude) is not the id of a document"),
    ],
)
def test_exclusions_that_cannot_be_read_are_refused(tmp_path, content, sentence):
    """A missing file and a line that is no id are exit code 2."""
    if content is not None:
        (tmp_path / "bad.txt").write_text(content)
    settings = tiny(corpus(tmp_path, documents=5), "data.exclude=bad.txt")
    process = run_here("train", *settings, cwd=tmp_path)
    assert process.returncode == 2
    assert sentence in process.stderr
