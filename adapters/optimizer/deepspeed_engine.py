"""A training engine around DeepSpeed's engine."""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from torch.utils.cpp_extension import _get_build_directory, get_default_build_root
from typing_extensions import override

from holdfast.adapters.optimizer.engine import TrainingEngine, check_finite
from holdfast.adapters.optimizer.optimizer_factory import allocate_state
from holdfast.adapters.shared.network.ranks import is_first_rank, world_size
from holdfast.adapters.shared.tensor_state.file_parts import MODEL_FILE
from holdfast.adapters.shared.tensor_state.local_shards import assign, local_slice, shape_of
from holdfast.adapters.shared.tensor_state.optimizer_state import (
    check_finite_state,
    check_same_shapes,
    describe_groups,
    optimizer_parts,
    saved_optimizer,
)
from holdfast.adapters.shared.tensor_state.sharded_tensors import saved_tensors
from holdfast.domain.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
    from holdfast.adapters.shared.tensor_state.local_shards import Slice
    from holdfast.adapters.shared.tensor_state.sharded_tensors import SlicedTensors
    from holdfast.ports.state_store import JoinedPart, OpenFile, StatePart

_COUNTER = "step"


@final
class DeepSpeedEngine(TrainingEngine):
    """Drives ``engine`` by its own methods; ``groups`` are the parameter groups that the optimizer was given.

    DeepSpeed accumulates gradients in buffers of its own and offers no way to clear them, so an update abandoned after
    its first backward cannot be retried: the next update raises ``TrainingError``.
    """

    is_retry_safe = False

    def __init__(
        self,
        engine: Any,  # deepspeed is not typed
        model: CausalLanguageModel,
        groups: Sequence[Mapping[str, Any]],
        names: Mapping[Tensor, str],
        device: torch.device,
    ) -> None:
        super().__init__(engine, model, device)
        self._engine = engine
        self._groups = groups
        self._names = names
        self.is_sharded = world_size() > 1
        self._has_gradients = self._is_spoilt = self._is_stale = False
        self._flat: torch.optim.Optimizer = engine.optimizer.optimizer  # over pieces of long vectors
        self._allocate()

    @override
    def summed_loss(self, inputs: Mapping[str, Tensor], *, last: bool) -> Tensor:
        if self._is_spoilt and torch.is_grad_enabled():
            msg = "an update was abandoned, and DeepSpeed cannot discard the gradients it has accumulated: start again"
            raise TrainingError(msg)
        return super().summed_loss(inputs, last=last)

    @override
    def backward(self, loss: Tensor, *, last: bool) -> None:
        self._has_gradients = True
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss * world_size())  # it averages over ranks

    @override
    def step(self, learning_rate: float, *, number: int) -> Tensor:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self.change(self._engine.step)
        self._has_gradients = False
        norm = torch.as_tensor(self._engine.get_global_grad_norm())
        check_finite(torch.full((), torch.inf) if self._engine.optimizer.overflow else norm)
        return norm

    @override
    def discard(self) -> None:
        self._is_spoilt = self._has_gradients

    @override
    def capture(self, *, copy: bool) -> Sequence[StatePart | JoinedPart]:
        weights = self.model.capture_slices(copy=copy) if self.is_sharded else self.model.capture(copy=copy)
        parts = (*weights, *optimizer_parts(self._state(), sharded=self.is_sharded, copy=copy))
        return (*parts, describe_groups(self._groups, self._names)) if is_first_rank() else parts

    @override
    def restore(self, folder: Path, *, weights_only: bool, open_file: OpenFile) -> None:
        with saved_tensors(folder / MODEL_FILE, open_file) as weights:
            load_weights = self.model.loading(weights)
            if not weights_only:
                with saved_optimizer(folder, open_file) as saved:
                    self._restore_state(saved)
            load_weights()
        self._is_stale = True

    @override
    def ready(self) -> None:
        if not self._is_stale:
            return
        self._is_stale = False  # DeepSpeed refreshes the model's low-precision copy only after a step
        zero = self._engine.optimizer
        if not _is_stage_3(zero):
            zero.update_lp_params()
            return
        zero._partition_all_parameters()  # noqa: SLF001  no public way but a step
        for number in range(len(zero.fp32_partitioned_groups_flat)):
            zero._reassign_or_swap_out_partitioned_parameters(number)  # noqa: SLF001
        if zero.persistent_parameters:
            zero.persistent_parameters[0].all_gather(zero.persistent_parameters)

    def _state(self) -> dict[str, Slice]:
        state, counter = {}, self._counter()
        for parameter, name in self._names.items():
            if counter is not None:
                state[f"{_COUNTER}/{name}"] = local_slice(counter)
            state |= {f"{key}/{name}": local_slice(parameter, key) for key in self._keys()}
        return state

    def _restore_state(self, saved: SlicedTensors) -> None:
        shapes = {f"{key}/{name}": shape_of(p) for p, name in self._names.items() for key in self._keys()}
        if (counter := self._counter()) is not None:
            shapes |= {f"{_COUNTER}/{name}": counter.shape for name in self._names.values()}
        check_same_shapes(shapes, saved.shapes)
        own = {f"{key}/{name}": (p, key) for p, name in self._names.items() for key in self._keys()}
        for name in saved.shapes:  # in the order of the file
            if name in own:
                assign(own[name][0], partial(saved.read, name), own[name][1])
                check_finite_state(name, local_slice(*own[name]).values)
        for state in self._flat.state.values():
            if _COUNTER in state:
                state[_COUNTER].copy_(saved.whole(f"{_COUNTER}/{next(iter(self._names.values()))}"))

    def _keys(self) -> list[str]:
        return [key for key in next(iter(self._flat.state.values())) if key != _COUNTER]

    def _counter(self) -> Tensor | None:
        counter: Tensor | None = next(iter(self._flat.state.values())).get(_COUNTER)
        return counter

    def _allocate(self) -> None:
        """Create the optimizer state that the first step would create, so that it can be captured before that step."""
        zero = self._engine.optimizer
        if _is_stage_3(zero):  # it hands the optimizer one sub-group at a time
            groups = self._flat.param_groups
            kept = [group["params"] for group in groups]
            for number, group in enumerate(groups):
                pieces = enumerate(zero.fp32_partitioned_groups_flat)
                group["params"] = [piece for index, piece in pieces if zero.sub_group_to_group_id[index] == number]
            allocate_state(self._flat)
            for group, parameters in zip(groups, kept, strict=True):
                group["params"] = parameters
        else:
            allocate_state(self._flat)
            zero._lazy_init_hp_params_optimizer_state()  # noqa: SLF001  the link from parameters to their state


def _is_stage_3(zero: Any) -> bool:
    return hasattr(zero, "sub_group_to_group_id")


_log = logging.getLogger(__name__)

LOCK = "lock"
SECONDS_OF_SILENCE = 600.0  # a running compiler writes files more often


def announce_builds(needed: Sequence[str] = (), *, seconds_of_silence: float = SECONDS_OF_SILENCE) -> None:
    """Log why the start may wait: ``needed`` extensions that are not built yet, and locks of builds.

    torch waits forever, and silently, for a lock that a killed build left in its folder (under TORCH_EXTENSIONS_DIR,
    or torch's own). So a lock is removed if no process of this machine has it open and nothing in its folder has
    changed for ``seconds_of_silence``: another machine may build in a shared folder. Each process calls this before it
    builds, so none waits for a lock that another process then removes.
    """
    for name in needed:
        # the folder of this Python and this torch: others may have built it for themselves
        if not any(Path(_get_build_directory(name, verbose=False)).glob("*.so")):
            _log.warning("DeepSpeed builds %s from source before the first step, once: that takes up to minutes", name)
    for lock in sorted(folder / LOCK for folder in _build_folders() if (folder / LOCK).exists()):
        if _has_builder(lock):
            _log.info("another process builds in %s: waiting for it", lock.parent)
        elif _seconds_unchanged(lock.parent) <= seconds_of_silence:
            _log.warning("waiting until %s is gone: if no other machine builds there, delete it", lock)
        elif not _has_builder(lock):  # checked again: another process of this run may have started to build
            lock.unlink(missing_ok=True)
            _log.warning("removed %s, which was left by a build that was killed", lock)


def _build_folders() -> Iterator[Path]:
    """Yield the folders of extensions, as ``torch.utils.cpp_extension`` lays them out."""
    own = os.environ.get("TORCH_EXTENSIONS_DIR")
    return Path(own).glob("*/") if own else Path(get_default_build_root()).glob("*/*/")


def _has_builder(lock: Path) -> bool:
    """Return whether a process of this machine holds ``lock`` open, as torch does while it builds."""
    if not Path("/proc/self/fd").exists():
        return False
    return any(_is_same(opened, lock) for opened in _opened_files())


def _opened_files() -> Iterator[Path]:
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            yield from folder.iterdir()
        except OSError:  # the process has ended, or belongs to another user
            continue


def _is_same(opened: Path, lock: Path) -> bool:
    try:
        return opened.samefile(lock)
    except OSError:
        return False


def _seconds_unchanged(folder: Path) -> float:
    times = [folder.stat().st_mtime]
    for path in folder.iterdir():
        try:
            times.append(path.stat().st_mtime)
        except OSError:  # gone since
            continue
    return time.time() - max(times)
