"""The work of a run before its first step, in phases that are published and that a request to stop ends."""

from __future__ import annotations

import json
import time
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from threading import get_ident
from typing import TYPE_CHECKING, TypeVar, final

from holdfast.application.data.prefetch import Prefetch
from holdfast.domain.commands import from_json, to_json
from holdfast.domain.events import PreparationEnded, PreparationProgressed, PreparationStarted
from holdfast.domain.phase import Amount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.application.inbox import Inbox
    from holdfast.domain.events import Event
    from holdfast.domain.phase import PreparationPhase
    from holdfast.ports.process_group import ProcessGroup

    InTurns = Callable[[Callable[[], object], Callable[[], object]], object]

T = TypeVar("T")

_SECONDS_BETWEEN_EVENTS = 1.0


class PreparationStopped(Exception):
    """The run is to stop, and its preparation has not ended."""


@final
class Preparation:
    """Publishes the phases of a run before its first step, and ends them if ``inbox`` holds a request to stop.

    From ``begin`` to ``end`` the methods raise ``PreparationStopped`` then. In a run of one rank, work is done in a
    thread of its own, so that a call of a library that hangs or takes long can be abandoned. Several ranks end
    together, at the next point at which all of them meet. ``publish`` delivers events, all of them in the thread that
    called ``begin``.
    """

    def __init__(
        self, inbox: Inbox, publish: Callable[[Event], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._inbox = inbox
        self._publish = publish
        self._clock = clock
        self._group: ProcessGroup | None = None
        self._thread = 0
        self._has_turn = self._is_left = False
        self._phase: PreparationPhase | None = None
        self._began = self._next = 0.0
        self._shown: tuple[str, float | Amount | None] = ("", None)
        self._published = ""
        self._exclusive: Future[None] | None = None

    def begin(self, group: ProcessGroup) -> None:
        """Begin the preparation of the ranks of ``group`` in this thread."""
        self._group, self._thread = group, get_ident()

    def end(self) -> None:
        """Look a last time, as ``agree`` does; later requests to stop are those of the loop."""
        self.agree()
        self._group = None

    @contextmanager
    def phase(self, phase: PreparationPhase) -> Iterator[None]:
        """Publish the beginning and the end of ``phase``, the block; all ranks enter and leave it together."""
        self.agree()
        self._began, self._shown, self._published = self._clock(), ("", None), ""
        self._phase, self._next = phase, self._began + _SECONDS_BETWEEN_EVENTS
        self._publish(PreparationStarted(phase))
        try:
            yield
            self.agree()
        finally:
            self._phase = None
        self._publish(PreparationEnded(phase, self._clock() - self._began))

    def show(self, activity: str, part: float | Amount | None = None, /) -> None:
        """Note the current activity, from any thread, and look; this method is a ``ShowPhase``."""
        self._shown = (activity, part)
        self.look()

    def look(self) -> None:
        """Publish the progress if it is time, and look for a request to stop; any thread may call this at any time."""
        group = self._group
        if group is None:
            return
        if self._is_left or (self._inbox.stop_requested and (self._has_turn or group.size == 1)):
            raise PreparationStopped
        if self._phase is not None and get_ident() == self._thread:
            self._publish_progress(self._phase)

    def agree(self) -> None:
        """Look for a request to stop on any rank; all ranks call this together."""
        if self._share():
            raise PreparationStopped
        if self._phase is not None:
            self._publish_progress(self._phase)

    def awaited(self, work: Callable[[], T], *, is_exclusive: bool = False) -> T:
        """Return the result of ``work``, for which a single rank does not wait if it is to stop.

        If ``work`` is exclusive, ``when_free`` waits for its end although it was abandoned.
        """
        if self._group is None or self._group.size > 1:
            return work()
        has_ended: Future[None] = Future()
        self._exclusive = has_ended if is_exclusive else self._exclusive

        def in_context() -> T:
            try:
                return context.run(work)
            finally:
                has_ended.set_result(None)

        context = copy_context()
        apart = Prefetch((in_context() for _ in range(1)), depth=1)
        try:
            made = apart.next_unless(self._has_looked)
        except BaseException:  # an interrupt too: what is left behind is to end
            self._is_left = True
            raise
        finally:
            apart.close(is_urgent=True)
        self.look()  # what was shown last
        return made

    def in_turns(self, in_turns: InTurns, work: Callable[[], T]) -> T:
        """Return the result of ``work``, which ``in_turns`` calls on one rank after the other.

        ``in_turns`` gets a call to make and what is called between two ranks in place of a barrier.
        """
        made: list[T] = []

        def turn() -> None:
            self._has_turn = True
            with suppress(PreparationStopped):  # the other ranks wait for this one
                self.look()
                made.append(self.awaited(work))
            self._has_turn = False

        in_turns(turn, self._share)
        self.agree()
        return made[0]

    def when_free(self, call: Callable[[], object]) -> None:
        """Make ``call`` once no exclusive work that was abandoned goes on, now if there is none."""
        if self._exclusive is None:
            call()
        else:
            self._exclusive.add_done_callback(lambda _: call())

    def _has_looked(self) -> bool:
        self.look()
        return False

    def _share(self) -> bool:
        """Let all ranks have the request of any; return whether there is one. All ranks call this together."""
        if self._group is None:
            return False
        own = self._inbox.first_stop
        told = self._group.gather("" if own is None else json.dumps(to_json(own)))
        if own is None and any(told):
            self._inbox.post(from_json(json.loads(next(filter(None, told)))))
        return any(told)

    def _publish_progress(self, phase: PreparationPhase) -> None:
        now, (activity, part) = self._clock(), self._shown
        if now < self._next and activity == self._published:
            return
        self._next, self._published = now + _SECONDS_BETWEEN_EVENTS, activity
        amount = part if isinstance(part, Amount) else Amount(part, 1.0, "") if part is not None else None
        done = () if amount is None else (amount.done, amount.total, amount.unit)
        self._publish(PreparationProgressed(phase, activity, now - self._began, *done))


def is_stop(error: BaseException | None) -> bool:
    """Return whether ``error``, or one that it was raised for, is that the run is to stop."""
    while error is not None and not isinstance(error, PreparationStopped):
        error = error.__cause__ or error.__context__
    return error is not None
