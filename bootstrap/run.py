"""One training run, for the command line and for hosts that embed it."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, TypeVar, final

from dependency_injector import providers

from adapters.shared.json_lines import JsonLines
from application.generate import generate
from application.handlers.record_metrics import RecordMetrics
from application.inbox import Inbox
from application.rejections import Rejections
from bootstrap.assemble import PORTS, assemble
from bootstrap.compiling import compile_model
from bootstrap.hardware import torch_state
from bootstrap.monitors import build_monitors
from bootstrap.ranks import SharedRunFolder, in_turns
from bootstrap.reactions import reactions, subscribe_outside_handlers
from configs.masking import mask, mask_text
from configs.rendering import dump_settings
from domain.budget import Budget
from domain.commands import StopRun
from domain.errors import ConfigurationError
from domain.events import Event

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from application.handlers.watch_compilation import Compilations
    from application.train import TrainRun
    from bootstrap.container import Container
    from configs.settings import TrainSettings
    from domain.progress import Progress
    from domain.sampling import Sampling
    from ports.monitor import Monitor

E = TypeVar("E", bound=Event)

# torch's random state and Accelerate's device state belong to the process: one run at a time.
_TRAINING = threading.Lock()


def build(settings: TrainSettings, *, say: Callable[[str], object] | None = None, **overrides: Any) -> Run:
    """Return a run of ``settings`` that has not begun; nothing heavy is imported yet.

    ``overrides`` replace parts by the container's names: ``data_source``, ``tokenizer``, ``model_factory``,
    ``optimizer``, ``state_store``, ``event_bus``, ``process_group`` or ``monitors`` (a list).
    ``say`` gets lines for a person; without it they go to the console monitor, if there is one.
    """
    if strange := sorted(overrides.keys() - {*PORTS, "monitors"}):
        msg = f"nothing in a run is called {strange[0]}: replace one of {', '.join(PORTS)} or monitors"
        raise ConfigurationError(msg)
    return Run(settings, overrides, say=say)


@final
class Run:
    """A run that a host starts, watches and stops; usable from any thread, and installs no signal handler.

    ``stopped_by`` is the command that ended it before its budget did, if one did.
    """

    def __init__(
        self, settings: TrainSettings, overrides: dict[str, Any], *, say: Callable[[str], object] | None = None
    ) -> None:
        self.settings = settings
        self.stopped_by: StopRun | None = None
        self._overrides = overrides
        self._say = say
        self._subscriptions: list[tuple[type[Event], Callable[[Any], object]]] = []
        self._container: Container | None = None
        self._inbox = Inbox()
        self._is_training = False
        self._show: Callable[[str], object] = lambda _: None

    @property
    def directory(self) -> Path:
        """Return the run folder."""
        return self.settings.run.directory

    def subscribe(self, kind: type[E], handler: Callable[[E], object]) -> None:
        """Call ``handler`` with each event of ``kind``, in the thread that trains; to be called before ``run``."""
        self._subscriptions.append((kind, handler))

    def request_stop(self, reason: str, signal: int | None = None) -> bool:
        """Ask the run to save and stop at the next step boundary; from any thread or a signal handler.

        Returns whether the loop is there to obey; before that the wish is kept for it.
        """
        self._inbox.post(StopRun(reason, signal))
        return self._is_training

    def run(self) -> Progress:
        """Train from the newest valid checkpoint to the end; return how far the run has come.

        Raises ``ConfigurationError``, ``DataError``, ``StateError`` or another ``TrainingError``; what was complete is
        durable then. A second run in this process at the same time is refused.
        """
        if self._container is not None:
            msg = "this run has been run: build another one, which goes on from its newest checkpoint"
            raise ConfigurationError(msg)
        if not _TRAINING.acquire(blocking=False):
            msg = "another run is training in this process: wait for it, or start this one in a process of its own"
            raise ConfigurationError(msg)
        with ExitStack() as stack:
            stack.callback(_TRAINING.release)
            train_run = self._assemble(stack)
            self._is_training = True
            try:
                return train_run.run()
            finally:
                self._is_training = False
                self.stopped_by = train_run.stopped_by

    def sample(self, prompt: str, sampling: Sampling) -> str:
        """Return ``prompt`` continued by the model as it is after ``run``."""
        assert self._container is not None, "sample needs a run that has ended"
        return generate(self._container.trainable(), self._container.tokenizer(), prompt, sampling)

    def newest_checkpoint(self) -> str | None:
        """Return where the newest checkpoint lies after ``run``, None if there is none."""
        assert self._container is not None, "there is no checkpoint to name before a run has ended"
        stored = self._container.state_store().list()
        return stored[-1].location if stored else None

    def _assemble(self, stack: ExitStack) -> TrainRun:
        parts = {name: part for name, part in self._overrides.items() if name != "monitors"}
        container = self._container = assemble(
            self.settings,
            self.directory,
            {**parts, "inbox": self._inbox},
            say=self._tell,
            decide=lambda name, value, reason: folder.decide(name, value, reason),  # noqa: PLW0108  not open yet
        )
        group = container.process_group()
        stack.callback(group.close)
        folder = stack.enter_context(closing(SharedRunFolder(self.directory, group)))
        folder.begin(dump_settings(self.settings))
        monitors = self._open_monitors(stack, is_first=group.rank == 0)
        container.rejections.override(providers.Object(self._open_rejections(stack, group.rank)))
        container.chosen()  # decided together, so not within anybody's turn
        container.mode()
        self._check_identity(folder, container)
        stack.enter_context(torch_state(self.settings))
        in_turns(group, container.batch_stream)
        compilations = compile_model(container, stack, say=self._tell)
        record = stack.enter_context(closing(RecordMetrics(monitors, container.trainable(), compilations)))
        if group.rank == 0:  # commands come from there alone, and figures and events are the same on all ranks
            self._subscribe(container, record, stack, compilations)
        for kind, handler in self._subscriptions:
            stack.callback(container.event_bus().subscribe(kind, handler))
        train_run: TrainRun = container.train_run()
        folder.write()
        return train_run

    def _tell(self, line: str) -> None:
        self._show(mask_text(line))

    def _open_monitors(self, stack: ExitStack, *, is_first: bool) -> list[Monitor]:
        if not is_first:
            self._show = self._say or (lambda _: None)
            return []
        budget = Budget(self.settings.run.budget.steps, self.settings.run.budget.tokens)
        monitors, console = build_monitors(self._overrides, self.settings.monitors, self.directory, budget)
        self._show = self._say or console
        for monitor in monitors:
            stack.callback(_close, monitor, self._tell)
        return monitors

    def _open_rejections(self, stack: ExitStack, rank: int) -> Rejections:
        name = f"rejected.rank{rank}.jsonl" if rank else "rejected.jsonl"
        rejected = stack.enter_context(closing(JsonLines(self.directory / name)))
        return Rejections(
            self.settings.data.on_error, lambda record: rejected.append(mask(record)), known=rejected.read()
        )

    def _subscribe(
        self, container: Container, record: RecordMetrics, stack: ExitStack, compilations: Compilations | None
    ) -> None:
        bus = container.event_bus()
        events = stack.enter_context(closing(JsonLines(self.directory / "events.jsonl")))
        write, say = (lambda event: events.append(mask(event))), self._tell
        for kind, handler in reactions(container, record, write=write, say=say, compilations=compilations):
            stack.callback(bus.subscribe(kind, handler))  # ended with the run: a host's own bus may serve another one
        subscribe_outside_handlers(container)

    def _check_identity(self, folder: SharedRunFolder, container: Container) -> None:
        group = container.process_group()
        remedy = "put it back, or start another run with --fresh or another run.name"
        touched = f"a file has another name, size or time than then; {remedy}"
        folder.hold_to("data", container.data_fingerprint(), touched)
        transforms = json.dumps([transform.fingerprint() for transform in container.transforms()])
        folder.hold_to("list of transforms", transforms, f"one has another version or another Python; {remedy}")
        folder.hold_to("tokenizer", in_turns(group, container.tokenizer).fingerprint(), remedy)


def _close(monitor: Monitor, say: Callable[[str], object]) -> None:
    try:
        monitor.close()
    except Exception as error:  # noqa: BLE001  the run has ended, and how it ended is what its caller is to hear
        say(f"{type(monitor).__qualname__} failed to close: {type(error).__name__}: {error}")
