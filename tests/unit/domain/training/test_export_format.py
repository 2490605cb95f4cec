from __future__ import annotations

import pytest

from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.export_format import FORMATS, ExportFormat, Sparsity


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_read_as_they_are_written(name):
    """Each name of a format stands for a format that is written in the same way."""
    assert str(ExportFormat.parse(name)) == name


@pytest.mark.parametrize("name", ["gguf", "gguf:q2_k", "torchao", "huggingface:int8", ""])
def test_other_formats_are_refused(name):
    """A format that does not exist is refused with those that do."""
    with pytest.raises(ConfigurationError, match=r"choose one of huggingface, huggingface:bf16, .* torchao:fp8"):
        ExportFormat.parse(name)


@pytest.mark.parametrize("text", ["2:4", "0.5", "0.25"])
def test_sparsity_is_read_as_it_is_written(text):
    """A sparsity is written as it was read."""
    assert str(Sparsity.parse(text)) == text


@pytest.mark.parametrize("text", ["0", "1", "1:4", "half", "nan", "-0.5"])
def test_other_sparsity_is_refused(text):
    """Only 2:4 and shares between 0 and 1 are a sparsity."""
    with pytest.raises(ConfigurationError, match="make it 2:4, or a share between 0 and 1"):
        Sparsity.parse(text)
