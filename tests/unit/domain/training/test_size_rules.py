"""How long rows are and how many a step has where nobody says it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.bootstrap.adapter_choice.ports import Ports
from holdfast.bootstrap.run_folder.record_file import Begun
from holdfast.bootstrap.stages.choose.step_sizes import with_sizes
from holdfast.bootstrap.stages.request import Request
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.size_rules import choose_length, choose_rows


@pytest.mark.parametrize(
    ("tokens", "length", "rows"),
    # 0.58 D^0.571: 79,900 tokens, 1.1 million, and less than the least
    [(10**9, 1024, 64), (10**11, 4096, 256), (10**5, 512, 8)],
)
def test_the_step_law_says_the_rows_of_a_step(tokens, length, rows):
    """The published law of tokens in a batch, to the nearest power of two, with a floor for tiny runs."""
    chosen, reason = choose_rows(Budget(None, tokens), length, 1)
    assert chosen == rows
    assert "arXiv 2503.04715" in reason


def test_a_budget_of_steps_means_the_tokens_of_those_steps():
    """The batch of a budget in steps is that of the budget in tokens which these steps are with it."""
    rows, _ = choose_rows(Budget(20_000, None), 512, 1)
    again, _ = choose_rows(Budget(None, 20_000 * rows * 512), 512, 1)
    assert again in (rows // 2, rows, 2 * rows)


@given(st.integers(1, 10**13), st.integers(8, 8192), st.integers(1, 64))
def test_all_ranks_have_the_same_share(tokens, length, ranks):
    """Whatever the budget, each rank has a row at least, and all as many."""
    rows, _ = choose_rows(Budget(None, tokens), length, ranks)
    assert rows >= ranks
    assert rows % ranks == 0


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=300), st.none() | st.integers(8, 10**6))
def test_nine_in_ten_documents_fit_or_the_model_forbids_it(documents, positions):
    """A row holds nine in ten documents, at four bytes a token, unless the limit of the model or 4096 is below."""
    length, reason = choose_length(documents, positions)
    most = min(4096, positions or 4096)
    assert 8 <= length <= most
    assert reason
    if length < most:
        assert sum(size <= 4 * length for size in documents) >= 0.9 * len(documents)


@given(st.lists(st.integers(0, 12_000), min_size=1, max_size=300))
def test_of_documents_that_stay_whole_hardly_any_is_too_long(documents):
    """A row holds 99 in 100 conversations, at four bytes a token."""
    length, _ = choose_length(documents, None, are_divided=False)
    assert sum(size <= 4 * length for size in documents) >= 0.99 * len(documents)


def test_without_documents_a_row_is_as_long_as_may_be():
    """Tokens that are given tell no lengths ahead."""
    assert choose_length([], 1024)[0] == 1024


def sized(*overrides, known=()):
    decided = dict(known)

    def decide(name, value, reason):
        return decided.setdefault(name, value)

    settings = load_settings([], ["data.sequence_length=100", *overrides], {}).settings
    request = Request(
        settings, settings.run.directory, Ports(settings, {}), print, begun=Begun(choices=dict(known)), decide=decide
    )
    found = with_sizes(request)
    return found.data.row_length, found.optimizer.num_rows, decided


def test_a_batch_of_tokens_is_as_many_whole_rows():
    """Tokens divided by the length of a row, without a remainder; less than a row is refused."""
    assert sized("optimizer.batch_tokens=1K")[1] == 10
    assert sized("optimizer.batch_tokens=1099")[1] == 10
    with pytest.raises(ConfigurationError, match="less than a row of 100 tokens"):
        sized("optimizer.batch_tokens=99")


def test_what_was_decided_once_stays():
    """A run that goes on has the sizes that it began with, whatever its budget is by now."""
    length, rows, decided = sized(
        "data.sequence_length=auto",
        "optimizer.batch_size=auto",
        "run.budget.tokens=1e12",
        known={"data.sequence_length": "72", "optimizer.batch_size": "6"},
    )
    assert (length, rows) == (72, 6)
    assert decided == {"data.sequence_length": "72", "optimizer.batch_size": "6"}


def test_numbers_are_left_as_they_are():
    """Without auto nothing is decided."""
    assert sized("optimizer.batch_size=3") == (100, 3, {})
