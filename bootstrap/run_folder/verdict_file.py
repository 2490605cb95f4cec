"""The verdicts of a study on the evaluations of a trial, in the folder of the trial."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.domain.tuning.trial import TrialVerdict

if TYPE_CHECKING:
    from pathlib import Path


@final
class VerdictFile:
    """``verdicts.jsonl`` of the run folder ``root``: the study adds them, and the process of the trial reads them."""

    def __init__(self, root: Path) -> None:
        self._lines = JsonLines(RunLayout(root).verdicts)

    def at(self, step: int) -> TrialVerdict | None:
        """Return the verdict on the evaluation at ``step``, None if there is none yet."""
        return next((verdict for verdict in self.all() if verdict.step == step), None)

    def all(self) -> list[TrialVerdict]:
        """Return all verdicts, the first one of each step; raises ``StateError`` if the file cannot be read."""
        found: dict[int, TrialVerdict] = {}
        for record in self._lines.read():
            step, reason = record.get("step"), record.get("reason")
            if isinstance(step, int) and (reason is None or isinstance(reason, str)):
                found.setdefault(step, TrialVerdict(step, reason))
        return list(found.values())

    def add(self, verdict: TrialVerdict) -> None:
        """Add ``verdict``; raises ``StateError`` if it cannot be written."""
        word = "continue" if verdict.reason is None else "prune"
        self._lines.append({"step": verdict.step, "verdict": word, "reason": verdict.reason})

    def close(self) -> None:
        """Close the file."""
        self._lines.close()
