"""Which shards make room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from domain.eviction import CachedShard, FarthestNextUse, LeastRecentlyUsed, order_of_eviction


def shards(*names, fingerprint="own", used=()):
    times = used or range(len(names))
    return [CachedShard(fingerprint, name, 1, float(time)) for name, time in zip(names, times, strict=True)]


def names(shards):
    return "".join(shard.name for shard in shards)


def test_least_recently_used_goes_first():
    """Under LRU the shard that was read longest ago goes first, and names decide between equals."""
    assert names(LeastRecentlyUsed().first_to_go(shards(*"abdc", used=(3, 1, 2, 2)))) == "bcda"


def test_the_farthest_next_use_goes_first():
    """By next use, what is never read again goes first, then what is read last, whenever it was read before."""
    policy = FarthestNextUse({"a": 5, "b": 0, "c": 9})
    assert names(policy.first_to_go(shards(*"abcd", used=(0, 1, 2, 3)))) == "dcab"


def test_next_use_is_looked_up_each_time():
    """A mapping that changes with the run's position is followed."""
    next_use = {"a": 1, "b": 2}
    policy = FarthestNextUse(next_use)
    assert names(policy.first_to_go(shards(*"ab"))) == "ba"
    next_use["a"] = 3
    assert names(policy.first_to_go(shards(*"ab"))) == "ab"


def test_other_datasets_go_before_our_own():
    """Shards of other datasets go first, by LRU, and only then those that the policy knows of."""
    mixed = [*shards(*"ab"), *shards(*"cd", fingerprint="other", used=(9, 8))]
    order = order_of_eviction(mixed, fingerprint="own", policy=FarthestNextUse({"a": 0, "b": 1}))
    assert names(order) == "dcba"


SEQUENCES = st.lists(st.sampled_from("abcdef"), max_size=40)


def misses(reads, size, policy_at):
    cached, count = {}, 0
    for time, name in enumerate(reads):
        if name not in cached:
            count += 1
            if len(cached) == size:
                held = [CachedShard("own", each, 1, float(used)) for each, used in cached.items()]
                del cached[order_of_eviction(held, fingerprint="own", policy=policy_at(time))[0].name]
        cached[name] = time
    return count


@given(reads=SEQUENCES, size=st.integers(1, 5))
def test_knowing_the_future_is_never_worse(reads, size):
    """For any order of reading and any budget, eviction by next use reads no more from the source than LRU does."""

    def by_next_use(time):
        future = reads[time + 1 :]
        return FarthestNextUse({name: future.index(name) for name in set(future)})

    assert misses(reads, size, by_next_use) <= misses(reads, size, lambda _: LeastRecentlyUsed())
