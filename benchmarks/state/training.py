"""A run of Holdfast that takes turns of a save's period."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from benchmarks.state.files import SlowFiles
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.bootstrap.run import build
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.events import CheckpointFailed, CheckpointSaved, CheckpointStarted, RunStarted, StepCompleted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.turns import Answers


def train(answers: Answers, plan: Mapping[str, Any]) -> None:
    """Train by ``overrides``, ``a_turn`` steps a turn; ``slow_seconds`` are added to each operation of the disk."""
    settings = load_settings([], json.loads(plan["overrides"]), {}).settings
    overrides: dict[str, Any] = {}
    if plan["slow_seconds"]:
        overrides["state_store"] = DiskStateStore(
            settings.run.directory, Retention(3), files=SlowFiles(plan["slow_seconds"])
        )
    run = build(settings, report=lambda _: None, **overrides)
    turn = _Turn(answers, plan["a_turn"])
    run.subscribe(RunStarted, lambda _: turn.begin())
    run.subscribe(CheckpointStarted, turn.save_begins)
    run.subscribe(CheckpointSaved, turn.saved)
    run.subscribe(CheckpointFailed, turn.failed)
    run.subscribe(StepCompleted, turn.step_ends)
    run.run()


class _Turn:
    """Times each step from the end of the one before, so that a save counts as the next step's."""

    def __init__(self, answers: Answers, length: int) -> None:
        self._answers = answers
        self._length = length
        self._last = 0.0
        self._clear()

    def begin(self) -> None:
        self._answers.give({})
        self._last = time.perf_counter()

    def step_ends(self, event: StepCompleted) -> None:
        now = time.perf_counter()
        self._seconds.append(now - self._last)
        self._losses.append(event.outcome.loss)
        self._last = now
        if len(self._seconds) == self._length:
            found = {"steps": self._seconds, "losses": self._losses, "begun": self._begun, "saves": self._saves}
            self._answers.give(found)
            self._clear()
            self._last = time.perf_counter()

    def save_begins(self, _: CheckpointStarted) -> None:
        self._begun += 1

    def saved(self, event: CheckpointSaved) -> None:
        self._saves.append([event.stall_seconds, event.seconds])

    def failed(self, event: CheckpointFailed) -> None:
        raise SystemExit(event.problem)

    def _clear(self) -> None:
        self._seconds: list[float] = []
        self._losses: list[float] = []
        self._begun = 0
        self._saves: list[list[float]] = []
