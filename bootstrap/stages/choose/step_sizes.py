"""Resolves automatic sequence lengths and batch sizes, and ``optimizer.batch_tokens``."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from holdfast.bootstrap.adapter_choice.torch_adapters import TorchRequest
from holdfast.bootstrap.run_folder.record_file import Begun
from holdfast.bootstrap.stages.choose.hardware import choose_hardware
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.parallel_mesh import ParallelMesh
from holdfast.domain.training.size_rules import choose_length, choose_rows
from holdfast.ports.data_source import Document

if TYPE_CHECKING:
    from holdfast.bootstrap.stages.request import Request
    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.data_source import DataSource

LENGTH, ROWS = "data.sequence_length", "optimizer.batch_size"
_SAMPLE, _UNITS = 256, 32
_SHORT = 8  # any length, while the one of the run is looked for


def with_sizes(request: Request, ranks: int = 1) -> TrainSettings:
    """Return the settings of ``request`` with numbers for the length of a row and the rows of a step.

    Its ``keep_choice`` keeps them. Raises ``ConfigurationError`` if a batch is less than a row.
    """
    settings, keep_choice, known = request.settings, request.keep_choice, request.begun.choices
    length = settings.data.sequence_length
    if length == "auto":
        length = int(known.get(LENGTH) or keep_choice(LENGTH, *_length(request)))
    optimizer = settings.optimizer
    rows = optimizer.batch_size
    if rows == "auto":
        rows = int(known.get(ROWS) or keep_choice(ROWS, *_as_text(choose_rows(budget_of(settings), length, ranks))))
    elif rows is None:
        assert optimizer.batch_tokens is not None
        if (rows := optimizer.batch_tokens // length) < 1:
            msg = f"optimizer.batch_tokens is {optimizer.batch_tokens}, less than a row of {length} tokens: raise it"
            raise ConfigurationError(msg)
    return _sized(settings, length, rows)


def budget_of(settings: TrainSettings) -> Budget:
    """Return the length of a run by its settings, before minutes and epochs are steps."""
    limits = settings.run.budget
    return Budget(limits.steps, limits.tokens, limits.minutes, settings.data.epochs)


def _sized(settings: TrainSettings, length: int, rows: int) -> TrainSettings:
    data = settings.data.model_copy(update={"sequence_length": length})
    optimizer = settings.optimizer.model_copy(update={"batch_size": rows, "batch_tokens": None})
    return settings.model_copy(update={"data": data, "optimizer": optimizer})


def _length(request: Request) -> tuple[str, str]:
    settings = _sized(request.settings, _SHORT, 1)
    is_text = not settings.data.are_tokens
    documents = _sizes_of_documents(request.ports.data_source(settings.data, Begun())) if is_text else []
    new = Begun()
    hardware = choose_hardware(settings, new.keep)
    torch = TorchRequest(settings, hardware, ParallelMesh(), new.rules, lambda _: None)
    longest = request.ports.model_factory(torch).longest_row()
    return _as_text(choose_length(documents, longest, are_divided=settings.data.task == "text"))


def _sizes_of_documents(source: DataSource) -> list[int]:
    """Return the sizes in bytes of some documents, from units at even distances over the source."""
    units = source.units()
    chosen = units[:: max(1, len(units) // _UNITS)]
    a_unit = -(-_SAMPLE // max(1, len(chosen)))
    sizes = []
    for unit in chosen:
        documents = (item for item in source.read(unit) if isinstance(item, Document))
        sizes += [len(document.text.encode("utf-8", "replace")) for document in islice(documents, a_unit)]
    return sizes


def _as_text(choice: tuple[int, str]) -> tuple[str, str]:
    return str(choice[0]), choice[1]
