"""The bytes that checkpoints and tokens are expected to take."""

import gzip

import pytest

from holdfast.bootstrap.doctor.expected_sizes import (
    checkpoint_bytes,
    most_checkpoints,
    token_bytes,
    uncounted_rules,
)
from tests.support.planted_troubles import settings_of


def test_a_checkpoint_takes_weights_and_optimizer_state():
    """The estimate grows with the average of the weights and shrinks with a smaller state of the optimizer."""
    adamw = "optimizer.algorithm=adamw"
    usual = checkpoint_bytes(settings_of(adamw))
    assert usual is not None
    assert 28e6 < usual < 28.7e6  # a checkpoint of these settings has 28.69 MB
    assert checkpoint_bytes(settings_of(adamw, "optimizer.ema={decay: 0.99}")) == usual * 16 / 12
    assert checkpoint_bytes(settings_of("optimizer.algorithm=adamw_8bit")) == usual * 6 / 12
    assert checkpoint_bytes(settings_of("model.path=owner/name")) is None
    assert checkpoint_bytes(settings_of("model.path=./folder", "model.lora={rank: 8}")) is None


def test_the_checkpoint_that_is_written_counts():
    """Beside the checkpoints that are kept there is the one that is being written."""
    chosen = settings_of("run.budget.steps=100000", "state_store.keep=5", "state_store.keep_best=2")
    assert most_checkpoints(chosen, chosen.state_store) == 8


@pytest.mark.parametrize(
    ("budget", "number"),
    [
        ("run.budget.steps=2000", 5 + 2),  # 400, 800, ..., 2000, of which 2000 is the newest too, and 1900
        ("run.budget.tokens=4096000", 5 + 2),  # 2,048 tokens in a step
        ("run.budget.steps=150", 3),  # 100 and 150
        ("run.budget.minutes=60", 3),  # as many as are kept without milestones
    ],
)
def test_milestones_are_counted_where_the_steps_are_known(budget, number):
    """A checkpoint at each multiple of ``keep_every`` counts; without a number of steps this rule is named."""
    cleared = [] if "steps" in budget else ["run.budget.steps=null"]
    chosen = settings_of(*cleared, budget, "state_store.keep=2", "state_store.keep_every=400")
    assert most_checkpoints(chosen, chosen.state_store) == number
    assert uncounted_rules(chosen, chosen.state_store) == (["keep_every"] if "minutes" in budget else [])


def test_rules_that_no_settings_can_count_are_named():
    """Checkpoints that are kept by the hour, and milestones of a run that its data end, have no number before it."""
    chosen = settings_of("state_store.keep_hours=2", "state_store.keep_every=400", "data.epochs=1")
    assert uncounted_rules(chosen, chosen.state_store) == ["keep_every", "keep_hours"]
    assert most_checkpoints(chosen, chosen.state_store) == 4


def test_tokens_are_estimated_for_files_of_every_form(tmp_path, monkeypatch):
    """A folder, a file and a glob give the same figure, compressed text counts more, and places elsewhere give none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts" / "more").mkdir(parents=True)
    (tmp_path / "texts" / "more" / "a.txt").write_text("word " * 1000)
    (figure,) = {
        token_bytes(settings_of(f"data.path={each}")) for each in ("texts", "texts/more/a.txt", "texts/**/*.txt")
    }
    assert figure == 8000
    assert token_bytes(settings_of(f"data.path={tmp_path}/texts/*/*.txt")) == figure
    with gzip.open(tmp_path / "texts" / "b.txt.gz", "wb") as file:
        file.write(b"word " * 1000)
    size = (tmp_path / "texts" / "b.txt.gz").stat().st_size
    assert token_bytes(settings_of("data.path=texts/b.txt.gz")) == 4 * size * 1.6
    assert token_bytes(settings_of("data.path=s3://bucket/texts")) is None
    assert token_bytes(settings_of()) is None
