"""The contract of ``EventBus``."""

from __future__ import annotations

import gc
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pytest

from holdfast.domain.events import Event, HandlerFailed

if TYPE_CHECKING:
    from holdfast.ports.event_bus import EventBus


@dataclass(frozen=True, slots=True)
class Happened(Event):
    """An event class of this suite."""

    number: int = 0


@dataclass(frozen=True, slots=True)
class HappenedAgain(Happened):
    """A subclass of ``Happened``."""


@dataclass(frozen=True, slots=True)
class Unrelated(Event):
    """An event class that is not related to ``Happened``."""


class Listener:
    """Stores the events that it receives in a list that stays alive after the listener is deleted."""

    def __init__(self, heard: list[Event]) -> None:
        self._heard = heard

    def hear(self, event: Event) -> None:
        """Append ``event`` to the list."""
        self._heard.append(event)


class Failing:
    """A handler that always raises."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __call__(self, _event: Event) -> None:
        """Raise an error."""
        raise self._error

    def fail(self, _event: Event) -> None:
        """Raise the error; tests subscribe this bound method as a handler."""
        raise self._error


def _note(order: list[int], number: int, _event: Event) -> None:
    order.append(number)


class EventBusContract(ABC):
    """The contract of every ``EventBus``; derive a class named ``Test...`` for an adapter."""

    @abstractmethod
    def make_bus(self) -> EventBus:
        """Return a bus without subscriptions."""

    @pytest.fixture
    def bus(self) -> EventBus:
        """Return a bus without subscriptions."""
        return self.make_bus()

    @pytest.fixture
    def heard(self) -> list[Event]:
        """Return the list that the listeners of a test fill."""
        return []

    def test_a_handler_receives_its_events(self, bus: EventBus, heard: list[Event]) -> None:
        """A handler receives the events of its class, unchanged, and no other events."""
        bus.subscribe(Happened, heard.append)
        event = Happened(1)
        bus.publish(event)
        bus.publish(Unrelated())
        assert heard == [event]
        assert heard[0] is event

    def test_nobody_has_to_listen(self, bus: EventBus, heard: list[Event]) -> None:
        """Events from before the subscription are not delivered later."""
        bus.publish(Happened(1))
        bus.subscribe(Happened, heard.append)
        bus.publish(Happened(2))
        assert heard == [Happened(2)]

    def test_delivery_is_done_when_publish_returns(self, bus: EventBus) -> None:
        """Handlers run in the publisher's thread, before ``publish`` returns."""
        threads: list[int] = []
        bus.subscribe(Happened, lambda _: threads.append(threading.get_ident()))
        bus.publish(Happened())
        assert threads == [threading.get_ident()]

    def test_order_of_subscription(self, bus: EventBus) -> None:
        """Twenty handlers run in the order in which they subscribed, every time."""
        order: list[int] = []
        for number in range(20):
            bus.subscribe(Happened, partial(_note, order, number))
        bus.publish(Happened())
        bus.publish(Happened())
        assert order == [*range(20), *range(20)]

    def test_order_across_classes(self, bus: EventBus) -> None:
        """Handlers of a class and handlers of its base class run in the order of their subscription."""
        order: list[int] = []
        for number, kind in enumerate([Event, HappenedAgain, Happened, HappenedAgain, Event, Happened]):
            bus.subscribe(kind, partial(_note, order, number))
        bus.publish(HappenedAgain())
        assert order == [0, 1, 2, 3, 4, 5]

    def test_order_after_an_unsubscription(self, bus: EventBus) -> None:
        """A handler that unsubscribes and subscribes again runs last; the order of the others does not change."""
        order: list[str] = []
        leave = bus.subscribe(Happened, lambda _: order.append("first"))
        bus.subscribe(Happened, lambda _: order.append("second"))
        leave()
        bus.subscribe(Happened, lambda _: order.append("first again"))
        bus.publish(Happened())
        assert order == ["second", "first again"]

    def test_subclasses_reach_subscribers_of_the_base(self, bus: EventBus, heard: list[Event]) -> None:
        """A handler of a class receives events of its subclasses; a handler of a subclass receives no base events."""
        special: list[Event] = []
        bus.subscribe(Happened, heard.append)
        bus.subscribe(HappenedAgain, special.append)
        bus.publish(HappenedAgain(1))
        bus.publish(Happened(2))
        assert heard == [HappenedAgain(1), Happened(2)]
        assert special == [HappenedAgain(1)]

    def test_a_failing_handler_does_not_stop_the_next(self, bus: EventBus, heard: list[Event]) -> None:
        """An exception of a handler reaches neither the handlers after it nor the publisher."""
        bus.subscribe(Happened, Failing(ValueError("broken")))
        bus.subscribe(Happened, heard.append)
        bus.publish(Happened(1))
        assert heard == [Happened(1)]

    def test_a_failure_is_published(self, bus: EventBus) -> None:
        """``HandlerFailed`` names the event, the handler and the error itself."""
        failures: list[HandlerFailed] = []
        error = ValueError("broken")
        bus.subscribe(HandlerFailed, failures.append)
        bus.subscribe(Happened, Failing(error))
        bus.publish(Happened())
        assert failures == [HandlerFailed("Happened", "Failing", error)]

    def test_a_method_is_named_with_its_class(self, bus: EventBus) -> None:
        """The name of a method in ``HandlerFailed`` includes its class, so that a user finds the code."""
        failures: list[HandlerFailed] = []
        bus.subscribe(HandlerFailed, failures.append)
        bus.subscribe(Happened, Failing(ValueError("broken")).fail)
        bus.publish(Happened())
        assert [failure.handler for failure in failures] == ["Failing.fail"]

    def test_a_failing_handler_of_failures_is_dropped(self, bus: EventBus, heard: list[Event]) -> None:
        """A failing handler of ``HandlerFailed`` does not receive its own failure, and the next handler still runs."""
        bus.subscribe(HandlerFailed, Failing(RuntimeError("the reporter is broken too")))
        bus.subscribe(HandlerFailed, heard.append)
        error = ValueError("broken")
        bus.subscribe(Happened, Failing(error))
        bus.publish(Happened())
        assert heard == [HandlerFailed("Happened", "Failing", error)]

    def test_a_failing_handler_of_everything_ends_somewhere(self, bus: EventBus, heard: list[Event]) -> None:
        """If a handler of all events always fails, one failure is reported for each event."""
        bus.subscribe(Event, Failing(ValueError("broken")))
        bus.subscribe(HandlerFailed, heard.append)
        bus.publish(Happened())
        bus.publish(Unrelated())
        assert [failure.event for failure in heard if isinstance(failure, HandlerFailed)] == ["Happened", "Unrelated"]

    def test_handlers_survive_garbage_collection(self, bus: EventBus, heard: list[Event]) -> None:
        """Lambdas, bound methods and callable objects without other references live as long as the bus."""
        bus.subscribe(Happened, lambda event: heard.append(event))  # noqa: PLW0108  a lambda is the point
        bus.subscribe(Happened, Listener(heard).hear)
        bus.subscribe(Happened, Failing(ValueError("broken")))
        bus.subscribe(HandlerFailed, Listener(heard).hear)
        gc.collect()
        bus.publish(Happened(1))
        assert [type(event) for event in heard] == [Happened, Happened, HandlerFailed]

    def test_two_buses_are_strangers(self, bus: EventBus, heard: list[Event]) -> None:
        """Events that are published on one bus are not delivered to handlers of another bus."""
        other = self.make_bus()
        bus.subscribe(Happened, heard.append)
        other.publish(Happened(1))
        bus.publish(Happened(2))
        assert heard == [Happened(2)]

    def test_a_subscription_ends(self, bus: EventBus, heard: list[Event]) -> None:
        """The function that ``subscribe`` returned ends only its own subscription, and calling it twice is harmless."""
        end = bus.subscribe(Happened, heard.append)
        bus.subscribe(Happened, heard.append)
        end()
        end()
        bus.publish(Happened(1))
        assert heard == [Happened(1)]

    def test_a_subscription_that_ends_while_delivering(self, bus: EventBus, heard: list[Event]) -> None:
        """A handler that an earlier handler unsubscribes is not called any more; the other handlers still are."""
        bus.subscribe(Happened, lambda _: end())
        end = bus.subscribe(Happened, lambda _: heard.append(Unrelated()))
        bus.subscribe(Happened, heard.append)
        bus.publish(Happened(1))
        assert heard == [Happened(1)]

    def test_a_subscription_that_starts_while_delivering(self, bus: EventBus, heard: list[Event]) -> None:
        """A handler that another handler subscribes receives the next event, but not the event in delivery."""
        starts = [lambda: bus.subscribe(Happened, heard.append)]
        bus.subscribe(Happened, lambda _: starts.pop()() if starts else None)
        bus.publish(Happened(1))
        bus.publish(Happened(2))
        assert heard == [Happened(2)]

    def test_a_handler_may_publish(self, bus: EventBus, heard: list[Event]) -> None:
        """An event that a handler publishes is delivered before that handler's call returns."""
        bus.subscribe(Happened, lambda event: bus.publish(Unrelated()) if event.number else None)
        bus.subscribe(Event, heard.append)
        bus.publish(Happened(1))
        assert heard == [Unrelated(), Happened(1)]

    @pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
    def test_interruptions_pass_through(
        self, bus: EventBus, heard: list[Event], interruption: type[BaseException]
    ) -> None:
        """An interruption is no failure: it reaches the publisher, and no ``HandlerFailed`` is published."""
        bus.subscribe(HandlerFailed, heard.append)
        bus.subscribe(Happened, Failing(interruption()))
        with pytest.raises(interruption):
            bus.publish(Happened())
        assert heard == []
