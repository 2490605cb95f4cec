"""How facts reach those who handle them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.domain.events import Event

E = TypeVar("E", bound="Event")


class EventBus(ABC):
    """Delivers events to handlers, in the publisher's thread, before ``publish`` returns.

    - Handlers run in the order of their subscription.
    - A handler of a class receives its subclasses too.
    - A failing handler does not stop the next, nor the publisher: the failure is published as ``HandlerFailed`` (a
      failing handler of ``HandlerFailed`` is dropped silently, to end somewhere).
    - Lambdas and bound methods live as long as the bus: no weak references.
    - Two buses are strangers.
    - ``subscribe`` returns a function that ends the subscription; calling it twice is harmless.
    - Only ``Exception`` is isolated: ``KeyboardInterrupt`` and ``SystemExit`` pass through.
    """

    @abstractmethod
    def subscribe(self, kind: type[E], handler: Callable[[E], object]) -> Callable[[], None]:
        """Call ``handler`` with each event of ``kind`` from now on."""

    @abstractmethod
    def publish(self, event: Event) -> None:
        """Deliver ``event``."""
