"""Settings written as options are settings."""

import pytest

from holdfast.bootstrap.cli.main import main
from holdfast.configs.option_form import as_settings


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--optimizer.clip=2"], ["optimizer.clip=2"]),
        (["--optimizer.clip", "2", "run.seed=3"], ["optimizer.clip=2", "run.seed=3"]),
        (["--sample.temperature", "-1"], ["sample.temperature=-1"]),
        (["--data.sequence-length=64"], ["data.sequence_length=64"]),
        (["--config", "a.b.yaml", "--fresh"], ["--config", "a.b.yaml", "--fresh"]),
        (["--run.deterministic", "--run.seed", "3"], ["run.deterministic", "run.seed=3"]),
        (["--run.seed"], ["run.seed"]),
    ],
)
def test_an_option_with_the_name_of_a_setting_is_that_setting(given, meant):
    """As other trainers write it, with or without an equals sign; what has no value is left to be told."""
    assert as_settings(given) == meant


def test_options_and_settings_set_the_same(capsys):
    """The command line takes both forms beside each other."""
    assert main(["config", "--optimizer.learning_rate=1e-4", "run.seed=7", "--data.sequence_length", "64"]) == 0
    shown = capsys.readouterr().out
    for line in ("learning_rate: 0.0001", "seed: 7", "sequence_length: 64"):
        assert f"{line}  # command line" in shown


def test_an_unknown_option_says_how_settings_are_written(capsys):
    """An option without a section is refused with the setting that it may mean."""
    with pytest.raises(SystemExit, match="2"):
        main(["config", "--learning_rate", "1e-4"])
    assert "settings are written key.path=value, such as optimizer.learning_rate=" in capsys.readouterr().err
