"""The compute threads of a run that trains on the CPU."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from holdfast.adapters.shared.device.cpu_count import allowed_cpus, usable_cpus
from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.domain.resources.spin_policy import SPIN_COUNT, Spinning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.ports.state_store import StateStore


@contextmanager
def threads_of_processor(device: str | None, store: StateStore) -> Iterator[None]:
    """Within the block, give a run on the CPU the threads that it may use, and have them yield to other processes."""
    with ExitStack() as stack:
        if device == "cpu":
            recorded = ""
            if usable_cpus() < allowed_cpus() and (stored := store.list()):
                recorded = stored[-1].conditions.get("threads", "")
            stack.enter_context(lazy("holdfast.adapters.shared.device.openmp:threads_of_run")(recorded))
            if os.environ.get("GOMP_SPINCOUNT", SPIN_COUNT) == SPIN_COUNT and "OMP_WAIT_POLICY" not in os.environ:
                stack.enter_context(lazy("holdfast.adapters.shared.device.openmp:spinning_by_load")(Spinning()))
        yield
