"""An event bus that records events in a list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from typing_extensions import override

from holdfast.domain.events import HandlerFailed
from holdfast.ports.event_bus import E, EventBus

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.domain.events import Event


@final
class MemoryEventBus(EventBus):
    """Stores each event in ``published``, failures of handlers included, for tests and for hosts that read them.

    If a handler publishes an event, that event is delivered before the handler continues.
    """

    def __init__(self) -> None:
        self.published: list[Event] = []
        self._subscriptions: dict[object, tuple[type[Event], Callable[[Any], object]]] = {}

    @override
    def subscribe(self, kind: type[E], handler: Callable[[E], object]) -> Callable[[], None]:
        subscription = object()
        self._subscriptions[subscription] = (kind, handler)

        def unsubscribe() -> None:
            self._subscriptions.pop(subscription, None)

        return unsubscribe

    @override
    def publish(self, event: Event) -> None:
        self.published.append(event)
        for subscription, (kind, handler) in tuple(self._subscriptions.items()):
            if isinstance(event, kind) and subscription in self._subscriptions:
                self._deliver(event, handler)

    def _deliver(self, event: Event, handler: Callable[[Any], object]) -> None:
        try:
            handler(event)
        except Exception as error:  # noqa: BLE001 no exception of a handler may reach the publisher
            if not isinstance(event, HandlerFailed):
                name = getattr(handler, "__qualname__", type(handler).__qualname__)
                self.publish(HandlerFailed(type(event).__name__, name, error))
