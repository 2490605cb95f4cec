from pathlib import Path

import fsspec
import pytest


@pytest.fixture
def place(request, tmp_path):
    """Return a function that puts a file into a folder of its own and returns its URL."""
    scheme = getattr(request, "param", "local")
    files = fsspec.filesystem(scheme)
    root = f"{tmp_path}/corpus"
    files.makedirs(root, exist_ok=True)

    def put(name: str, content: bytes) -> str:
        files.makedirs(f"{root}/{Path(name).parent}", exist_ok=True)
        files.pipe_file(f"{root}/{name}", content)
        return f"{root if scheme == 'local' else f'{scheme}:/{root}'}/{name}"

    yield put
    if scheme == "memory":
        files.rm(str(tmp_path), recursive=True)
