"""Threads that generate with different networks share torch's random state and disturb each other in nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from holdfast.adapters.shared.modeling.causal_language_model import RandomTurn

CPU = torch.device("cpu")


def drawn(seed, num_draws, after=lambda _: None):
    """Return the draws of a thread that passes the turn on after each."""
    with RandomTurn(seed, CPU) as turn:
        found = []
        for number in range(num_draws):
            found.append(float(torch.rand(())))
            after(number)
            turn.pass_on()
    return found


def test_threads_draw_as_if_each_was_alone():
    """What four threads draw at once is what each draws alone, and the state outside is as before."""
    torch.manual_seed(5)
    before = torch.get_rng_state()
    alone = [drawn(seed, 50) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(drawn, range(4), [50] * 4)) == alone
    assert torch.equal(torch.get_rng_state(), before)


def test_threads_take_turns():
    """A thread that waits comes after one draw of the other, and not at its end."""
    order = []
    with ThreadPoolExecutor(2) as pool:
        with RandomTurn(0, CPU):  # both arrive while this one is inside
            futures = [pool.submit(drawn, name, 20, lambda _, name=name: order.append(name)) for name in (1, 2)]
            while RandomTurn._num_arrived - RandomTurn._num_left < 3:
                pass
        for future in futures:
            future.result()
    assert order in ([1, 2] * 20, [2, 1] * 20)


def test_an_error_ends_the_turn():
    """After an error the next thread is not kept waiting."""

    def fail(_):
        raise KeyError

    with pytest.raises(KeyError):
        drawn(1, 3, fail)
    with ThreadPoolExecutor(1) as pool:
        assert len(pool.submit(drawn, 1, 3).result(timeout=60)) == 3
