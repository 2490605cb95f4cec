"""The parts of a run, as typed values that the container gives once they can be built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

from holdfast.bootstrap.wiring.data_streams import UNGROWN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.adapters.state_store.access_guard import AccessGuard
    from holdfast.application.checkpointing.checkpointer import Checkpointer
    from holdfast.application.data.feed import BatchStream, Feed
    from holdfast.application.data.holdout_batches import HoldoutBatches
    from holdfast.application.inbox import Inbox
    from holdfast.application.training.evaluator import Evaluator
    from holdfast.bootstrap.run_folder.run_audit import Audit
    from holdfast.bootstrap.wiring.open_lineage import Lineage
    from holdfast.bootstrap.wiring.reserve_host_memory import MemoryPressure
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.data.data_files import DataFiles
    from holdfast.domain.data.data_growth import Growth
    from holdfast.domain.data.holdout import Holdout
    from holdfast.domain.data.mixture import Mixture
    from holdfast.domain.phase import ShowPhase
    from holdfast.domain.training.budget import Budget
    from holdfast.domain.training.lr_schedule import Schedule
    from holdfast.ports.data_source import DataSource
    from holdfast.ports.event_bus import EventBus
    from holdfast.ports.model_factory import ModelFactory
    from holdfast.ports.optimizer import Trainable
    from holdfast.ports.process_group import ProcessGroup
    from holdfast.ports.resource_probe import ResourceProbe
    from holdfast.ports.state_store import StateStore
    from holdfast.ports.tokenizer import Tokenizer


class Identified(Protocol):
    """Data whose files and contents can be compared with those of an earlier start."""

    def fingerprint(self) -> str:
        """Return a text that changes with the name, size or time of any file."""
        ...

    def files(self) -> DataFiles | None:
        """Return the files, with hashes of their contents where these are known; None for data without files."""
        ...

    def identify(self, known: DataFiles | None = None) -> DataFiles | None:
        """Return the files with hashes of their contents, None for data without files.

        A file is not hashed again if its entry in ``known`` is still valid.
        """
        ...


@final
@dataclass(frozen=True, slots=True)
class OpeningParts:
    """The parts that open a run folder, before the settings of the run are complete.

    ``inner_store`` is the state store without the wrapper of the host program, if there is one.
    """

    process_group: ProcessGroup
    inbox: Inbox
    state_store: StateStore
    inner_store: StateStore
    audit: Audit
    guard: AccessGuard
    budget: Budget
    schedule: Schedule

    def by_name(self) -> dict[str, object]:
        """Return the parts by the names that they have in the container."""
        return {
            "process_group": self.process_group,
            "inbox": self.inbox,
            "state_store": self.state_store,
            "inner_store": self.inner_store,
            "audit": self.audit,
            "guard": self.guard,
            "budget": self.budget,
            "schedule": self.schedule,
        }


@final
@dataclass(frozen=True, slots=True)
class RunData:
    """The data that a run reads: ``source`` as the run began, and ``added`` parts, read from epochs of ``growth`` on.

    ``token_files`` replace ``source`` if the data are tokens already.
    """

    source: DataSource
    token_files: Identified | None = None
    added: Sequence[DataSource] = ()
    growth: Growth = UNGROWN

    @property
    def identified(self) -> Identified:
        """Return the data that the run began with."""
        return self.source if self.token_files is None else self.token_files


@final
@dataclass(frozen=True, slots=True)
class DataParts:
    """The parts that check the data of a run: ``found`` are the data with all files that exist now.

    ``mode`` is ``cache`` or ``stream``.
    """

    settings: TrainSettings
    found: RunData
    mode: str
    mixture: Mixture
    factory: ModelFactory[Any]
    report: Callable[[str], object]
    show: ShowPhase


@final
@dataclass(frozen=True, slots=True)
class ModelParts:
    """A model and its optimizer, before the size of a micro-batch is chosen; ``hardware`` by ``choose_hardware``."""

    settings: TrainSettings
    hardware: Mapping[str, str]
    process_group: ProcessGroup
    model: Any
    trainable: Trainable


@final
@dataclass(frozen=True, slots=True)
class EvaluationParts:
    """The parts that measure a model on documents that were held out."""

    held_out: HoldoutBatches
    evaluator: Evaluator


@final
@dataclass(frozen=True, slots=True)
class BatchParts:
    """The parts between text and batches."""

    tokenizer: Tokenizer
    holdout: Holdout
    batch_stream: BatchStream
    feed: Feed


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
    """All parts of a run that is about to train; ``micro_batch`` is in rows."""

    settings: TrainSettings
    opened: OpeningParts
    data: BatchParts
    model: ModelParts
    micro_batch: int
    event_bus: EventBus
    checkpoints: Checkpointer
    host: HostParts
