"""Settings of conversations belong to their task, and conversations are packed whole."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast.configs
from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings_layers import load_settings, restore_settings
from holdfast.domain.errors import ConfigurationError

FOLDER = Path(holdfast.configs.__file__).resolve().parent
CHAT = ("data.task=chat", "data.path=chats.jsonl")


def data_of(*settings: str):
    return load_settings([], settings, {}).settings.data


def test_conversations_are_packed_whole_by_default():
    """Unlike text, records of a task are packed best_fit, and left out if they are too long unless truncate is set."""
    assert (data_of().packing.kind, data_of().packing.overflow) == ("concat", "split")
    assert (data_of(*CHAT).packing.kind, data_of(*CHAT).packing.overflow) == ("best_fit", "drop")
    assert data_of(*CHAT, "data.packing.overflow=truncate").packing.kind == "best_fit"


def test_settings_of_a_chat_are_read_back_as_they_were():
    """What a run folder stores gives the same settings, the chosen packing included."""
    settings = load_settings([], [*CHAT, "data.chat.template_options={enable_thinking: false}"], {}).settings
    assert restore_settings(dump_settings(settings)) == settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["data.chat.reasoning=drop"], "chat belongs to data.task=chat or preference, but data.task is text"),
        (["data.task=chat"], "data.kind=python_library has no such records"),
        (["data.task=chat", "data.kind=tokens", "data.path=a.npy"], "data.kind=tokens has no such records"),
        ([*CHAT, "data.holdout_by=similar_documents"], "compares plain texts, but data.task is chat: leave it out"),
        ([*CHAT, "data.packing.kind=concat"], "packing cuts records in two by kind=concat"),
        ([*CHAT, "data.packing.overflow=split"], "overflow=split"),
        ([*CHAT, "data.transforms=[normalize]"], "transforms change plain text"),
        ([*CHAT, "data.chat.template_date=soon"], "write a day such as 2024-07-26"),
        ([*CHAT, "data.chat.train_on=user"], "data.chat.train_on"),
        (["tokenizer.special_tokens=[<a>,<a>]"], "names a token twice"),
        (["tokenizer.special_tokens=<|endoftext|>"], "which is always there"),
    ],
)
def test_settings_without_effect_or_sense_are_refused(settings, words):
    """The message says which settings contradict each other, and what to do."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings([], settings, {})
    assert words in str(caught.value)


def test_a_day_may_be_written_without_quotes():
    """YAML reads an unquoted day as a date, which means the same."""
    assert data_of(*CHAT, "data.chat.template_date=2031-02-03").chat.template_date == "2031-02-03"


@pytest.mark.parametrize("name", ["chat_lora", "chat_full"])
def test_the_configurations_for_chats_are_valid(name):
    """Each loads by itself, and trains on conversations for a number of epochs, not of steps."""
    settings = load_settings([FOLDER / f"{name}.yaml"], [], {}).settings
    assert (settings.data.task, settings.data.packing.kind) == ("chat", "best_fit")
    assert (settings.model.lora is not None) == (name == "chat_lora")
    assert (settings.data.epochs, settings.run.budget.steps) == (3, None)
