"""The parts of a run that handlers are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.application.checkpointer import Checkpointer
    from holdfast.application.data.feed import Feed
    from holdfast.bootstrap.stages.build.built import Built
    from holdfast.bootstrap.stages.fit.micro_batch import MemoryPressure
    from holdfast.bootstrap.stages.fit.stage import Fitted
    from holdfast.bootstrap.stages.open_run.stage import Opened
    from holdfast.bootstrap.stages.prepare.lineage import Lineage
    from holdfast.bootstrap.stages.prepare.stage import PreparedRows
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.phase import ShowPhase
    from holdfast.domain.training.train_plan import TrainPlan
    from holdfast.ports.event_bus import EventBus
    from holdfast.ports.resource_probe import ResourceProbe


@final
@dataclass(frozen=True, slots=True)
class HostParts:
    """The parts that show or watch the run on its machine; ``directory`` is the run folder.

    ``resource_probe`` is None if the settings do not tune the use of the machine, and on all ranks but the first.
    """

    directory: Path
    show: ShowPhase
    memory_pressure: MemoryPressure
    lineage: Lineage
    resource_probe: ResourceProbe | None


@final
@dataclass(frozen=True, slots=True)
class RunParts:
    """All parts of a run that is about to train."""

    opened: Opened
    rows: PreparedRows
    model: Built
    fitted: Fitted
    feed: Feed
    event_bus: EventBus
    checkpoints: Checkpointer
    host: HostParts

    @property
    def settings(self) -> TrainSettings:
        """Return the settings of the run."""
        return self.model.settings

    @property
    def plan(self) -> TrainPlan:
        """Return the length of the run with its learning rates."""
        return self.fitted.plan

    @property
    def micro_batch(self) -> int:
        """Return the rows of a micro-batch with which the run begins."""
        return self.fitted.micro_batch
