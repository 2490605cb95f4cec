"""The report of `data rejects`: the records that a dataset left out, from the descriptions of its shards."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from holdfast.application.data.rejected_records import LOSES_REST, counts_of, lost_line
from holdfast.application.data.shard_meta import total_drops, total_warnings
from holdfast.bootstrap.operations.prepare_data import place_of
from holdfast.configs.error_messages import one_line
from holdfast.configs.secret_masking import mask
from holdfast.domain.counting import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.bootstrap.wiring.open_dataset import OpenDataset


def reject_lines(dataset: OpenDataset, *, as_json: bool) -> Iterator[str]:
    """Yield a line for each listed record of ``dataset``: its place, the rule and the reason, with secrets masked.

    With ``as_json`` each line is an object as in ``rejected.jsonl``; otherwise the last lines count all records that
    were left out by rule, including those that are not listed, and those that are used with a warning. Memory holds the
    description of one shard at a time.
    """
    drops: Counter[str] = Counter()
    warnings: Counter[str] = Counter()
    lost: list[Any] = []
    for shard in dataset.tokens.shards():
        meta: Any = dataset.tokens.meta(shard)
        drops.update(total_drops([meta]))
        warnings.update(total_warnings([meta]))
        for record in meta["rejected"]:
            shown = mask(record)
            if LOSES_REST in record:
                lost.append(record)
            yield json.dumps(shown) if as_json else one_line(place_of(shown))
    if not as_json:
        counts = counts_of(drops)
        yield f"{dataset.folder}: {counted(sum(count for _, count, _ in counts), 'record')} left out"
        yield from (f"{count:10,}  {one_line(rule)}{remedy}" for rule, count, remedy in sorted(counts))
        if (line := lost_line(lost)) is not None:
            yield line
        if warnings:
            yield "used with a warning:"
            yield from (f"{count:10,}  {one_line(rule)}" for rule, count in sorted(warnings.items()))
