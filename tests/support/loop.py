"""A whole training run on in-memory adapters, and a trainable at which faults can be placed."""

from dataclasses import dataclass, field
from typing import final

import numpy as np
from typing_extensions import override

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.event_bus.memory import MemoryEventBus
from holdfast.adapters.model_factory.memory import MemoryModelFactory
from holdfast.adapters.optimizer.memory import MemoryOptimizer
from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.adapters.shared.tensor_state.file_parts import captured, unpacked
from holdfast.adapters.state_store.memory import MemoryStateStore
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.application.checkpointer import Checkpointer, MemoryTier
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.handlers.adapt_micro_batch import AdaptMicroBatch
from holdfast.application.handlers.evaluate_on_cadence import EvaluateOnCadence, StopWithoutImprovement
from holdfast.application.handlers.roll_back import ProtectRollBackTarget
from holdfast.application.handlers.save_checkpoints import SaveOnCadence, SaveOnFailure, SaveOnStop, SaveTimer
from holdfast.application.inbox import Inbox
from holdfast.application.training.command_executor import LoopParts
from holdfast.application.training.evaluator import Evaluator
from holdfast.application.training.generate import PromptSampler
from holdfast.application.training.loop import TrainRun
from holdfast.application.training.step_engine import DataRanks, StepEngine
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.data.holdout import Holdout
from holdfast.domain.events import (
    BatchSplit,
    CheckpointStarted,
    EvaluationCompleted,
    MemoryExhausted,
    RunFailed,
    RunStarted,
    StepCompleted,
    StopRequested,
)
from holdfast.domain.fault_tolerance.restart_policy import GracePeriod
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.cadence import Cadence
from holdfast.domain.training.early_stopping import EarlyStopping
from holdfast.domain.training.lr_schedule import Span, WarmupDecay, half_cosine
from holdfast.domain.training.micro_batch import MicroBatchPolicy, MicroBatchState
from holdfast.domain.training.parallel_mesh import ParallelMesh
from holdfast.domain.training.text_generation import Sampling
from holdfast.domain.training.train_plan import TrainPlan
from holdfast.ports.forwarding.optimizer import ForwardingTrainable, ForwardingUpdate
from holdfast.ports.optimizer import Trainable
from holdfast.ports.process_group import ProcessGroup
from holdfast.ports.testing.optimizer import files_of
from tests.support.streams import Plan, feed_of, held_out_of

TOKENIZER = MemoryTokenizer()
CORPUS = {
    "songs": ["Twinkle, twinkle, little star.", "Row, row, row your boat gently down the stream.", "Baa, baa!"],
    "proverbs": ["A stitch in time saves nine.", "Too many cooks spoil the broth.", "No smoke without fire.", "Ah."],
    "numbers": ["one two three four five", "six", "seven eight nine", "ten eleven twelve thirteen"],
}


def nothing(*_):
    """Let things go on as they do."""


@final
class FaultyTrainable(ForwardingTrainable):
    """Trains as ``inner`` does, remembers the rows of each step, and asks before it does anything.

    ``before_part(step, part)`` and ``before_evaluation(batch)`` may raise.
    """

    def __init__(self, inner, *, before_part=nothing, before_evaluation=nothing):
        super().__init__(inner)
        self.before_part = before_part
        self.before_evaluation = before_evaluation
        self.consumed = {}

    @override
    def update(self, *, step, learning_rate):
        return _FaultyUpdate(self, super().update(step=step, learning_rate=learning_rate), step)

    @override
    def evaluate(self, batch):
        self.before_evaluation(batch)
        return super().evaluate(batch)


@final
class _FaultyUpdate(ForwardingUpdate):
    def __init__(self, trainable, inner, step):
        super().__init__(inner)
        self._trainable = trainable
        self._step = step
        self._rows = []

    @override
    def accumulate(self, part, *, weight, last):
        self._trainable.before_part(self._step, part)
        self._rows += part.input_ids.tolist()
        return super().accumulate(part, weight=weight, last=last)

    @override
    def apply(self):
        norm = super().apply()
        self._trainable.consumed[self._step] = self._rows
        return norm


@dataclass
class Loop:
    """The parts of a run, made anew over ``store`` as a fresh process would; ``run`` trains."""

    store: MemoryStateStore = field(default_factory=lambda: MemoryStateStore(Retention(100)))
    source: MemoryDataSource = field(default_factory=lambda: MemoryDataSource(CORPUS))
    plan: Plan = Plan()  # noqa: RUF009  frozen
    budget: Budget = field(default_factory=lambda: Budget(steps=8))
    holdout: Holdout = Holdout(0.2, seed=5)  # noqa: RUF009  frozen
    rejections: RejectedRecords = field(default_factory=lambda: RejectedRecords("stop"))
    group: ProcessGroup = field(default_factory=SingleProcessGroup)
    inner: Trainable | None = None
    peak: float = 5.0
    known: MicroBatchState | None = None
    micro_batch: int = 4
    grow_after: int = 0
    grace: GracePeriod = GracePeriod()  # noqa: RUF009  frozen
    max_rows: int | None = None
    save_every: int = 0
    save_timer: SaveTimer | None = None
    evaluate_every: int = 0
    evaluate_at_start: bool = False
    early_stopping: EarlyStopping | None = None
    prompts: tuple[str, ...] = ()
    saves_beside: bool = False
    keeps_copy: bool = False
    is_tight: bool = False
    saves_on_failure: bool = True

    def __post_init__(self):
        model = MemoryModelFactory().build(vocabulary_size=257, end_of_text=256, seed=1)
        self.trainable = FaultyTrainable(self.inner or MemoryOptimizer(max_rows=self.max_rows).prepare(model))
        self.bus = MemoryEventBus()
        self.inbox = Inbox()
        self.checkpoints = Checkpointer(
            self.store,
            self.trainable,
            self.bus,
            self.group,
            self.inbox,
            parts=captured(TOKENIZER.write),
            memory=MemoryTier(
                may_overlap=lambda: self.saves_beside,
                is_tight=lambda: self.is_tight,
                unpack=self.unpack if self.keeps_copy else None,
            ),
        )
        held_out = held_out_of(self.source, self.plan, self.holdout, max_tokens=64)
        self.train = TrainRun(
            TrainPlan(
                self.budget,
                WarmupDecay(self.peak, Span(3), 0.5, half_cosine, self.budget),
                self.grace,
                self.early_stopping,
            ),
            LoopParts(
                feed=feed_of(self.source, self.plan, self.holdout, self.rejections),
                engine=StepEngine(self.trainable, micro_batch=(self.known or MicroBatchState(self.micro_batch)).rows),
                evaluator=Evaluator(self.trainable, held_out, TOKENIZER, self.group),
                sampler=PromptSampler(self.trainable, TOKENIZER, self.prompts, Sampling(8), self.group),
                checkpoints=self.checkpoints,
                bus=self.bus,
                inbox=self.inbox,
                ranks=DataRanks(self.group, ParallelMesh.of(self.group.size)),
            ),
        )
        measure = EvaluateOnCadence(
            Cadence(self.evaluate_every),
            self.budget,
            self.inbox,
            at_start=self.evaluate_at_start,
            early_stopping=self.early_stopping,
        )
        self.told = []
        stop = StopWithoutImprovement(self.early_stopping, self.budget, self.inbox, self.told.append)
        if self.evaluate_every:
            self.bus.subscribe(RunStarted, measure.on_start)
            self.bus.subscribe(StepCompleted, measure.on_step)
            self.bus.subscribe(RunStarted, stop.on_start)
            self.bus.subscribe(EvaluationCompleted, stop.on_evaluation)
        if self.early_stopping:
            self.bus.subscribe(CheckpointStarted, ProtectRollBackTarget(3, self.save_every, self.store))
        for kind, handler in [] if self.save_timer is None else self.save_timer.subscriptions():
            self.bus.subscribe(kind, handler)
        save = SaveOnCadence(Cadence(self.save_every), self.budget, self.inbox, self.save_timer)
        self.bus.subscribe(StepCompleted, save)
        self.kept = []
        policy = MicroBatchPolicy(self.micro_batch, self.plan.rows, grow_after=self.grow_after)
        known = self.known or MicroBatchState(self.micro_batch)
        adapt = AdaptMicroBatch(policy, known, self.inbox, self.kept.append)
        self.bus.subscribe(MemoryExhausted, adapt.on_shortage)
        self.bus.subscribe(BatchSplit, adapt.on_split)
        self.bus.subscribe(StepCompleted, adapt.on_step)
        self.bus.subscribe(StopRequested, SaveOnStop(self.inbox))
        if self.saves_on_failure:
            self.bus.subscribe(RunFailed, SaveOnFailure(self.checkpoints))

    @staticmethod
    def unpack(snapshot):
        """Return a folder of what was captured, to enter."""
        return unpacked(snapshot.parts, None)

    def run(self):
        """Train; return the progress at the end."""
        return self.train.run()

    def at_step(self, step, act):
        """Call ``act`` once ``step`` is complete."""
        self.bus.subscribe(StepCompleted, lambda event: act() if event.progress.step == step else None)

    @property
    def state(self):
        """Return the bytes of all that training changes."""
        return files_of(self.trainable.capture())

    @property
    def rows(self):
        """Return the rows that each step consumed, by step."""
        return self.trainable.consumed

    @property
    def losses(self):
        """Return the loss of each step that this process took."""
        return np.array([event.outcome.loss for event in self.published(StepCompleted)])

    def published(self, kind):
        """Return the events of ``kind``."""
        return [event for event in self.bus.published if isinstance(event, kind)]

    @property
    def story(self):
        """Return the names of all events, in order."""
        return [type(event).__name__ for event in self.bus.published]
