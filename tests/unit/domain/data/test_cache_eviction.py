"""Which shards make room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.data.cache_eviction import CachedShard, FarthestNextUse, LeastRecentlyUsed, OwnLast


def shards(*names, fingerprint="own", used=()):
    times = used or range(len(names))
    return [CachedShard(fingerprint, name, 1, float(time)) for name, time in zip(names, times, strict=True)]


def names(shards):
    return "".join(shard.name for shard in shards)


def by_name(next_use):
    return FarthestNextUse(lambda shard: next_use.get(shard.name))


def test_least_recently_used_goes_first():
    """Under LRU the shard that was read longest ago goes first, and names decide between equals."""
    assert names(LeastRecentlyUsed().first_to_go(shards(*"abdc", used=(3, 1, 2, 2)))) == "bcda"


def test_the_farthest_next_use_goes_first():
    """By next use, what is never read again goes first, then what is read last, whenever it was read before."""
    policy = by_name({"a": 5, "b": 0, "c": 9})
    assert names(policy.first_to_go(shards(*"abcd", used=(0, 1, 2, 3)))) == "dcab"


def test_among_equal_next_uses_the_least_recently_used_goes_first():
    """Shards that are needed at the same time, or not at all, go by when they were read last."""
    policy = by_name({"a": 5, "b": 5})
    assert names(policy.first_to_go(shards(*"abcd", used=(9, 1, 8, 2)))) == "dcba"


def test_next_use_is_looked_up_each_time():
    """A next use that changes with the run's position is followed."""
    next_use = {"a": 1, "b": 2}
    policy = by_name(next_use)
    assert names(policy.first_to_go(shards(*"ab"))) == "ba"
    next_use["a"] = 3
    assert names(policy.first_to_go(shards(*"ab"))) == "ab"


@pytest.mark.parametrize(
    ("policy", "order"), [(by_name({"a": 2, "b": 3, "e": 1}), "dcbae"), (LeastRecentlyUsed(), "dcaeb")]
)
def test_the_datasets_of_a_run_go_last(policy, order):
    """Whatever the policy, shards of other datasets go before any of the run's own, however lately they were read."""
    mixed = [*shards(*"ab", used=(0, 2)), *shards(*"cd", fingerprint="other", used=(9, 8))]
    mixed += shards("e", fingerprint="own too", used=(1,))
    assert names(OwnLast({"own", "own too"}, policy).first_to_go(mixed)) == order


SEQUENCES = st.lists(st.sampled_from("abcdef"), max_size=40)


def misses(reads, size, policy_at):
    cached, count = {}, 0
    for time, name in enumerate(reads):
        if name not in cached:
            count += 1
            if len(cached) == size:
                held = [CachedShard("own", each, 1, float(used)) for each, used in cached.items()]
                del cached[policy_at(time).first_to_go(held)[0].name]
        cached[name] = time
    return count


@given(reads=SEQUENCES, size=st.integers(1, 5))
def test_knowing_the_future_is_never_worse(reads, size):
    """For any order of reading and any budget, eviction by next use reads no more from the source than LRU does."""

    def by_next_use(time):
        future = reads[time + 1 :]
        return by_name({name: future.index(name) for name in set(future)})

    assert misses(reads, size, by_next_use) <= misses(reads, size, lambda _: LeastRecentlyUsed())
