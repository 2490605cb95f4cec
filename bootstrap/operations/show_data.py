"""Rows of a run's data, as the model will read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.application.data.trace_samples import shown_rows
from holdfast.bootstrap.adapter_choice.data_sources import report_remarks
from holdfast.bootstrap.adapter_choice.ports import Ports
from holdfast.bootstrap.operations.open_preparation import begun_run
from holdfast.bootstrap.stages.choose.stage import choose_sizes
from holdfast.bootstrap.stages.identify.stage import find_data, identify
from holdfast.bootstrap.stages.open_run.hub_choice import refuse_offline
from holdfast.bootstrap.stages.prepare.data_streams import choose_packing
from holdfast.bootstrap.stages.prepare.stage import open_readers
from holdfast.bootstrap.stages.request import Request
from holdfast.domain.data.no_text import no_text
from holdfast.domain.data.packing import place_rows
from holdfast.domain.data.row_index import read_rows
from holdfast.domain.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from holdfast.application.data.lane_reader import Wanted
    from holdfast.application.data.text_reader import TextReader
    from holdfast.application.data.trace_samples import ShownRow
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.phase import ShowPhase

    Masked = tuple[NDArray[np.unsignedinteger], NDArray[np.bool_] | None]

_TO_CHOOSE_FROM = 4  # times as many tokens as the rows hold, so that packing fills them


def rows_of_data(
    settings: TrainSettings, num_rows: int, report: Callable[[str], object], show: ShowPhase
) -> Sequence[ShownRow]:
    """Return ``num_rows`` packed rows of the first documents of ``settings``, fewer if there are too few documents.

    Documents that are held out or excluded are left out, as they are of training. A run that has begun in their folder
    reads them by its own rules, and so they are read here.

    No token is stored. Raises ``ConfigurationError`` if the data are tokens already, and ``DataError`` if they hold no
    document that can be used.
    """
    if settings.data.are_tokens:
        msg = "data.kind=tokens has no records to show: name the text that the tokens were made from"
        raise ConfigurationError(msg)
    refuse_offline(settings)
    settings, _, begun = begun_run(settings)
    ports = Ports(settings, {})
    request = choose_sizes(Request(settings, settings.run.directory, ports, report, show, begun=begun))
    found = find_data(request)
    report_remarks(found.data.source, settings.data, report)
    data = identify(found, found.data)
    readers, packing, length = open_readers(data).first, choose_packing(request.settings.data), found.row_length
    wanted: Wanted = lambda hashes: ~(data.holdout.holds(hashes) | found.excluded.holds(hashes))  # noqa: E731
    documents = list(_first_documents(readers, _TO_CHOOSE_FROM * num_rows * length, wanted))
    if not documents:
        raise DataError(no_text([unit.name for reader in readers for unit in reader.source.units()]))
    ids, masks = zip(*documents, strict=True)
    places = place_rows(ids, packing, masks, holds_pairs=settings.data.holds_pairs)[:num_rows]
    if not places:
        msg = f"the first documents are all longer than data.sequence_length, which is {length}: raise it"
        raise DataError(msg)
    return shown_rows(read_rows(places, length), data.tokenizer, num_rows)


def _first_documents(readers: Sequence[TextReader], num_tokens: int, wanted: Wanted) -> Iterator[Masked]:
    """Yield the first ``wanted`` documents of ``readers``, at least ``num_tokens`` tokens if there are as many."""
    room = num_tokens
    for reader in readers:
        for unit in reader.source.units():
            for group in reader.tokens(unit, wanted=wanted):
                for first, last in zip(group.offsets[:-1].tolist(), group.offsets[1:].tolist(), strict=True):
                    mask = group.loss_mask
                    yield group.ids[first:last], None if mask is None else mask[first:last]
                room -= len(group.ids)
                if room <= 0:
                    return
