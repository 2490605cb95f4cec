"""The bytes that checkpoints and tokens are expected to take."""

import gzip

from holdfast.bootstrap.doctor.expected_sizes import checkpoint_bytes, most_checkpoints, token_bytes
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
    assert most_checkpoints(settings_of("state_store.keep=5", "state_store.keep_best=2")) == 8


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
