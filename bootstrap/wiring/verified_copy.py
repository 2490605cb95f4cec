"""A folder of verified bytes of a checkpoint, for libraries that read files themselves."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.files.file_operations import explain
from holdfast.adapters.shared.tensor_state.file_parts import read_whole
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from holdfast.configs.settings import TrainSettings
    from holdfast.ports.state_store import OpenFile

_TENSORS = ".safetensors"


@final
class VerifiedCopy:
    """The files of a checkpoint but its tensors, such as descriptions and tokenizer; gone with this object.

    A library that opens a file by its name does not hash what it reads: here it finds bytes that were verified as they
    came from the checkpoint. ``scratch``, if given, is a file system in memory.
    """

    def __init__(self, checkpoint: Path, open_file: OpenFile, scratch: Path | None) -> None:
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="holdfast-", dir=scratch))
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
            for path in checkpoint.rglob("*"):
                if path.suffix != _TENSORS and path.is_file():
                    target = self.folder / path.relative_to(checkpoint)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(read_whole(path, open_file))
        except OSError as error:
            msg = f"the description of the model in {checkpoint} cannot be copied to {scratch}, {explain(error)}"
            raise StateError(msg) from error


def scratch_of(settings: TrainSettings) -> Path | None:
    """Return where what was encrypted may lie for a while, None for anywhere."""
    encryption = settings.state_store.encryption
    return None if encryption is None else encryption.scratch
