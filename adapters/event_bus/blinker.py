"""An event bus on blinker's signals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, final

from blinker import Signal
from typing_extensions import override

from holdfast.domain.events import HandlerFailed
from holdfast.ports.event_bus import E, EventBus

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from holdfast.domain.events import Event


class _InOrder(dict["Hashable", None]):
    """The methods of a set that a signal uses, in the order of insertion; a plain set has no order."""

    def add(self, item: Hashable) -> None:
        self[item] = None

    def discard(self, item: Hashable) -> None:
        self.pop(item, None)


class _OrderedSignal(Signal):
    set_class = cast("type[set[Any]]", _InOrder)


@final
class BlinkerEventBus(EventBus):
    """Delivers through its own signal for each class of events, and holds strong references to handlers.

    Other buses do not deliver to its handlers. An event that a handler publishes is delivered before ``publish``
    returns to it.
    """

    def __init__(self) -> None:
        self._kinds: dict[Callable[[Any], None], type[Event]] = {}
        self._signals: dict[type[Event], Signal] = {}

    @override
    def subscribe(self, kind: type[E], handler: Callable[[E], object]) -> Callable[[], None]:
        def receive(event: E) -> None:
            self._deliver(event, handler)

        def unsubscribe() -> None:
            self._kinds.pop(receive, None)
            for signal in self._signals.values():
                signal.disconnect(receive)

        self._kinds[receive] = kind
        for published, signal in self._signals.items():
            if issubclass(published, kind):
                signal.connect(receive, weak=False)
        return unsubscribe

    @override
    def publish(self, event: Event) -> None:
        signal = self._signals.get(type(event))
        if signal is None:
            signal = self._signals[type(event)] = self._signal_of(type(event))
        signal.send(event)

    def _signal_of(self, published: type[Event]) -> Signal:
        signal = _OrderedSignal()
        for receive, kind in self._kinds.items():
            if issubclass(published, kind):
                signal.connect(receive, weak=False)
        return signal

    def _deliver(self, event: E, handler: Callable[[E], object]) -> None:
        try:
            handler(event)
        except Exception as error:  # noqa: BLE001 no exception of a handler may reach the publisher
            if not isinstance(event, HandlerFailed):
                name = getattr(handler, "__qualname__", type(handler).__qualname__)
                self.publish(HandlerFailed(type(event).__name__, name, error))
