"""The checks of ``doctor`` for each configuration that ships, as far as they need neither a GPU nor the internet."""

from pathlib import Path

import pytest

import holdfast.configs
from holdfast.bootstrap.doctor import diagnosis
from holdfast.bootstrap.doctor.finding import CheckVerdict
from holdfast.configs.settings_layers import load_settings
from tests.support.planted_troubles import FACTS

SHIPPED = sorted(Path(holdfast.configs.__file__).resolve().parent.glob("*.yaml"))


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_no_check_fails_on_a_configuration_that_ships(file, tmp_path, monkeypatch):
    """Each check ends with a finding of its own, and each problem has a remedy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    facts = {**FACTS, "device": "cuda", "gpus": [{"name": "NVIDIA H200", "bytes": 141e9, "capability": [9, 0]}] * 8}
    monkeypatch.setattr(diagnosis, "probe_torch", lambda *_: {**facts, "device_reason": "the best device available"})
    settings = load_settings([file], [f"run.cache_dir={tmp_path / 'cache'}"], {}).settings
    findings = diagnosis.diagnose(settings, 20.0)
    assert not [finding for finding in findings if "the check failed" in finding.detail]
    assert not [finding for finding in findings if (finding.verdict is CheckVerdict.OK) is bool(finding.remedy)]
    assert "GPU 7" in {finding.name for finding in findings}
    assert {"run folder", "clock"} <= {finding.name for finding in findings}
