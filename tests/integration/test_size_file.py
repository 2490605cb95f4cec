import pytest

from holdfast.adapters.shared.files.micro_batch_record import MicroBatchRecord
from holdfast.domain.training.micro_batch import MicroBatchState


def test_a_size_is_remembered_for_what_it_is_of(tmp_path):
    """What was written is read again by another process of the same key, and by none of another key."""
    path, said = tmp_path / "sizes" / "a.json", []
    assert MicroBatchRecord(path, "a model", said.append).read() is None
    MicroBatchRecord(path, "a model", said.append).write(MicroBatchState(2, {8: 1, 4: 2}, quiet_steps=7))
    assert MicroBatchRecord(path, "a model", said.append).read() == MicroBatchState(2, {8: 1, 4: 2})
    assert MicroBatchRecord(path, "another", said.append).read() is None
    assert [entry.name for entry in path.parent.iterdir()] == ["a.json"]
    assert said == []


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"rows": 2}', '{"key": "a", "rows": 0, "shortages": {}}', '{"key": "a", "rows": "2"}'),
        *('{"key": "a", "rows": 2, "shortages": {"x": 1}}', '{"key": "a", "rows": 2, "shortages": {"4": null}}'),
    ],
)
def test_a_damaged_file_is_left_alone_with_a_line(tmp_path, text):
    """Whatever stands in the file, the run begins as if nothing were remembered, and says so."""
    path, said = tmp_path / "a.json", []
    path.write_text(text)
    assert MicroBatchRecord(path, "a", said.append).read() is None
    assert len(said) == 1


def test_a_folder_that_cannot_be_written_costs_nothing_but_memory(tmp_path):
    """A size that cannot be kept is told, and training goes on."""
    said = []
    (tmp_path / "file").write_text("in the way")
    MicroBatchRecord(tmp_path / "file" / "a.json", "a", said.append).write(MicroBatchState(2))
    assert "not remembered" in said[0]
