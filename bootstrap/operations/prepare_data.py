"""Tokenizing ahead of a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Self

from holdfast.adapters.shared.device.cpu_count import usable_cpus
from holdfast.application.data.pretokenize import Prepared, PrepareTokens
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.bootstrap.run_folder.folder import read_record, tokenizer_before
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.wiring.assembly import assemble
from holdfast.bootstrap.wiring.compatibility import check_description, check_tokenizer, with_former_tokenizer
from holdfast.bootstrap.wiring.data_growth_plan import divide_ahead, may_grow
from holdfast.bootstrap.wiring.data_identity import known_data
from holdfast.bootstrap.wiring.data_streams import form_of
from holdfast.bootstrap.wiring.screen import phases_shown
from holdfast.bootstrap.wiring.step_sizes import with_sizes
from holdfast.configs.secret_masking import mask, mask_text
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from holdfast.bootstrap.wiring.run_parts import DataParts, RunData
    from holdfast.configs.settings import TrainSettings


def prepare_ahead(settings: TrainSettings) -> tuple[Path, Prepared, list[Mapping[str, object]]]:
    """Fill the token cache that a run of ``settings`` will use; return its place, its content and what was rejected.

    Shows a progress bar on standard error. Killed at any moment, it goes on from there when it is called again.
    """
    if form_of(settings.data) == "tokens":
        msg = "data.kind=tokens is prepared already: train on it as it is"
        raise ConfigurationError(msg)
    rejected: list[Mapping[str, object]] = []
    rejections = RejectedRecords(settings.data.on_error, lambda record: rejected.append(mask(dict(record))))
    folder = settings.run.directory
    record = read_record(folder) if RunLayout(folder).record.exists() else {}
    settings = with_sizes(with_former_tokenizer(settings, tokenizer_before(folder)), {}, _decide_anew)
    known = known_data(record)
    places = {} if known is None else known.first_places
    given = {"rejections": rejections, "places": places}
    container = assemble(settings, folder, given, say=_say, decide=_decide_anew)
    with phases_shown() as show:
        parts: DataParts = container.data_parts()
        container.late_data().set(_divided_as_in_the_run(record, parts))
        show("preparing the tokenizer")
        check_description(parts.factory, settings, is_new=not record)
        check_tokenizer(container.run_tokenizer(), parts.factory, settings, is_new=not record)
        readers, datasets = container.all_readers(), container.datasets()
    with _Bar() as bar:
        preparations = [
            PrepareTokens(
                reader,
                container.token_cache(datasets.name_of(reader)),
                rejections,
                progress=bar.show,
                workers=settings.data.workers or usable_cpus(),
            )
            for reader in readers
        ]
        prepared = [preparation.run() for preparation in preparations]
        for reader, preparation in zip(readers, preparations, strict=True):
            preparation.check()  # what came later may have driven out what was there
            datasets.keep(reader)
    return container.cache_folder(), Prepared.total(prepared), rejected


def _decide_anew(_name: str, value: str, _reason: str) -> str:
    return value


def _divided_as_in_the_run(record: Mapping[str, Any], parts: DataParts) -> RunData:
    """Return the data with the files that were added since the run began apart, as the run itself will read them."""
    if (known := known_data(record)) is None:
        return parts.found
    return divide_ahead(record, known, parts.found, grows=may_grow(parts.settings, parts.mode))


def _say(line: str) -> None:
    sys.stderr.write(f"{mask_text(line)}\n")


class _Bar:
    """A progress bar of bytes with rate and time left; still where there is no terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (TextColumn("tokenizing"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        console = Console(file=sys.stderr)
        self._bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` bytes are tokenized."""
        self._bar.update(self._task, completed=done, total=total)
