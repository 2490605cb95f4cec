"""Hands a job file to the client program of its scheduler."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.domain.errors import ConfigurationError, TrainingError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CLIENTS: Mapping[str, Sequence[str]] = {
    "slurm": ("sbatch",),
    "kubernetes": ("kubectl", "apply", "-f"),
    "ray": ("kubectl", "apply", "-f"),
    "skypilot": ("sky", "jobs", "launch", "--yes"),
}


def client_of(kind: str, variables: Sequence[str] = ()) -> list[str]:
    """Return the words of the command that takes a job file of ``kind`` whose job needs ``variables`` with secrets.

    SkyPilot passes on only those that its command names; other programs pass on all, or none. Raises
    ``ConfigurationError`` if there is no such command, or if its program is not installed here.
    """
    if kind not in _CLIENTS:
        msg = f"{kind} has no scheduler to submit a job to: leave out --submit, and run the printed lines"
        raise ConfigurationError(msg)
    client = _CLIENTS[kind]
    if shutil.which(client[0]) is None:
        msg = f"--submit needs the program {client[0]}, which is not on the PATH: install it, or leave out --submit"
        raise ConfigurationError(msg)
    named = [word for name in variables for word in ("--secret", name)] if kind == "skypilot" else []
    return [*client, *named]


def submit(client: Sequence[str], text: str, suffix: str) -> None:
    """Give the job file ``text`` to ``client``, which prints to the streams of this process.

    Raises ``TrainingError`` if the client fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"job{suffix}")
        path.write_text(text, encoding="utf-8")
        code = subprocess.run([*client, str(path)], check=False).returncode  # noqa: S603  a scheduler's own program
    if code:
        msg = f"{' '.join(client)} ended with code {code}, so the job may not have been submitted"
        raise TrainingError(msg)
