from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.application.data.rejected_records import RejectionLimit
from holdfast.domain.errors import DataError

BAD = "validation.url.pattern"


def test_a_share_above_the_limit_ends_the_run_with_counts_reasons_and_remedy():
    """The sentence has the numbers, the three most frequent reasons and the setting."""
    limit = RejectionLimit(0.05)
    with pytest.raises(DataError) as caught:
        limit.add(2000, {BAD: 80, "validation.id.missing": 30, "validation.a.min": 2, "validation.b.max": 1})
    message = str(caught.value)
    assert "113 of 2,000" in message
    assert f"{BAD} (80), validation.id.missing (30), validation.a.min (2):" in message
    assert "validation.b.max" not in message
    assert "data.validation.max_rejected=0.05" in message
    assert "\n" not in message


@pytest.mark.parametrize(("share", "rejected"), [(0.05, 5), (0.29, 29), (0.57, 57)])
def test_the_limit_itself_is_allowed(share, rejected):
    """Exactly the share of the limit is allowed, also where its product is rounded, and one record more is not."""
    limit = RejectionLimit(share, minimum_records=1)
    limit.add(100, {BAD: rejected})
    limit.finish()
    with pytest.raises(DataError, match=f"{rejected + 1} of 100"):
        limit.add(0, {BAD: 1})


def test_few_records_are_checked_at_the_end_only():
    """The first bad records do not end the run; the end of the data does."""
    limit = RejectionLimit(0.05)
    limit.add(999, {BAD: 900})
    with pytest.raises(DataError, match="900 of 999"):
        limit.finish()
    with pytest.raises(DataError, match=r"900 of 1,000"):
        limit.add(1, {})


def test_other_drops_do_not_count():
    """Records that filters drop are not rejected by validation."""
    limit = RejectionLimit(0, minimum_records=1)
    limit.add(10, {"gopher_quality.too_short": 9})
    limit.finish()
    with pytest.raises(DataError, match="1 of 20"):
        limit.add(10, {"gopher_quality.too_short": 9, BAD: 1})


def test_no_records_are_within_every_limit():
    """Data without records violate no limit, and a limit of 1 allows all rejections."""
    RejectionLimit(0).finish()
    everything = RejectionLimit(1, minimum_records=1)
    everything.add(10, {BAD: 10})
    everything.finish()
    assert everything._reasons.total() == 10


def test_threads_add_to_the_same_counts():
    """No count is lost when several threads add."""
    limit = RejectionLimit(0.5)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: [limit.add(2, {BAD: 1}) for _ in range(500)], range(8)))
    with pytest.raises(DataError, match=r"4,001 of 8,000"):
        limit.add(0, {BAD: 1})
