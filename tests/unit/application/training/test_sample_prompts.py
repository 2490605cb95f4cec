from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.adapters.process_group.memory import MemoryProcessGroup
from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.application.training.generate import PromptSampler, generate
from holdfast.domain.events import EvaluationCompleted, StepCompleted, TextGenerated
from holdfast.domain.training.text_generation import GeneratedText, Sampling
from tests.support.loop import TOKENIZER, Loop
from tests.support.streams import NOTHING_HELD_OUT

PROMPTS = ("Row,", "A stitch")


def sampler_of(trainable, *, prompts=PROMPTS, group=None, **options):
    return PromptSampler(trainable, TOKENIZER, prompts, Sampling(6, seed=5), group or SingleProcessGroup(), **options)


def test_each_prompt_has_a_seed_of_its_own():
    """The texts are those of ``generate`` with the seeds from that of the settings on, without the prompts."""
    trainable = Loop().trainable
    texts = sampler_of(trainable).run()
    expected = [generate(trainable, TOKENIZER, prompt, Sampling(6, seed=5 + at)) for at, prompt in enumerate(PROMPTS)]
    assert [each.prompt + each.text for each in texts] == expected
    assert [each.seed for each in texts] == [5, 6]
    assert texts == sampler_of(trainable).run()


class Tagged:
    """A chat template whose ids are the bytes of its messages; byte 10 ends a reply."""

    ends = frozenset({TOKENIZER.end_of_text, 10})

    def encode(self, messages):
        return list("".join(f"{message.role}:{message.text}\n" for message in messages).encode())


class SaysB:
    """A model that replies with one letter and an end, if there is room for it."""

    num_positions = None

    def generate(self, prompt, sampling, *, end_of_text):
        return [ord("b")][: sampling.max_new_tokens]


def test_prompts_of_chats_are_shown_as_the_model_reads_them():
    """A prompt is the text of the template, and its text the reply with what ended it."""
    (text,) = sampler_of(SaysB(), prompts=["Row"], template=Tagged()).run()
    assert text == GeneratedText("user:Row\n", "b\n", 5)


def test_a_stop_ends_the_texts():
    """Prompts after a request to stop are left out."""
    answers = iter([False, True])
    assert len(sampler_of(Loop().trainable).run(should_stop=lambda: next(answers))) == 1


class Failing:
    num_positions = None

    def generate(self, prompt, sampling, *, end_of_text):
        msg = "no room"
        raise MemoryError(msg)


def test_an_error_is_told_and_ends_nothing():
    """A text that cannot be generated is one sentence, and the texts before it stay."""
    told = []
    assert sampler_of(Failing(), report=told.append).run() == []
    assert told == ["no sample of the prompt 'Row,' can be written: MemoryError: no room"]


def test_an_error_on_several_ranks_is_raised():
    """A rank that cannot generate must not leave the others to wait for it."""
    groups = MemoryProcessGroup.linked(2)

    def fails(group):
        with pytest.raises(MemoryError, match="no room"):
            sampler_of(Failing(), group=group).run()
        return True

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(fails, groups)) == [True, True]


@pytest.mark.parametrize("prompts", [PROMPTS, ()])
def test_texts_change_nothing_in_training(prompts):
    """A run with prompts has the losses, evaluations and parameters of one without, bit for bit."""
    plain = Loop(evaluate_every=2, evaluate_at_start=True)
    plain.run()
    loop = Loop(evaluate_every=2, evaluate_at_start=True, prompts=prompts)
    loop.run()
    kinds = (StepCompleted, EvaluationCompleted)
    expected, found = (
        [figures_of(each) for each in one.bus.published if isinstance(each, kinds)] for one in (plain, loop)
    )
    assert found == expected
    assert loop.state == plain.state
    texts = [event for event in loop.bus.published if isinstance(event, TextGenerated)]
    assert [event.progress.step for event in texts] == ([0, 2, 4, 6, 8] if prompts else [])
    assert all([type(text) for text in event.samples] == [GeneratedText] * 2 for event in texts)


def test_prompts_need_no_held_out_documents():
    """A run that holds out nothing writes its texts and has no evaluation."""
    loop = Loop(evaluate_every=4, prompts=PROMPTS, holdout=NOTHING_HELD_OUT)
    loop.run()
    kinds = [type(event) for event in loop.bus.published]
    assert kinds.count(TextGenerated) == 2
    assert EvaluationCompleted not in kinds


def figures_of(event):
    if isinstance(event, EvaluationCompleted):
        return event
    return event.progress, event.outcome.loss, float(event.outcome.grad_norm)
