"""The banner: a few lines about a run before its first step."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

from holdfast.application.data.cached_batches import CachedBatches
from holdfast.bootstrap.adapter_choice.process_group import mesh_of
from holdfast.bootstrap.stages.build.model import network_of
from holdfast.bootstrap.stages.choose.step_sizes import LENGTH, ROWS
from holdfast.configs.error_messages import one_line
from holdfast.configs.rendering import dump_settings
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.bootstrap.stages.attach.run_parts import RunParts
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.data.mixture import Mixture

_WIDTH = 80
_NAME = 8
_MOST_LINES = 8


def banner(parts: RunParts, decided: Mapping[str, Mapping[str, str]], mixture: Mixture) -> list[str]:
    """Return lines of at most 80 characters: at most eight, and those on later stages of ``mixture``.

    ``decided`` has the value chosen for each ``auto``.
    """
    lines = [line for name, text in _facts(parts, decided) for line in _folded(name, text)]
    return lines[:_MOST_LINES] + [line for text in _stages(parts, mixture) for line in _folded("stage", text)]


def _stages(parts: RunParts, mixture: Mixture) -> Iterator[str]:
    """Yield where each later stage begins, and whether the run ends before."""
    rows, length = parts.settings.optimizer.num_rows, parts.settings.data.row_length
    budget = parts.plan.budget
    steps = [budget.steps] if budget.steps is not None else []
    steps += [-(-budget.tokens // (rows * length))] if budget.tokens is not None else []
    for number, stage in enumerate(mixture.stages[1:], start=2):
        step = stage.start // rows + 1
        text = f"{number} begins in step {step:,}, after {counted(stage.start * length, 'token')}"
        late = f": NEVER, the run has {counted(min(steps), 'step')}" if steps and step > min(steps) else ""
        yield text + late


def _facts(parts: RunParts, decided: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    settings = parts.settings
    hardware, size = parts.model.trainable.hardware, parts.opened.process_group.size
    rows_a_step, length = settings.optimizer.num_rows, settings.data.row_length
    yield "run", str(parts.host.directory)
    yield "model", f"{_kind(settings)}, {counted(hardware.num_parameters, 'parameter')}{_trained(parts)}"
    processes = "" if size == 1 else f", {mesh_of(settings.distributed, size)} processes"
    yield "device", f"{hardware.device}, {hardware.precision}{processes}"
    tokens = rows_a_step * length
    rows = counted(parts.micro_batch, "row")
    yield "step", f"{rows_a_step} x {length} = {tokens:,} tokens, micro-batches of {rows}"
    yield from _data(parts, tokens)
    chosen = {name: entry["value"] for name, entry in decided.items()} | dict(parts.model.hardware)
    chosen["state_store.every"] = f"{settings.state_store.every_steps} steps or 10 s to 10 min"
    plain = dump_settings(settings)
    if automatic := [
        f"{name}={value}" for name, value in chosen.items() if _at(plain, name) in ("auto", None, *_size(name, value))
    ]:
        yield "auto", ", ".join(sorted(automatic))


def _size(name: str, value: str) -> list[int]:
    """Return a size from the settings of the run, in which a number has replaced auto."""
    return [int(value)] if name in (LENGTH, ROWS) else []


def _data(parts: RunParts, tokens_a_step: int) -> Iterator[tuple[str, str]]:
    settings = parts.settings
    stream, budget = parts.rows.stream, parts.plan.budget
    is_of_epochs = not settings.run.budget.has_limit  # some of whose steps may have been of another size
    spent = [
        *([] if budget.steps is None or is_of_epochs else [budget.steps * tokens_a_step]),
        *([] if budget.tokens is None else [budget.tokens]),
    ]
    there, length = 0, settings.data.row_length
    if isinstance(stream, CachedBatches):
        there = stream.num_rows * length
        samples = stream.order()[1] if there else None
        spent += [] if samples is None else [samples * length]
        is_part = settings.data.holdout or settings.data.folds is not None
        rest = ", without what is held out" if is_part else ""
        yield "data", f"{there:,} tokens in {counted(stream.num_rows, 'row')}{rest}"
    else:
        yield "data", "streamed: the number of tokens is not known in advance"
    steps = budget.steps if is_of_epochs and budget.steps is not None else -(-min(spent) // tokens_a_step)
    words = f"{counted(steps, 'step')} = {min(spent):,} tokens"
    if there:
        epochs = min(spent) / there
        words += f" = {epochs:,.1f} epochs" if epochs >= 1 else f" = {epochs:.2g} epochs"
    if budget.minutes is not None:
        words += f", in at most {budget.minutes:g} minute{'' if budget.minutes == 1 else 's'}"
    yield "budget", words


def _kind(settings: TrainSettings) -> str:
    model = settings.model
    if model.path:
        return one_line(model.path, 40)
    return str((model.config or {}).get("model_type") or model.kind)


def _trained(parts: RunParts) -> str:
    """Return how many of the parameters are trained, if not all of them are."""
    network = network_of(parts.model.model)
    if network is None:
        return ""
    trained = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    whole = sum(parameter.numel() for parameter in network.parameters())  # of this rank's stages in a pipeline
    return f" ({trained:,} of them trained)" if 0 < trained < whole else ""


def _at(plain: Mapping[str, Any], name: str) -> object:
    value: Any = plain
    for key in name.split("."):
        value = value.get(key, "") if isinstance(value, dict) else ""
    return value


def _folded(name: str, text: str) -> Iterator[str]:
    for number, line in enumerate(textwrap.wrap(text, _WIDTH - _NAME) or [""]):
        yield f"{'' if number else name:{_NAME}}{line}"


def limit_of_best(settings: TrainSettings, *, has_documents: bool) -> str | None:
    """Return the sentence on what ``keep_best`` cannot keep, None if nothing limits it or nobody asks for it.

    A checkpoint can be the best only if its step was evaluated. Early stopping saves at each best evaluation by itself.
    """
    store, saves, every = settings.state_store, settings.state_store.every_steps, settings.evaluation.every
    if not (store.keep_best or (store.archive is not None and store.archive.keep_best)):
        return None
    if not has_documents:
        return "keep_best has no effect, as nothing is evaluated: set data.holdout or evaluation.sets"
    if settings.recovery.early_stopping.rule is not None or not (saves and every) or saves % every == 0:
        return None
    return (
        f"keep_best chooses among checkpoints whose step was evaluated: with state_store.every={saves} and "
        f"evaluation.every={every} these are the multiples of {math.lcm(saves, every):,} and the end of the run; "
        "let evaluation.every divide state_store.every to choose among all"
    )
