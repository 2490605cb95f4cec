from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.application.data.rejected_records import LOSES_REST, RejectedRecords
from holdfast.domain.errors import DataError
from holdfast.ports.data_source import Rejected, Unit
from holdfast.ports.transform import Dropped

UNIT = Unit("file.jsonl", 10, "etag")
BAD = Rejected("file.jsonl, byte 3: no text: repair it", 3, 7)


def test_stop_ends_the_run_with_the_reason_and_the_remedy():
    """The first bad record raises ``DataError`` with its own reason and the setting that would go on."""
    with pytest.raises(DataError, match=r"byte 3: no text: repair it \(.*data\.on_error=skip\)"):
        RejectedRecords("stop").reject(UNIT, BAD)


def test_what_another_process_left_out_ends_a_run_that_stops():
    """A record that was skipped when the tokens were made is no less bad for a run that is to stop at one."""
    written = []
    record = RejectedRecords("skip").reject(UNIT, BAD)
    with pytest.raises(DataError, match="byte 3"):
        RejectedRecords("stop", written.append).record(record)
    assert written == []


def test_a_skipped_record_is_written_down_once():
    """Unit, position and reason are written at the first sight, once for a place, and whether more is lost with it."""
    written = []
    rejections = RejectedRecords("skip", written.append)
    for rejected in (BAD, BAD, Rejected("elsewhere", 7, None), BAD):
        rejections.record(rejections.reject(UNIT, rejected))
    assert [(record["unit"], record["position"], record["reason"]) for record in written] == [
        ("file.jsonl", 3, BAD.reason),
        (
            "file.jsonl",
            7,
            "elsewhere; all records that follow in file.jsonl are left out, too, and their number is unknown",
        ),
    ]
    assert [record.get(LOSES_REST) for record in written] == [None, True]
    assert rejections.count == 2


def test_judging_counts_nothing():
    """What is only judged, for a cache to keep, is neither written nor counted."""
    written = []
    rejections = RejectedRecords("skip", written.append)
    rejections.reject(UNIT, BAD)
    assert (written, rejections.count) == ([], 0)


def test_what_earlier_processes_wrote_is_known():
    """Records known from before count, and are not written again."""
    written = []
    known = [RejectedRecords("skip").reject(UNIT, BAD)]
    rejections = RejectedRecords("skip", written.append, known)
    rejections.record(rejections.reject(UNIT, BAD))
    rejections.record(rejections.reject(Unit("other", 1, ""), BAD))
    assert ([record["unit"] for record in written], rejections.count) == (["other"], 2)


def test_threads_write_each_record_once():
    """Many threads that meet the same records write each of them once."""
    written = []
    rejections = RejectedRecords("skip", written.append)

    def meet(_):
        for position in range(200):
            rejections.record({"unit": "u", "position": position, "reason": "bad"})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(meet, range(8)))
    assert sorted(record["position"] for record in written) == list(range(200))
    assert rejections.count == 200


def test_details_are_hidden_where_they_would_be_written_but_not_in_the_log():
    """Errors and written records have place and rule only; the record that a shard keeps has the reason."""
    written = []
    rejections = RejectedRecords("skip", written.append, hides_details=True)
    dropped = Dropped("validation.lang.one_of", "the field 'lang' holds 'xx'")
    for record in (rejections.reject(UNIT, BAD), rejections.leave_out(UNIT, 9, dropped)):
        assert record["reason"] in (BAD.reason, dropped.detail)
        rejections.record(record)
    told = str(rejections.error_of(UNIT, 9, dropped))
    with pytest.raises(DataError) as caught:
        RejectedRecords("stop", hides_details=True).reject(UNIT, BAD, lambda _unit, _rejected: BAD.reason)
    for text in (str(written), told, str(caught.value)):
        assert "repair it" not in text
        assert "holds" not in text
        assert "file.jsonl" in text
    assert [record.get("rule") for record in written] == [None, "validation.lang.one_of"]
    assert "position 9: validation.lang.one_of; details are hidden" in told
    assert "position 3" in str(caught.value)
