import os
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


@pytest.fixture
def clean_aws_environment(monkeypatch, tmp_path):
    """Hide the AWS and proxy settings of the machine."""
    for name in os.environ:
        if name.startswith("AWS_") or name.lower().endswith(("_proxy", "ca_bundle")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    files = fsspec.get_filesystem_class("s3")
    files.clear_instance_cache()
    yield
    files.clear_instance_cache()
