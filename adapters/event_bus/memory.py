"""An event bus that records events in a list."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.adapters.event_bus.blinker import BlinkerEventBus
from holdfast.domain.events import Event
from holdfast.ports.event_bus import E, EventBus

if TYPE_CHECKING:
    from collections.abc import Callable


@final
class MemoryEventBus(EventBus):
    """Stores each event in ``published``, failures of handlers included, for tests and for hosts that read them."""

    def __init__(self) -> None:
        self.published: list[Event] = []
        self._bus = BlinkerEventBus()
        self._bus.subscribe(Event, self.published.append)

    @override
    def subscribe(self, kind: type[E], handler: Callable[[E], object]) -> Callable[[], None]:
        return self._bus.subscribe(kind, handler)

    @override
    def publish(self, event: Event) -> None:
        self._bus.publish(event)
