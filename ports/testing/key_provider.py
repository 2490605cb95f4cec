"""The contract of ``KeyProvider``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.domain.errors import StateError
from holdfast.ports.key_provider import WrappedKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.ports.key_provider import KeyProvider

_DATA_KEY = bytes(range(100, 132))
# one provider serves all examples, and one test all classes that derive it
_across_examples = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors, HealthCheck.too_slow],
)


class KeyProviderContract:
    """The contract of every ``KeyProvider``; derive and override ``new``."""

    @pytest.fixture
    def new(self) -> Callable[..., KeyProvider]:
        """Return a function that opens a provider, given the number of its current key and those of its earlier keys.

        A number stands for the same key in each call.
        """
        raise NotImplementedError

    @pytest.fixture
    def provider(self, new: Callable[..., KeyProvider]) -> KeyProvider:
        """Return the provider under test."""
        return new(0)

    @_across_examples
    @given(data_key=st.binary(max_size=100), context=st.binary(max_size=100))
    def test_what_was_wrapped_comes_back(self, provider: KeyProvider, data_key: bytes, context: bytes) -> None:
        """``unwrap`` returns any wrapped bytes, given the same context."""
        assert provider.unwrap(provider.wrap(data_key, context), context) == data_key

    def test_another_provider_of_the_same_key_unwraps(self, new: Callable[..., KeyProvider]) -> None:
        """Another provider with the same key can unwrap a data key."""
        assert new(0).unwrap(new(0).wrap(_DATA_KEY, b"run"), b"run") == _DATA_KEY

    @pytest.mark.parametrize(("context", "other"), [(b"run 1", b"run 2"), (b"", b"0"), (b"a", b"")])
    def test_another_context_is_refused(self, provider: KeyProvider, context: bytes, other: bytes) -> None:
        """A data key cannot be unwrapped with a different context."""
        wrapped = provider.wrap(_DATA_KEY, context)
        with pytest.raises(StateError):
            provider.unwrap(wrapped, other)

    def test_every_changed_byte_is_refused(self, provider: KeyProvider) -> None:
        """A wrapped key with a byte changed, removed or added is rejected."""
        wrapped = provider.wrap(_DATA_KEY, b"run")
        flipped = [
            wrapped.data[:place] + bytes([wrapped.data[place] ^ 1]) + wrapped.data[place + 1 :]
            for place in range(len(wrapped.data))
        ]
        for data in [*flipped, wrapped.data[:-1], wrapped.data[1:], wrapped.data + b"\0", b""]:
            with pytest.raises(StateError):
                provider.unwrap(WrappedKey(wrapped.key_id, data), b"run")

    def test_the_data_key_is_hidden(self, provider: KeyProvider) -> None:
        """The wrapped key does not contain the data key, and differs each time."""
        first, second = (provider.wrap(_DATA_KEY, b"run") for _ in range(2))
        assert _DATA_KEY not in first.data
        assert first.data != second.data
        assert first.key_id == second.key_id != ""

    def test_a_key_that_is_not_at_hand_is_named(self, new: Callable[..., KeyProvider]) -> None:
        """If the key of a wrapped key is unknown, the error names that key's id."""
        wrapped = new(1).wrap(_DATA_KEY, b"run")
        assert wrapped.key_id != new(0).wrap(_DATA_KEY, b"run").key_id
        with pytest.raises(StateError, match=wrapped.key_id):
            new(0).unwrap(wrapped, b"run")

    def test_the_id_of_another_key_is_refused(self, new: Callable[..., KeyProvider]) -> None:
        """A wrapped key whose key id was changed is rejected."""
        both = new(0, 1)
        wrapped = both.wrap(_DATA_KEY, b"run")
        with pytest.raises(StateError):
            both.unwrap(WrappedKey(new(1).wrap(_DATA_KEY, b"run").key_id, wrapped.data), b"run")

    def test_a_rotated_key_still_reads(self, new: Callable[..., KeyProvider]) -> None:
        """After a change of the key, old data keys can be unwrapped, and new data keys are wrapped by the new key."""
        old, rotated = new(0).wrap(_DATA_KEY, b"run"), new(1, 0)
        assert rotated.unwrap(old, b"run") == _DATA_KEY
        assert new(1).unwrap(rotated.wrap(_DATA_KEY, b"run"), b"run") == _DATA_KEY

    def test_no_key_is_shown(self, new: Callable[..., KeyProvider]) -> None:
        """The texts of a provider, of a wrapped key and of an error contain no bytes of a data key."""
        provider = new(0)
        wrapped = provider.wrap(_DATA_KEY, b"run")
        with pytest.raises(StateError) as refused:
            provider.unwrap(wrapped, b"other")
        said = f"{provider!r} {wrapped!r} {refused.value!r}"
        assert [form for form in (repr(_DATA_KEY)[2:-1], _DATA_KEY.hex()) if form in said] == []

    def test_several_threads_at_once(self, provider: KeyProvider) -> None:
        """Threads that wrap and unwrap at the same time each get their own keys back."""
        keys = [bytes([number]) * 32 for number in range(200)]
        with ThreadPoolExecutor(8) as pool:
            back = pool.map(lambda key: provider.unwrap(provider.wrap(key, key), key), keys)
        assert list(back) == keys
