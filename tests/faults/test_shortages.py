"""Memory that runs out anywhere in a step: torch raises what it would, and nothing but rounding changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.optimizer import engine as wrapped
from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.domain.checkpoints.reproducibility import Reproducibility
from holdfast.domain.commands import StopRun
from holdfast.domain.errors import OutOfMemory, RestartNeeded
from holdfast.domain.events import BatchSplit, EvaluationCompleted, MemoryExhausted, StepCompleted
from tests.support.loop import Loop

STEPS, SAVE_EVERY = 8, 2
PHASES = ("forward", "backward", "later part", "clipping", "optimizer")
LLAMA = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 8,
}


class Shortage:
    """Raises what torch raises, ``times`` times, in a phase of a step: hooks of torch call ``reach`` with the phase."""

    def __init__(self, phase="", step=0, *, times=1):
        self.phase = phase
        self.step = step
        self.times = times
        self.now = self.part = 0

    def begin_part(self, step, _):
        """Take note of where the run is."""
        self.now, self.part = step, self.part + 1 if step == self.now else 1

    def reach(self, *phases):
        """Raise if it is time."""
        if self.times and self.phase in phases and self.now == self.step:
            self.times -= 1
            msg = "CUDA out of memory. Tried to allocate 2.00 GiB."
            raise torch.OutOfMemoryError(msg)


@pytest.fixture
def begin(monkeypatch):
    """Return what makes a run of a small Llama as a new process would, short of memory where ``shortage`` says."""
    handles = []

    def make(shortage=None, **changes):
        shortage = shortage or Shortage()
        model = HuggingfaceModelFactory(config=LLAMA | changes.pop("model", {})).build(
            vocabulary_size=257, end_of_text=256, seed=1
        )
        layer = model.network.model.layers[1]

        def on_forward(module, _):
            if not module.training:
                shortage.reach("evaluation")
            else:
                shortage.reach("forward", *(["later part"] if shortage.part > 1 else []))

        def on_step(optimizer, *_):
            if shortage.phase == "optimizer" and shortage.times and shortage.now == shortage.step:
                optimizer.param_groups[0]["params"][0].data.add_(1.0)  # some parameters have moved
            shortage.reach("optimizer")

        def clip(*arguments):
            shortage.reach("clipping")
            return torch.nn.utils.clip_grads_with_norm_(*arguments)

        monkeypatch.setattr(wrapped, "clip_grads_with_norm_", clip)
        layer.register_forward_pre_hook(on_forward)
        layer.register_full_backward_hook(lambda *_: shortage.reach("backward"))
        handles.append(register_optimizer_step_pre_hook(on_step))
        trainable = AccelerateOptimizer(device="cpu", precision="fp32").prepare(model)
        loop = Loop(inner=trainable, peak=1e-3, micro_batch=2, save_every=SAVE_EVERY, evaluate_every=4, **changes)
        loop.trainable.before_part = shortage.begin_part
        return loop

    yield make
    for handle in handles:
        handle.remove()


@pytest.fixture(scope="module")
def undisturbed():
    """Return losses, rows and evaluations by step of the run that memory suffices for."""
    known = {}

    def of(begin):
        if not known:
            loop = begin()
            loop.run()
            known.update(zip(("losses", "evaluations"), figures_of([loop]), strict=True), rows=loop.rows)
        return known

    return of


def figures_of(loops):
    """Return the losses and evaluations of the steps of one run in several processes, the last word counting."""
    losses, evaluations = {}, {}
    for loop in loops:
        losses |= {event.progress.step: event.outcome.loss for event in loop.published(StepCompleted)}
        evaluations |= {event.progress.step: event.evaluation.loss for event in loop.published(EvaluationCompleted)}
    return losses, evaluations


def assert_alike(loops, known):
    """Compare a run in several processes with the undisturbed one: equal rows, figures within 1e-5."""
    losses, evaluations = figures_of(loops)
    assert losses.keys() == known["losses"].keys() == set(range(1, STEPS + 1))
    assert evaluations.keys() == known["evaluations"].keys()
    for found, expected in ((losses, known["losses"]), (evaluations, known["evaluations"])):
        np.testing.assert_allclose([found[step] for step in expected], [*expected.values()], rtol=1e-5)
    assert {step: rows for loop in loops for step, rows in loop.rows.items()} == known["rows"]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_memory_may_run_out_anywhere(step, phase, begin, undisturbed):
    """Wherever memory runs out, the run ends with the losses and rows of the undisturbed one, in smaller parts."""
    known = undisturbed(begin)
    loops = [begin(Shortage(phase, step))]
    try:
        loops[0].run()
    except RestartNeeded:
        loops.append(begin(store=loops[0].store, known=loops[0].kept[-1]))
        loops[1].run()
    assert len(loops) == (2 if phase == "optimizer" and step <= SAVE_EVERY else 1)  # there was nothing to go back to
    assert_alike(loops, known)
    assert [event.micro_batch for event in loops[0].published(MemoryExhausted)] == [2]
    sizes = {event.progress.step: event.outcome.micro_batch for event in loops[-1].published(StepCompleted)}
    assert {rows for number, rows in sizes.items() if number >= step} == {1}
    assert phase == "optimizer" or {rows for number, rows in sizes.items() if number < step} <= {2}


@pytest.mark.parametrize("step", [1, 3, 7])
def test_the_first_step_after_a_resume_may_run_short(step, begin, undisturbed):
    """A run that was stopped and goes on into a shortage ends as the undisturbed one."""
    known = undisturbed(begin)
    first = begin()
    first.at_step(step, lambda: first.inbox.post(StopRun("enough")))
    first.run()
    second = begin(Shortage("backward", step + 1), store=first.store)
    second.run()
    assert [event.progress.step for event in second.published(MemoryExhausted)] == [step]
    assert_alike([first, second], known)


@pytest.mark.parametrize("times", [1, 2])
def test_an_evaluation_may_run_short(times, begin, undisturbed):
    """An evaluation that runs out of memory measures the same in fewer rows, and training stays as it was."""
    loop = begin(Shortage("evaluation", 4, times=times))
    loop.run()
    assert_alike([loop], undisturbed(begin))
    assert loop.published(BatchSplit) == []


def test_memory_that_does_not_suffice_for_a_row_ends_the_run_with_a_checkpoint(begin):
    """Where not even one row fits, the last complete step is saved, and what is raised names the shortage."""
    loop = begin(Shortage("backward", 4, times=9))
    with pytest.raises(OutOfMemory, match=r"1 rows: CUDA out of memory.*gradient_checkpointing=full"):
        loop.run()
    assert loop.store.list()[-1].progress.step == 3


def test_a_run_with_dropout_says_that_it_is_equal_but_for_rounding(begin):
    """With dropout the parts draw other numbers; the checkpoints behind the shortage promise no bits."""
    loop = begin(Shortage("forward", 3), model={"attention_dropout": 0.1})
    loop.run()
    assert [info.contract for info in loop.store.list()] == [Reproducibility.BITWISE] + [Reproducibility.NUMERICAL] * 3
