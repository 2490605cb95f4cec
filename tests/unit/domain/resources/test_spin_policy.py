"""When waits at barriers are to be brief."""

from __future__ import annotations

from holdfast.domain.resources.balance_policy import Spinning, ThreadTimes


def told(shares):
    """Return what is decided at looks that each come after a second of running and a share of it of waiting."""
    spinning, ran, waited = Spinning(), 0.0, 0.0
    decisions = []
    for share in shares:
        ran, waited = ran + 1.0, waited + share
        decisions.append(spinning.is_brief(ThreadTimes(ran, waited)))
    return decisions


def test_a_quiet_machine_changes_nothing():
    """Threads spin as they were told to as long as they get their processors when they want them."""
    assert not any(told([0.0, 0.05, 0.19] * 50))


def test_waits_are_brief_while_others_work():
    """Waits become brief at the first look that finds waiting, and stay so until it has been little for a while."""
    decisions = told([0.05, 0.6, 0.3, 0.05, 0.05, 0.5, *[0.05] * 8])

    assert decisions == [False, *[True] * 10, *[False] * 3]


def test_a_calm_that_did_not_last_must_last_longer():
    """Who returned too early tries again after twice as long, up to a minute, so that little time is lost so."""
    decisions = told([share for _ in range(9) for share in (0.6, *[0.0] * 12)])

    assert decisions[:13] == [True] * 6 + [False] * 7
    assert decisions[13:26] == [True] * 12 + [False]


def test_a_process_that_does_not_run_says_nothing():
    """Without a second of running there is no share, so nothing changes."""
    spinning = Spinning()

    assert not spinning.is_brief(ThreadTimes(0.0, 5.0))
    assert spinning.is_brief(ThreadTimes(1.0, 6.0))


def test_a_process_that_hardly_runs_says_nothing():
    """Ten milliseconds of waiting while a run loads its parts do not slow down the steps that come next."""
    spinning = Spinning()

    assert not spinning.is_brief(ThreadTimes(10.0, 0.03))
    assert not spinning.is_brief(ThreadTimes(10.05, 0.043))
    assert not spinning.is_brief(ThreadTimes(11.05, 0.05))
