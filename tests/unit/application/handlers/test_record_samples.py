import pytest

from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.application.handlers.record_events import RecordSamples
from holdfast.domain.events import RolledBack, RunStarted, TextGenerated
from holdfast.domain.training.text_generation import GeneratedText
from tests.support.events import at


@pytest.fixture
def recorded(tmp_path):
    """Return the recorder of a run that wrote two texts at the steps 0, 10 and 20, and its records."""
    records = JsonLines(tmp_path / "samples.jsonl")
    recorder = RecordSamples(records)
    recorder.on_start(RunStarted(at(0).progress))
    for step in (0, 10, 20):
        texts = [GeneratedText("Row,", f" row {step}", 0), GeneratedText("Ah", "!", 1)]
        recorder.on_text(TextGenerated(at(step).progress, texts))
    yield recorder, records
    records.close()


def test_each_text_is_a_record(recorded):
    """A record has the step, the time in UTC, the prompt, its continuation and the seed."""
    _, records = recorded
    found = list(records.read())
    assert [(each["step"], each["prompt"], each["text"], each["seed"]) for each in found[2:4]] == [
        (10, "Row,", " row 10", 0),
        (10, "Ah", "!", 1),
    ]
    assert all(each["time"].endswith("+00:00") for each in found)
    assert len(found) == 6


@pytest.mark.parametrize(("step", "kept"), [(0, []), (9, [0]), (10, [0, 10]), (15, [0, 10]), (20, [0, 10, 20])])
@pytest.mark.parametrize("kind", [RunStarted, lambda progress: RolledBack(progress, 25, "a spike")])
def test_steps_that_are_taken_again_are_removed(recorded, kind, step, kept):
    """A start or roll-back keeps the texts up to its step, and those of a new run are none."""
    recorder, records = recorded
    recorder.on_start(kind(at(step).progress))
    assert [each["step"] for each in records.read()] == [each for each in kept for _ in range(2)]
