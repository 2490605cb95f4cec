"""Places in a real run at which something happens: in this process, after the classes of the product were changed."""

from __future__ import annotations

import builtins
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def happening(
    *, number: int | None, then: int | None, error: str | None, message: str, until: str | None, twice: bool
) -> Callable[[], None]:
    """Return what sends this process a signal, raises a built-in error or waits for a file."""

    def happen() -> None:
        if number is not None:
            for _ in range(2 if twice else 1):
                os.kill(os.getpid(), number)
        if then is not None:
            os.kill(os.getpid(), then)
        while until is not None and not Path(until).exists():
            time.sleep(0.005)
        if error is not None:
            raise getattr(builtins, error)(5, message)

    return happen


def interrupt_at(
    phase: str,
    count: int,
    *,
    number: int | None = None,
    then: int | None = None,
    error: str | None = None,
    message: str = "planted",
    until: str | None = None,
    twice: bool = False,
    forwards: int = 0,
) -> None:
    """Have it happen when ``phase`` is reached for the ``count``-th time, and ``forwards`` forward passes later."""
    import torch
    from torch.optim import AdamW
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from holdfast.adapters.monitor.jsonl import JsonlMonitor
    from holdfast.adapters.optimizer.engine import TrainingEngine
    from holdfast.adapters.optimizer.trainable import TorchTrainable
    from holdfast.adapters.state_store import checkpoint_writer as draft
    from holdfast.adapters.state_store.archive.local_object_store import LocalObjectStore
    from holdfast.adapters.state_store.archive.remote_object_store import RemoteObjectStore
    from holdfast.adapters.tokenizer import train
    from holdfast.application.checkpointer import Checkpointer
    from holdfast.application.data.feed import Feed
    from holdfast.application.data.pretokenize import PrepareTokens
    from holdfast.application.handlers.evaluate_on_cadence import EvaluateOnCadence

    happen = happening(number=number, then=then, error=error, message=message, until=until, twice=twice)
    reached, passes = 0, 0

    def reach(name: str) -> None:
        nonlocal reached
        reached += name == phase
        if name == phase and reached == count:
            wanted = passes + forwards
            while passes < wanted:
                time.sleep(0.001)
            happen()

    def watch(owner: Any, name: str, phase: str, *, behind: bool = False) -> None:
        operation = getattr(owner, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            nonlocal passes
            if not behind:
                reach(phase)
            result = operation(*arguments, **options)
            passes += phase == "forward"
            if behind:
                reach(phase)
            return result

        setattr(owner, name, watched)

    watch(Feed, "next", "data")
    watch(train, "_train", "tokenizer")
    watch(PrepareTokens, "run", "tokens")
    watch(TorchTrainable, "__init__", "model")
    watch(JsonlMonitor, "record", "monitor")
    watch(EvaluateOnCadence, "on_step", "handler")
    watch(Checkpointer, "flush", "flush")
    watch(TrainingEngine, "summed_loss", "forward", behind=True)
    watch(torch.Tensor, "backward", "backward", behind=True)
    # Muon has an AdamW for the other parameters, so this is once a step, in its middle
    register_optimizer_step_post_hook(lambda stepped, *_: reach("optimizer") if isinstance(stepped, AdamW) else None)
    watch(TorchTrainable, "capture", "capture")
    watch(TorchTrainable, "evaluate", "evaluation")
    watch(draft, "_write_file", "write")
    for objects in (LocalObjectStore, RemoteObjectStore):
        watch(objects, "upload", "upload", behind=True)
