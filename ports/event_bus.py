"""The port for the delivery of events to their handlers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.domain.events import Event

E = TypeVar("E", bound=Event)
Subscription = tuple[type[Event], Callable[[Any], object]]
"""A class of events, and a handler that gets those of it and of its subclasses."""


class EventBus(ABC):
    """Delivers events to handlers, in the publisher's thread, before ``publish`` returns.

    - Handlers run in the order of their subscription.
    - A handler of an event class receives its subclasses too.
    - A failing handler stops neither the next handler nor the publisher: the failure is published as ``HandlerFailed``
      (failures of handlers of ``HandlerFailed`` itself are ignored, to avoid an endless loop).
    - Handlers are held by strong references: lambdas and bound methods live as long as the bus.
    - Different buses do not affect each other.
    - ``subscribe`` returns a function that ends the subscription; calling it twice is harmless.
    - Only an ``Exception`` counts as a failure: ``KeyboardInterrupt`` and ``SystemExit`` reach the publisher.
    """

    @abstractmethod
    def subscribe(self, kind: type[E], handler: Callable[[E], object]) -> Callable[[], None]:
        """Call ``handler`` with each event of ``kind`` from now on; return a function that ends the subscription."""

    @abstractmethod
    def publish(self, event: Event) -> None:
        """Deliver ``event``."""
