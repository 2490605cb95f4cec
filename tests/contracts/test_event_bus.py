"""Every event bus keeps the port's promises."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from holdfast.adapters.event_bus.blinker import BlinkerEventBus
from holdfast.adapters.event_bus.memory import MemoryEventBus
from holdfast.domain.events import HandlerFailed
from holdfast.ports.testing.event_bus import EventBusContract, Failing, Happened


class TestBlinkerEventBus(EventBusContract):
    def make_bus(self):
        return BlinkerEventBus()


class TestMemoryEventBus(EventBusContract):
    def make_bus(self):
        return MemoryEventBus()

    def test_published_tells_what_happened(self, bus):
        """``published`` holds each event, heard or not, and each failure after the event that it belongs to."""
        error = ValueError("broken")
        bus.publish(Happened(1))
        bus.subscribe(Happened, Failing(error))
        bus.publish(Happened(2))
        assert bus.published == [Happened(1), Happened(2), HandlerFailed("Happened", "Failing", error)]


def test_a_broken_promise_shows_the_values():
    """An adapter of another package whose contract test fails reads which values differ, not only where."""
    with pytest.raises(AssertionError, match=r"assert \[\] == \[Happened"):
        TestMemoryEventBus().test_a_handler_receives_its_events(Mock(), [])
