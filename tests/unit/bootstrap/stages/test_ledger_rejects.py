from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.bootstrap.stages.attach.ledger import RejectedFiles
from tests.support.written_runs import write_lines

LOST = {"unit": "b", "position": 7, "reason": "torn", "loses_rest": True}
RULED = {"unit": "a", "position": 2, "rule": "length", "reason": "short"}


def test_a_record_that_several_ranks_met_is_given_once(tmp_path):
    """Each rank lists what it has met; the ledger gets each place once, whenever which rank lists it."""
    files = [tmp_path / "rejected.jsonl", tmp_path / "rejected.rank1.jsonl"]
    rejects = RejectedFiles(files, ["data"], MemoryDataSource({"a": ["x"], "b": ["y"]}))
    write_lines(files[0], [RULED])
    assert rejects.take().rule == ("length",)
    write_lines(files[1], [RULED, LOST])
    assert rejects.take().rule == ("the rest of a file",)
    write_lines(files[0], [RULED, LOST])
    assert rejects.take() is None
