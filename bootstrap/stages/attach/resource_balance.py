"""Subscribes the balance of resources: the settings it may change, and the policy that decides."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.adapters.shared.device.host_memory import give_back_freed
from holdfast.adapters.shared.tensor_state.file_parts import unpacked
from holdfast.application.checkpointer import MemoryTier
from holdfast.application.handlers.balance_resources import BalanceResources, ResourceSampler
from holdfast.bootstrap.adapter_choice.plugins import has_methods, load_plugin, make_plugin
from holdfast.bootstrap.adapter_choice.process_group import mesh_of
from holdfast.bootstrap.stages.fit.micro_batch import has_room_beside
from holdfast.configs.sections.state_store import DiskStateStoreSettings
from holdfast.domain.checkpoints.tiers import Hysteresis
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.resources.balance_policy import Balance, BalanceState, Knob, KnobSetting
from holdfast.ports.state_store import StatePart

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.bootstrap.stages.attach.run_parts import RunParts
    from holdfast.configs.sections.recovery import ResourceSettings
    from holdfast.configs.sections.state_store import RetentionSettings
    from holdfast.domain.events import ResourcesAdjusted
    from holdfast.domain.resources.balance_policy import BalancePolicy, Knobs

_SECONDS_BETWEEN_SAMPLES = 0.5
_LEAVE = 0.1  # below the share of memory that is too much: it is enough again
_LONGEST = 4  # times the steps between two checkpoints that the settings ask for: what a failure may cost


def build_balance(parts: RunParts) -> tuple[ResourceSampler, BalanceResources] | None:
    """Return the sampler of the machine and the handler that turns the knobs; None if the settings disable both."""
    if parts.host.resource_probe is None:
        return None
    sampler = ResourceSampler(parts.host.resource_probe, seconds=_SECONDS_BETWEEN_SAMPLES)
    policy, state = load_policy(parts.settings.resources), BalanceState(knobs_of(parts))
    return sampler, BalanceResources(policy, state, parts.opened.inbox, sampler.latest)


def free_unused_memory(event: ResourcesAdjusted) -> None:
    """Return the memory of activations to the system once a smaller micro-batch no longer needs it."""
    if event.knob is Knob.MICRO_BATCH and event.after < event.before:
        give_back_freed()


def load_policy(settings: ResourceSettings) -> BalancePolicy:
    """Return the policy in the settings; raises ``ConfigurationError`` if it cannot be loaded."""
    built_in = {"balance": lambda: Balance(Hysteresis(settings.max_memory, settings.max_memory - _LEAVE))}
    kind = settings.policy
    policy: BalancePolicy = make_plugin(
        "balance",
        kind,
        built_in[kind] if kind in built_in else load_plugin("balance", kind, built_in=built_in),
        settings.policy_options or {},
        is_one=lambda made: has_methods(made, "after_steps", "after_save"),
        otherwise=" without after_steps or after_save",
    )
    return policy


def knobs_of(parts: RunParts) -> Knobs:
    """Return the knobs of the run, with their current values and their limits."""
    settings, feed = parts.settings, parts.feed
    knobs: dict[Knob, KnobSetting] = _saving(settings.state_store)
    if feed.prefetch:
        most = max(feed.prefetch, settings.resources.io_queue_size)
        knobs[Knob.PREFETCH] = KnobSetting(feed.prefetch, feed.prefetch, 1, most)
    if feed.threads:
        most = feed.threads if settings.data.workers else max(feed.threads, feed.max_threads)
        knobs[Knob.THREADS] = KnobSetting(feed.threads, feed.threads, 1, most)
    if parts.model.hardware.get("optimizer.device") == "cpu":  # where activations lie in the host's memory
        mesh = mesh_of(settings.distributed, parts.opened.process_group.size)
        whole = -(-settings.optimizer.num_rows // mesh.data_ranks)
        rows = min(parts.micro_batch, whole)
        knobs[Knob.MICRO_BATCH] = KnobSetting(rows, rows, 1, rows)
    return knobs


def _saving(store: RetentionSettings) -> dict[Knob, KnobSetting]:
    """Return the interval of checkpoints as a knob, unless a change would skip checkpoints that must be kept."""
    if not store.every_steps or store.keep_every or store.keep_best:
        return {}
    return {
        Knob.SAVE_EVERY: KnobSetting(
            store.every_steps, store.every_steps, store.every_steps, store.every_steps * _LONGEST
        )
    }


_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  memory, not a disk


def build_memory_tier(chosen: RetentionSettings, num_ranks: int, is_tight: Callable[[], bool]) -> MemoryTier:
    """Return the tier of a run of ``num_ranks``; raises ``ConfigurationError`` if it is on for several ranks."""
    may_overlap = partial(has_room_beside, chosen.background)
    if num_ranks > 1 and chosen.memory_tier == "on":
        msg = "state_store.memory_tier=on is for one process, and this run has several: set it to auto"
        raise ConfigurationError(msg)
    if num_ranks > 1 or chosen.memory_tier == "off":
        return MemoryTier(may_overlap=may_overlap)
    return MemoryTier(
        may_overlap=may_overlap,
        is_tight=is_tight if chosen.memory_tier == "auto" else _never,
        unpack=lambda snapshot: unpacked(
            [part for part in snapshot.parts if isinstance(part, StatePart)], _scratch_of(chosen)
        ),
    )


def _scratch_of(chosen: RetentionSettings) -> Path:
    if isinstance(chosen, DiskStateStoreSettings) and chosen.encryption is not None:
        return chosen.encryption.scratch
    return _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())


def _never() -> bool:
    return False
