"""Every key provider keeps the port's promise, and says what is wrong with a key."""

from __future__ import annotations

import base64
import os

import pytest

from holdfast.adapters.key_provider.environment import EnvironmentKeyProvider
from holdfast.adapters.key_provider.file import FileKeyProvider
from holdfast.adapters.key_provider.memory import MemoryKeyProvider
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.testing.key_provider import KeyProviderContract


def key_of(number):
    return bytes([number, 255]) + bytes(range(30))


def base64_of(number):
    return base64.b64encode(key_of(number)).decode()


class TestMemoryKeyProvider(KeyProviderContract):
    @pytest.fixture
    def new(self):
        return lambda first, *old: MemoryKeyProvider(key_of(first), old=list(map(key_of, old)))


class TestEnvironmentKeyProvider(KeyProviderContract):
    @pytest.fixture
    def new(self):
        environment = {f"KEY_{number}": base64_of(number) for number in range(3)}
        return lambda first, *old: EnvironmentKeyProvider(
            environment, f"KEY_{first}", old=[f"KEY_{number}" for number in old]
        )

    @pytest.mark.parametrize(
        ("held", "problem"),
        [
            (None, "is not set"),
            (" \n", "is not set"),
            ("not base64!", "does not hold base64"),
            ("gr\u00fcn", "does not hold base64"),
            ("QUJD", "of 3 bytes"),
            (key_of(0).hex(), "of 48 bytes"),
        ],
    )
    def test_what_is_no_key_is_refused(self, held, problem):
        """A variable that is missing or holds no key is named, and what it holds is not shown."""
        environment = {} if held is None else {"RUN_KEY": held}
        with pytest.raises(ConfigurationError, match=f"RUN_KEY.*{problem}") as refused:
            EnvironmentKeyProvider(environment, "RUN_KEY")
        assert held is None or not held.strip() or held not in str(refused.value)

    def test_an_old_key_that_is_missing_is_named(self):
        """All keys must be there, the old ones too."""
        with pytest.raises(ConfigurationError, match="OLD_KEY"):
            EnvironmentKeyProvider({"RUN_KEY": base64_of(0)}, "RUN_KEY", old=["OLD_KEY"])


class TestFileKeyProvider(KeyProviderContract):
    @pytest.fixture
    def new(self, tmp_path):
        for number in range(3):
            held = key_of(number) if number else f"{base64_of(number)}\n".encode()
            self.write(tmp_path / f"key-{number}", held)
        return lambda first, *old: FileKeyProvider(
            tmp_path / f"key-{first}", old=[tmp_path / f"key-{number}" for number in old]
        )

    def write(self, path, data, mode=0o600):
        path.write_bytes(data)
        path.chmod(mode)
        return path

    @pytest.mark.parametrize(
        ("held", "problem"),
        [
            (b"", "of 0 bytes"),
            (key_of(0)[:31], "does not hold base64"),
            (key_of(0) + b"\n", "does not hold base64"),
            (b"correct horse battery staple 123", "letters"),
            (b"a" * 5000, "of 3072 bytes"),
        ],
    )
    def test_what_is_no_key_is_refused(self, tmp_path, held, problem):
        """A file that holds no key, or letters where random bytes belong, is named."""
        with pytest.raises(ConfigurationError, match=f"run.key.*{problem}"):
            FileKeyProvider(self.write(tmp_path / "run.key", held))

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o644])
    def test_a_file_that_is_open_to_others_is_refused(self, tmp_path, mode):
        """Whatever group or others may do with the file, it is no secret; the message says how to close it."""
        with pytest.raises(ConfigurationError, match="chmod 600"):
            FileKeyProvider(self.write(tmp_path / "run.key", key_of(0), mode))

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
    def test_a_file_of_another_user_is_refused(self, tmp_path):
        """Who owns the file can change the key."""
        path = self.write(tmp_path / "run.key", key_of(0))
        os.chown(path, 12345, -1)
        with pytest.raises(ConfigurationError, match="another user"):
            FileKeyProvider(path)

    def test_what_is_no_file_is_refused(self, tmp_path):
        """A missing file, a folder and a pipe are named, and nothing waits for the pipe."""
        os.mkfifo(tmp_path / "pipe", 0o600)
        for path in (tmp_path / "missing", tmp_path, tmp_path / "pipe"):
            with pytest.raises(ConfigurationError, match=path.name):
                FileKeyProvider(path)
