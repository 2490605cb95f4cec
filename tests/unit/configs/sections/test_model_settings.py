import pytest
from pydantic import ValidationError

from holdfast.configs.sections.model import HuggingFaceModelSettings


@pytest.mark.parametrize("policy", ["none", "full", "every:1", "every:12"])
def test_a_checkpointing_policy_is_taken(policy):
    """none, full and every:N are policies, as they are written."""
    assert HuggingFaceModelSettings(gradient_checkpointing=policy).gradient_checkpointing == policy


@pytest.mark.parametrize("policy", ["every:0", "every:x", "every", "some", "", " full", 2])
def test_another_checkpointing_policy_is_refused(policy):
    """Any other is refused, and those that there are are named."""
    with pytest.raises(ValidationError, match=r"every:N|string"):
        HuggingFaceModelSettings(gradient_checkpointing=policy)


def test_code_is_trusted_by_the_model_s_name_only():
    """trust_remote_code takes nothing but the value of path."""
    assert HuggingFaceModelSettings(path="some/model", trust_remote_code="some/model").trust_remote_code
    for path, trusted in (("some/model", "other/model"), ("some/model", "true"), (None, "some/model")):
        with pytest.raises(ValidationError, match=r"must be the value of model\.path"):
            HuggingFaceModelSettings(path=path, trust_remote_code=trusted)
