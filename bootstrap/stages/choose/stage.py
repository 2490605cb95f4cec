"""Chooses what the settings leave to the machine and the data: sizes, device, precision, attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from holdfast.application.training.step_engine import DataRanks
from holdfast.bootstrap.adapter_choice.process_group import mesh_of
from holdfast.bootstrap.adapter_choice.torch_adapters import TorchRequest
from holdfast.bootstrap.stages.choose.hardware import choose_hardware
from holdfast.bootstrap.stages.choose.step_sizes import with_sizes
from holdfast.domain.data.sample_order import RankShard
from holdfast.domain.training.parallel_mesh import ParallelMesh

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.bootstrap.stages.request import Request
    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.model_factory import ModelFactory
    from holdfast.ports.process_group import ProcessGroup


@final
@dataclass(frozen=True, slots=True)
class Chosen:
    """The request with complete settings, and the ``hardware`` by ``choose_hardware``; no setting changes any more."""

    request: Request
    process_group: ProcessGroup
    hardware: Mapping[str, str]
    mesh: ParallelMesh
    model_factory: ModelFactory[object]

    @property
    def settings(self) -> TrainSettings:
        """Return the settings, without any automatic size."""
        return self.request.settings

    @property
    def torch(self) -> TorchRequest:
        """Return what the adapters of torch are made from."""
        return torch_request(self.request, self.hardware, self.mesh)

    @property
    def data_ranks(self) -> DataRanks:
        """Return the ranks as those that read different data."""
        return DataRanks(self.process_group, self.mesh)

    @property
    def share(self) -> RankShard:
        """Return the share of this rank in the rows of a step."""
        ranks = self.data_ranks
        return RankShard(self.settings.optimizer.num_rows, ranks.rank, ranks.size)


def choose_sizes(request: Request, ranks: int = 1) -> Request:
    """Return ``request`` with numbers for the length of a row and the rows of a step.

    Raises ``ConfigurationError`` if a batch is less than a row.
    """
    return replace(request, settings=with_sizes(request, ranks))


def choose(request: Request, group: ProcessGroup) -> Chosen:
    """Return the choices for ``request``, whose sizes are chosen; all ranks call this together."""
    mesh = mesh_of(request.settings.distributed, group.size)
    hardware, factory = choose_model(request)
    return Chosen(request, group, hardware, mesh, factory)


def choose_model(request: Request) -> tuple[Mapping[str, str], ModelFactory[object]]:
    """Return the choice of ``choose_hardware``, and the factory of the model."""
    hardware = choose_hardware(request.settings, request.keep_choice)
    return hardware, request.ports.model_factory(torch_request(request, hardware, ParallelMesh()))


def torch_request(request: Request, hardware: Mapping[str, str], mesh: ParallelMesh) -> TorchRequest:
    """Return what the adapters of torch are made from."""
    return TorchRequest(request.settings, hardware, mesh, request.begun.rules, request.report)
