"""Who wrote a line of the audit."""

from __future__ import annotations

import json
import os
import platform
import pwd

import pytest

from holdfast.bootstrap.run_folder.run_audit import Audit


@pytest.mark.parametrize("name", ["LOGNAME", "USER", "LNAME", "USERNAME"])
def test_the_environment_does_not_say_who_wrote(tmp_path, monkeypatch, name):
    """An entry names the user whose process wrote it, whatever its environment claims."""
    monkeypatch.setenv(name, "somebody-else")
    Audit(tmp_path).record("TextGenerated", {})
    (line,) = (tmp_path / "audit.jsonl").read_text().splitlines()
    by = {"user": pwd.getpwuid(os.getuid()).pw_name, "host": platform.node()}
    assert json.loads(line)["details"]["by"] == by
