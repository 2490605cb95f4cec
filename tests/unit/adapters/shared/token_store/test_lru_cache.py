"""What was used last is kept, whoever asks."""

from holdfast.adapters.shared.token_store.derived_arrays import LruCache


def test_what_was_asked_for_longest_ago_goes_first():
    """A value that is asked for outlives one that was put later and never asked for; looking does not count."""
    recent = LruCache(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    assert recent.peek("b") == 2
    recent.put("c", 3)
    assert (recent.get("a"), recent.get("b"), recent.get("c")) == (1, None, 3)
    recent.drop("a")
    assert recent.get("a") is None


def test_what_another_thread_lets_go_of_between_two_steps_is_still_handed_out():
    """A value that is dropped while it is asked for is handed out, and gone behind that."""
    recent = LruCache(2)

    class Key:
        """One that is dropped when the dictionary looks at it for the second time."""

        looks = 0

        def __hash__(self):
            self.looks += 1
            if self.looks == 2:
                recent.drop(self)
            return 1

    key = Key()
    recent.put(key, "value")
    recent.put("later", "other")
    key.looks = 0
    assert recent.get(key) == "value"
    assert recent.get(key) is None
