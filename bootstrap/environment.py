"""What libraries read from the environment when they are imported."""

from __future__ import annotations

import os

_DEFAULTS = {
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "true",
    # How long a thread of libgomp spins at a barrier before it sleeps. With its default a step on two cores takes
    # several times as long while another process keeps one of them busy; on quiet cores this changes nothing.
    "GOMP_SPINCOUNT": "10000000",
}


def set_library_defaults() -> None:
    """Set what the user has not set; only the command line calls this: an embedding host keeps its own environment."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
