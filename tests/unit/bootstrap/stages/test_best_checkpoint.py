import pytest

from holdfast.bootstrap.stages.attach.banner import limit_of_best
from holdfast.configs.settings_layers import load_settings


def limit(*overrides, has_documents=True):
    return limit_of_best(load_settings([], overrides, {}).settings, has_documents=has_documents)


BEST = "state_store.keep_best=1"


@pytest.mark.parametrize("archive", [(BEST,), ("state_store.archive={url: copies, keep_best: 2}",)])
def test_keep_best_says_when_it_cannot_keep_the_best(archive):
    """Without evaluations, or with saves between them, the sentence names the settings; else there is none."""
    assert "data.holdout" in limit(*archive, has_documents=False)
    assert "multiples of 30 " in limit(*archive, "evaluation.every=5", "state_store.every=6")
    assert limit(*archive, "evaluation.every=5", "state_store.every=10") is None


def test_a_run_that_keeps_the_best_anyway_is_told_nothing():
    """Early stopping saves at its best evaluations, and without keep_best there is nothing to choose."""
    uneven = ("evaluation.every=5", "state_store.every=6")
    assert limit(*uneven, has_documents=False) is None
    assert limit(BEST, *uneven, "recovery.early_stopping.patience=2") is None
