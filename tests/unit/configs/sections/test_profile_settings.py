import pytest
from pydantic import ValidationError

from holdfast.configs.sections.decoder import DecoderModelSettings
from holdfast.configs.sections.model import HuggingFaceModelSettings
from holdfast.configs.sections.monitors import ProfileSettings
from holdfast.configs.settings import TrainSettings


def test_steps_are_a_first_one_and_the_end():
    """profile.steps is FIRST:END, and null profiles nothing."""
    assert ProfileSettings(steps="10:20").bounds == (10, 20)
    assert ProfileSettings().bounds is None


@pytest.mark.parametrize("steps", ["", "10", "0:5", "5:5", "6:5", "-1:5", "1:2:3", "a:b", "1.0:2"])
def test_other_steps_are_refused(steps):
    """What is no range of steps is refused with an example of one."""
    with pytest.raises(ValidationError, match="such as 10:20"):
        ProfileSettings(steps=steps)


def test_steps_behind_the_end_of_the_run_are_refused():
    """A profile that the run's budget ends before is refused, as it would never be written."""
    tree = {"run": {"budget": {"steps": 9}}, "profile": {"steps": "10:20"}}
    with pytest.raises(ValidationError, match=r"run\.budget\.steps ends the run at step 9"):
        TrainSettings(**tree)
    assert TrainSettings(**{**tree, "run": {"budget": {"steps": 10}}}).profile.bounds == (10, 20)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(HuggingFaceModelSettings, {"config": {"model_type": "llama"}}), (DecoderModelSettings, {})],
)
def test_a_mode_of_compiling_is_one_of_torch_s(kind, options):
    """model.compile is auto, none or a mode of torch.compile, for both kinds of model; another is refused."""
    for mode in ("auto", "none", "default", "reduce-overhead", "max-autotune"):
        assert kind(**options, compile=mode).compile == mode
    with pytest.raises(ValidationError, match="max-autotune"):
        kind(**options, compile="fast")
