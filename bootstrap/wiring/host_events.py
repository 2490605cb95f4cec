"""The delivery of events to the handlers of a host program before and after those of the loop exist."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, final

from holdfast.adapters.event_bus.memory import MemoryEventBus
from holdfast.bootstrap.wiring.subscriptions import connect
from holdfast.domain.events import RunFailed

if TYPE_CHECKING:
    from holdfast.bootstrap.wiring.subscriptions import Subscription
    from holdfast.domain.events import Event
    from holdfast.ports.event_bus import EventBus


@final
class HostEvents:
    """Delivers events to ``subscriptions`` from ``begin`` to ``hand_over``, and once more by ``publish_alone``.

    In between ``subscribe_all`` subscribes them behind the handlers of the loop. ``has_failed`` tells whether a
    ``RunFailed`` has been published.
    """

    def __init__(self) -> None:
        self.subscriptions: list[Subscription] = []
        self.has_failed = False
        self.bus: EventBus = MemoryEventBus()  # of a run that fails before there is another
        self._connected = ExitStack()

    def begin(self, bus: EventBus, stack: ExitStack) -> None:
        """Deliver the events of ``bus``, at most until ``stack`` ends."""
        self.bus = bus
        stack.callback(bus.subscribe(RunFailed, self._note))
        connect(bus, self.subscriptions, stack.enter_context(self._connected))

    def hand_over(self) -> None:
        """Deliver no more events, as the handlers are to be subscribed elsewhere."""
        self._connected.close()

    def publish(self, event: Event) -> None:
        """Publish ``event`` on the bus."""
        self.bus.publish(event)

    def publish_alone(self, event: Event) -> None:
        """Publish ``event`` after the run, to the host's handlers and to those that subscribed to the bus itself."""
        with ExitStack() as stack:
            connect(self.bus, self.subscriptions, stack)
            self.bus.publish(event)

    def _note(self, _: RunFailed) -> None:
        self.has_failed = True
