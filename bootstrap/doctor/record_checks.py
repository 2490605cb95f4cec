"""Checks that the first record of the data has what the settings name, and of the files that are not read."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from holdfast.bootstrap.doctor.finding import Check, bad, doubtful, good
from holdfast.bootstrap.doctor.named_places import is_on_disk, text_sections
from holdfast.bootstrap.wiring.data_sources import open_files
from holdfast.configs.sections.sources import FilesSource
from holdfast.domain.errors import TrainingError
from holdfast.ports.data_source import Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from holdfast.bootstrap.doctor.finding import Finding
    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.data_source import DataSource

_REMEDY = "see that this is as it is meant"


def record_checks(settings: TrainSettings, seconds: float) -> Iterator[Check]:
    """Yield a check for each section of text files on this machine; files elsewhere are not downloaded."""
    task, is_skipped = settings.data.task, settings.data.on_error == "skip"
    for name, section in text_sections(settings):
        if isinstance(section, FilesSource) and all(map(is_on_disk, section.path)):
            open_source = partial(open_files, section, task=task)
            look = partial(check_first_record, f"{name}.text_field", open_source, is_skipped=is_skipped)
            yield Check(f"{name}.text_field", look, seconds)


def check_first_record(setting: str, open_source: Callable[[], DataSource], *, is_skipped: bool) -> Sequence[Finding]:
    """Return remarks on the files, and whether the first record can be used; another check says if there is none.

    With ``is_skipped`` a run leaves out such a record, but not a file of which no record can be read.
    """
    try:
        source = open_source()
        record = next(chain.from_iterable(source.read(unit) for unit in source.units()), None)
        remarks = [
            doubtful(setting, remark.sentence, _REMEDY) if remark.unused else good(setting, remark.sentence)
            for remark in source.remarks()
        ]
    except TrainingError:
        return []
    if record is None:
        return remarks
    if isinstance(record, Rejected):
        detail, _, remedy = record.reason.rpartition(": ")
        verdict = doubtful if is_skipped and record.end is not None else bad
        return [*remarks, verdict(setting, detail or record.reason, remedy if detail else "look at the file")]
    return [*remarks, good(setting, "the first record can be read")]
