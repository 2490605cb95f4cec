import json
import math

import pytest

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.data.text_reader import TextReader
from holdfast.bootstrap.stages.build.evaluation_sets import prompts_of, sampling_of, source_numbers
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.text_generation import Sampling
from tests.support.encoders import BYTES


def reader_of(text):
    return TextReader(MemoryDataSource({"a": [text]}), BYTES, RejectedRecords("stop"))


def data_of(**sources):
    files = {name: {"kind": "files", "path": "x", **more} for name, more in sources.items()}
    return load_settings([], ["data.kind=mixture", f"data.sources={json.dumps(files)}"], {}).settings.data


def between(low, high):
    return {"score": {"name": "quality", "min": low, "max": high}}


def test_each_reader_is_a_source():
    """Sources with documents of their own are numbered as their readers."""
    numbers = source_numbers([reader_of("one"), reader_of("two")], data_of(a={}, b={}))
    assert numbers(0, [{}, {}]).tolist() == [0, 0]
    assert numbers(1, [{}]).tolist() == [1]


def test_ranges_of_the_same_documents_are_told_apart_by_their_scores():
    """A document is of the first source whose range holds its score, and of none if none does."""
    same = reader_of("one")
    data = data_of(a=between(0.8, None), b=between(0.2, 0.8), c={}, d=between(0.5, 0.9))
    numbers = source_numbers([same, same, reader_of("two"), same], data)
    scores = [{"quality": value} for value in (0.9, 0.8, 0.5, 0.2, 0.1, math.nan)]
    assert numbers(0, [*scores, {}]).tolist() == [0, 0, 1, 1, -1, -1, -1]
    assert numbers(1, [{}]).tolist() == [2]


def evaluation_of(*settings):
    return load_settings([], list(settings), {}).settings.evaluation


def test_prompts_come_from_the_settings_and_their_file(tmp_path):
    """The lines of the file follow the list, without empty ones."""
    (tmp_path / "prompts.txt").write_text("Once upon\n\n  def f\nü\n", encoding="utf-8")
    evaluation = evaluation_of("evaluation.prompts=[first]", f"evaluation.prompts_file={tmp_path / 'prompts.txt'}")
    assert prompts_of(evaluation) == ["first", "Once upon", "  def f", "ü"]
    assert list(prompts_of(evaluation_of())) == []


@pytest.mark.parametrize(("content", "told"), [(None, "No such file"), (b"\xff\xfe", "not UTF-8")])
def test_an_unreadable_file_of_prompts_is_named(tmp_path, content, told):
    """A file that is missing or no text ends the start with its path and the reason."""
    path = tmp_path / "prompts.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=told) as refusal:
        prompts_of(evaluation_of(f"evaluation.prompts_file={path}"))
    assert str(path) in str(refusal.value)


def test_the_sampling_is_that_of_the_settings():
    """Greedy texts, their length and their seed come from the settings."""
    chosen = ("evaluation.sampling.temperature=0", "evaluation.sampling.max_new_tokens=3", "evaluation.sampling.seed=9")
    assert sampling_of(evaluation_of(*chosen)) == Sampling(3, 0.0, 50, seed=9)
