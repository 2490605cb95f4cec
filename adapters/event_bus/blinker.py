"""Events through blinker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, final

from blinker import Signal
from typing_extensions import override

from domain.events import HandlerFailed
from ports.event_bus import E, EventBus

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from domain.events import Event


class _InOrder(dict["Hashable", None]):
    """The part of a set that a signal uses, in the order of insertion; a plain set would deliver in any order."""

    def add(self, item: Hashable) -> None:
        self[item] = None

    def discard(self, item: Hashable) -> None:
        self.pop(item, None)


class _OrderedSignal(Signal):
    set_class = cast("type[set[Any]]", _InOrder)


@final
class BlinkerEventBus(EventBus):
    """Delivers through a signal of its own, which holds handlers strongly and no other bus can reach.

    A handler that publishes gets its event delivered before its own call returns.
    """

    def __init__(self) -> None:
        self._signal = _OrderedSignal()

    @override
    def subscribe(self, kind: type[E], handler: Callable[[E], object]) -> Callable[[], None]:
        def receive(event: Event) -> None:
            if isinstance(event, kind):
                self._deliver(event, handler)

        self._signal.connect(receive, weak=False)
        return lambda: self._signal.disconnect(receive)

    @override
    def publish(self, event: Event) -> None:
        self._signal.send(event)

    def _deliver(self, event: E, handler: Callable[[E], object]) -> None:
        try:
            handler(event)
        except Exception as error:  # noqa: BLE001  whatever a handler raises must not reach the publisher
            if not isinstance(event, HandlerFailed):
                name = getattr(handler, "__qualname__", type(handler).__qualname__)
                self.publish(HandlerFailed(type(event).__name__, name, error))
