"""A host program with parts of its own, which trains in an event loop and in a thread.

python FILE [key.path=value ...]. Tests check its types, and start it beside packages of the host's own.
"""

# ruff: noqa: T201  it is a program

import asyncio
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import final

from holdfast import AsyncRun, Overrides, Run, TrainSettings, build, build_async, load_settings
from holdfast.domain.commands import Evaluate, SaveCheckpoint
from holdfast.domain.errors import TrainingError
from holdfast.domain.events import CheckpointSaved, Event, PreparationProgressed, RunFailed, StepCompleted
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.forwarding.data_source import ForwardingDataSource
from holdfast.ports.forwarding.state_store import ForwardingStateStore
from holdfast.ports.forwarding.tokenizer import ForwardingTokenizer
from holdfast.ports.monitor import EndState, NoteKind, RunDescription, Tracker
from holdfast.ports.state_store import CheckpointInfo, Snapshot, StateStore
from holdfast.ports.tokenizer import Encoded


@final
class ToldStore(ForwardingStateStore):
    def __init__(self, inner: StateStore, tell: Callable[[str], object]) -> None:
        super().__init__(inner)
        self._tell = tell

    def save(self, snapshot: Snapshot) -> CheckpointInfo:
        info = self.inner.save(snapshot)
        self._tell(f"stored step {info.progress.step}")
        return info


@final
class CountingTokenizer(ForwardingTokenizer):
    num_documents = 0

    def encode(self, documents: Sequence[str]) -> Encoded:
        self.num_documents += len(documents)
        return self.inner.encode(documents)


@final
class HostTracker(Tracker):
    def __init__(self) -> None:
        self.name = ""
        self.losses: dict[int, float] = {}
        self.texts: list[str] = []
        self.end: EndState | None = None

    def begin(self, run: RunDescription) -> None:
        self.name = run.name

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        if (loss := metrics.get("loss")) is not None:
            self.losses[step] = loss

    def note(self, step: int, kind: NoteKind, text: str) -> None:
        self.texts.append(f"{step} {kind} {text}")

    def rewind(self, step: int) -> None:
        self.losses = {known: loss for known, loss in self.losses.items() if 0 < known <= step}

    def flush(self) -> None:
        pass

    def finish(self, state: EndState) -> None:
        self.end = state

    def close(self) -> None:
        pass


def parts_of(tracker: HostTracker) -> Overrides:
    return {
        "data_source": ForwardingDataSource,
        "tokenizer": CountingTokenizer,
        "state_store": lambda inner: ToldStore(inner, print),
        "added_monitors": [tracker],
    }


async def follow(run: AsyncRun) -> list[str]:
    told: list[str] = []
    async for event in run.events(PreparationProgressed, StepCompleted, CheckpointSaved):
        match event:
            case PreparationProgressed():
                told.append(f"{event.phase}: {event.activity}")
            case StepCompleted():
                told.append(f"step {event.progress.step}, loss {event.outcome.loss:.3f}")
            case CheckpointSaved():
                told.append(event.location)
    return told


async def count(run: AsyncRun) -> int:
    kinds: set[type[Event]] = set()
    async for event in run.events():
        kinds.add(type(event))
    return len(kinds)


async def train(settings: TrainSettings) -> Progress:
    tracker = HostTracker()
    run = build_async(settings, **parts_of(tracker))
    run.on_metrics(lambda step, metrics: print("metrics", step, len(metrics)) if step == 1 else None)
    following = asyncio.gather(follow(run), count(run))
    progress = await asyncio.wait_for(run.run_async(), timeout=600)
    told, num_kinds = await following
    print(
        f"{tracker.name}: {tracker.end}, {len(tracker.losses)} losses, {len(told)} lines, {num_kinds} kinds of events"
    )
    return progress


def train_in_thread(settings: TrainSettings) -> tuple[Run, list[str]]:
    run = build(settings, monitors=[HostTracker()], report=lambda line: None)
    problems: list[str] = []

    def on_step(event: StepCompleted) -> None:
        run.request(Evaluate())
        run.request(SaveCheckpoint())
        run.request_stop(f"enough after step {event.progress.step}")

    def work() -> None:
        try:
            run.run()
        except TrainingError as error:
            problems.append(str(error))

    run.subscribe(StepCompleted, on_step)
    run.subscribe(RunFailed, lambda event: problems.append(f"{event.error}, more in {run.post_mortem}"))
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return run, problems


def main(*words: str) -> None:
    settings = load_settings([], words, {}).settings
    folder = settings.run.directory
    print("finished", asyncio.run(train(settings)).step, "steps")
    second = load_settings([], [*words, f"run.dir={folder}-in-thread"], {}).settings
    run, problems = train_in_thread(second)
    print("stopped:", None if run.stopped_by is None else run.stopped_by.reason, run.newest_checkpoint(), problems)
    failing = load_settings(
        [], [*words, f"run.dir={folder}-failing", "data.kind=files", "data.path=nowhere"], {}
    ).settings
    print("failed:", train_in_thread(failing)[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
