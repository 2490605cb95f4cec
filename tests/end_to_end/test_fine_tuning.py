"""A tiny base model is fine-tuned on conversations, and answers as they do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from holdfast.application.training.generate import ReplyEnd, chat_prompt, whole_reply
from holdfast.bootstrap import build
from holdfast.bootstrap.adapter_choice.part_overrides import Around
from holdfast.bootstrap.operations.trained_model import open_trained
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.data.batch import Batch
from holdfast.domain.training.conversation_record import ChatMessage, MessageRole
from holdfast.domain.training.text_generation import Sampling
from holdfast.ports.document_encoder import DocumentEncoder
from tests.support.command_line import losses, run, start, wait_for_step
from tests.support.file_faults import files_under
from tests.support.planted_chats import answer_to, base, fine_tuned, prompts, write_chats, write_plain

HELD_OUT = 100
GREEDY = Sampling(max_new_tokens=16, temperature=0.0)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Train a base model on plain text, and write conversations that hold out a hundred prompts."""
    home = tmp_path_factory.mktemp("chats")
    asked = prompts()
    write_plain(home / "plain.jsonl", asked[HELD_OUT:])
    write_chats(home / "chats.jsonl", asked[HELD_OUT:], times=2)
    build(load_settings([], base(home), {}).settings, monitors=[]).run()
    return home


@pytest.fixture(scope="module")
def model(home):
    return home / "base/checkpoints/checkpoint-100"


@pytest.fixture(scope="module")
def tuned(home, model):
    """Fine-tune the base model without a disturbance."""
    done = run("train", *fine_tuned(home, "tuned", model), cwd=home, timeout=400)
    assert done.returncode == 0, done.stderr
    return home / "tuned"


class Unmasked(DocumentEncoder):
    """Trains on every token but the last of each document."""

    def __init__(self, inner):
        self._inner = inner

    def encode(self, records):
        encoded = self._inner.encode(records)
        mask = np.ones(len(encoded.ids), np.bool_)
        mask[encoded.offsets[1:] - 1] = False
        return replace(encoded, loss_mask=mask)

    def fingerprint(self):
        return f"unmasked {self._inner.fingerprint()}"


def prompt_loss(trained, template):
    """Return the mean loss of the tokens of the prompts that were held out."""
    total, count = 0.0, 0
    for prompt, _ in prompts()[:HELD_OUT]:
        ids = np.array([template.encode([ChatMessage(MessageRole.USER, prompt)])])
        batch = Batch(ids, np.zeros(1, np.int64), np.array([ids.shape[1]]))
        total += float(trained.trainable.evaluate(batch))
        count += batch.num_targets
    return total / count


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_tuned_model_answers_in_the_format_and_stops_by_itself(tuned):
    """At least 95 of 100 prompts that it was not trained on get the planted answer, and the reply ends by itself."""
    trained = open_trained(tuned)
    right = 0
    for prompt, word in prompts()[:HELD_OUT]:
        messages = [ChatMessage(MessageRole.USER, prompt)]
        asked = chat_prompt(trained.trainable, trained.chat_template, messages, GREEDY)
        right += whole_reply(trained.trainable, trained.tokenizer, asked) == (answer_to(word), ReplyEnd.MODEL)
    assert right >= 95


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_exported_model_answers_in_transformers(home, tuned):
    """Plain ``generate`` of transformers writes the planted answers and the end of the turn, and nothing after it."""
    assert run("export", str(tuned), "exported", "--unchecked", cwd=home).returncode == 0
    tokenizer = AutoTokenizer.from_pretrained(home / "exported")
    model = AutoModelForCausalLM.from_pretrained(home / "exported")
    right = 0
    for prompt, word in prompts()[:HELD_OUT]:
        messages = [{"role": "user", "content": prompt}]
        asked = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        out = model.generate(**asked, max_new_tokens=48)[0, asked["input_ids"].shape[1] :]
        right += tokenizer.decode(out) == f"{answer_to(word)}<|im_end|>"
    assert right >= 95


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_that_is_killed_three_times_ends_with_the_same_bytes(home, model, tuned):
    """Killed by SIGKILL at three steps and started again, the run ends with the weights and losses of the other."""
    settings = fine_tuned(home, "killed", model)
    for step in (60, 170, 330):
        process = start("train", *settings, cwd=home)
        wait_for_step(home / "killed", step, process, 200)
        process.kill()
        process.communicate()
    done = run("train", *settings, cwd=home, timeout=400)
    assert done.returncode == 0, done.stderr
    whole, killed = (files_under(folder / "checkpoints/checkpoint-400") for folder in (tuned, home / "killed"))
    weights = [name for name in whole if name.endswith(".safetensors")]
    assert len(weights) > 1
    assert {name: killed[name] for name in weights} == {name: whole[name] for name in weights}
    assert losses(home / "killed") == losses(tuned)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_mask_decides_whether_prompts_are_learned(home, model, tuned):
    """Without a mask the prompts' text is learned, better than before and than with it; with it, it is not trained."""
    settings = load_settings([], fine_tuned(home, "unmasked", model), {}).settings
    build(settings, monitors=[], document_encoder=Around(Unmasked)).run()
    masked = open_trained(tuned)
    template = masked.chat_template
    before, unmasked = open_trained(home / "base"), open_trained(home / "unmasked")
    found = {
        name: prompt_loss(each, template)
        for name, each in (("before", before), ("masked", masked), ("unmasked", unmasked))
    }
    assert found["unmasked"] < found["before"]
    assert found["unmasked"] < found["masked"]
