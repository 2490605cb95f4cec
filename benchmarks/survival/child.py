"""The process of one run that takes turns; ``benchmarks.turns`` starts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.turns import Answers, end_with_parent
from holdfast.bootstrap.process.library_environment import set_library_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping


def _main(name: str, told: Mapping[str, Any]) -> None:
    from benchmarks.survival.runs import Plan, beside_a_hog, on_a_quiet_machine

    plan = Plan(told["quiet"], told["disturbed"], told["after"], Path(told["folder"]), told["overrides"], told["room"])
    train = {"quiet": on_a_quiet_machine, "memory hog": beside_a_hog}[told["scene"]]
    answers = Answers()
    answers.give({})

    def pause(step: int) -> None:
        if step % told["a_turn"] == 0 and step < plan.steps:
            answers.give({})

    record = train(plan, is_managed=name == "managed", pause=pause)
    answers.give({"record": record.to_json()})


if __name__ == "__main__":
    end_with_parent()
    set_library_defaults()  # which libraries read when they are imported
    _main(sys.argv[1], json.loads(sys.argv[2]))
