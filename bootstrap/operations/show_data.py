"""Rows of a run's data, as the model will read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.application.data.shown_rows import shown_rows
from holdfast.bootstrap.operations.open_preparation import begun_run
from holdfast.bootstrap.wiring.assembly import assemble
from holdfast.bootstrap.wiring.data_sources import report_remarks
from holdfast.bootstrap.wiring.data_streams import form_of, holds_pairs
from holdfast.bootstrap.wiring.hub_choice import refuse_offline
from holdfast.bootstrap.wiring.step_sizes import with_sizes
from holdfast.domain.data.no_text import no_text
from holdfast.domain.data.packing import place_rows
from holdfast.domain.data.row_index import read_rows
from holdfast.domain.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from holdfast.application.data.lane_reader import Wanted
    from holdfast.application.data.shown_rows import ShownRow
    from holdfast.application.data.text_reader import TextReader
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
    if form_of(settings.data) == "tokens":
        msg = "data.kind=tokens has no records to show: name the text that the tokens were made from"
        raise ConfigurationError(msg)
    refuse_offline(settings)
    settings, _, begun = begun_run(settings)
    settings = with_sizes(settings, {}, _keep)
    container = assemble(settings, settings.run.directory, begun, report=report, keep_choice=_keep, show=show)
    report_remarks(container.data_source(), settings.data, report)
    readers, packing, length = container.readers(), container.packing(), settings.data.row_length
    holdout, excluded = container.holdout(), container.excluded()
    wanted: Wanted = lambda hashes: ~(holdout.holds(hashes) | excluded.holds(hashes))  # noqa: E731
    documents = list(_first_documents(readers, _TO_CHOOSE_FROM * num_rows * length, wanted))
    if not documents:
        raise DataError(no_text([unit.name for reader in readers for unit in reader.source.units()]))
    ids, masks = zip(*documents, strict=True)
    places = place_rows(ids, packing, masks, holds_pairs=holds_pairs(settings.data))[:num_rows]
    if not places:
        msg = f"the first documents are all longer than data.sequence_length, which is {length}: raise it"
        raise DataError(msg)
    return shown_rows(read_rows(places, length), container.run_tokenizer(), num_rows)


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


def _keep(_name: str, value: str, _reason: str) -> str:
    return value
