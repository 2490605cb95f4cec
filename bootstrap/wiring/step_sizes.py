"""Resolves automatic sequence lengths and batch sizes, and ``optimizer.batch_tokens``."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.wiring.assembly import assemble
from holdfast.bootstrap.wiring.data_streams import form_of
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.size_rules import choose_length, choose_rows
from holdfast.ports.data_source import Document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.data_source import DataSource

    KeepChoice = Callable[[str, str, str], str]

LENGTH, ROWS = "data.sequence_length", "optimizer.batch_size"
_SAMPLE, _UNITS = 256, 32
_SHORT = 8  # any length, while the one of the run is looked for


def with_sizes(
    settings: TrainSettings,
    overrides: Mapping[str, Any],
    keep_choice: KeepChoice,
    known: Callable[[str], str | None] = lambda _: None,
    ranks: int = 1,
) -> TrainSettings:
    """Return ``settings`` with numbers for the length of a row and the rows of a step, kept by ``keep_choice``.

    ``known`` returns the earlier choice for a setting. Raises ``ConfigurationError`` if a batch is less than a row.
    """
    length = settings.data.sequence_length
    if length == "auto":
        length = int(known(LENGTH) or keep_choice(LENGTH, *_length(_sized(settings, _SHORT, 1), overrides)))
    optimizer = settings.optimizer
    rows = optimizer.batch_size
    if rows == "auto":
        budget = Budget(**settings.run.budget.model_dump(), epochs=settings.data.epochs)
        rows = int(known(ROWS) or keep_choice(ROWS, *_as_text(choose_rows(budget, length, ranks))))
    elif rows is None:
        assert optimizer.batch_tokens is not None
        if (rows := optimizer.batch_tokens // length) < 1:
            msg = f"optimizer.batch_tokens is {optimizer.batch_tokens}, less than a row of {length} tokens: raise it"
            raise ConfigurationError(msg)
    return _sized(settings, length, rows)


def _sized(settings: TrainSettings, length: int, rows: int) -> TrainSettings:
    data = settings.data.model_copy(update={"sequence_length": length})
    optimizer = settings.optimizer.model_copy(update={"batch_size": rows, "batch_tokens": None})
    return settings.model_copy(update={"data": data, "optimizer": optimizer})


def _length(settings: TrainSettings, overrides: Mapping[str, Any]) -> tuple[str, str]:
    apart = assemble(
        settings,
        settings.run.directory,
        overrides,
        report=lambda _: None,
        keep_choice=lambda _name, value, _reason: value,
    )
    is_text = form_of(settings.data) == "text"
    documents = _sizes_of_documents(apart.data_source()) if is_text else []
    are_divided = settings.data.task == "text"
    return _as_text(choose_length(documents, apart.model_factory().longest_row(), are_divided=are_divided))


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
