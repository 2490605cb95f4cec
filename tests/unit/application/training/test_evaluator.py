import math
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import numpy as np
import pytest

from holdfast.adapters.model_factory.memory import MemoryModelFactory
from holdfast.adapters.optimizer.memory import MemoryOptimizer
from holdfast.adapters.process_group.memory import MemoryProcessGroup
from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.application.data.holdout_batches import HoldoutBatches
from holdfast.application.training.evaluator import Evaluator
from holdfast.domain.data.holdout import Holdout
from holdfast.domain.data.packing import ConcatPacking
from holdfast.domain.errors import DataError, OutOfMemory
from holdfast.domain.phase import Amount
from tests.support.encoders import CAPITALS
from tests.support.loop import FaultyTrainable
from tests.support.streams import Plan, groups_of
from tests.support.streams import held_out_of as held_out_by

UNITS = {"a": [f"text number {number}" for number in range(20)], "b": ["ä" * 30, "Ω" * 11]}
PLAN = Plan(length=10, rows=4, seed=1)


def held_out_of(units=UNITS, *, fraction=1.0, max_tokens=10**6, plan=PLAN):
    return held_out_by(units, plan, Holdout(fraction, seed=1), max_tokens)


def trainable_of(max_rows=None):
    model = MemoryModelFactory().build(vocabulary_size=257, end_of_text=256, seed=1)
    return MemoryOptimizer(max_rows=max_rows).prepare(model)


def evaluator_of(trainable, held_out=None):
    return Evaluator(trainable, held_out or held_out_of(), MemoryTokenizer(), SingleProcessGroup())


def texts_in(held_out):
    tokens = [token for batch in held_out.batches for token in batch.input_ids[batch.document_ids >= 0].tolist()]
    return bytes(token if token < 256 else 10 for token in tokens).decode().splitlines()


def test_what_is_held_out_is_what_the_holdout_chooses():
    """The batches hold the chosen documents, each once, and no other."""
    chosen = [text for unit in UNITS.values() for text in unit if Holdout(0.5, seed=1).holds_text(text)]
    assert 0 < len(chosen) < 22
    assert sorted(texts_in(held_out_of(fraction=0.5))) == sorted(chosen)


@pytest.mark.parametrize("max_tokens", [1, 10, 37, 40, 41])
def test_no_more_tokens_are_held_out_than_asked_for(max_tokens):
    """A limit cuts the set at exactly so many tokens, and what is left is a beginning of the whole."""
    whole, cut = held_out_of(), held_out_of(max_tokens=max_tokens)
    tokens = [
        np.concatenate([batch.input_ids[batch.document_ids >= 0] for batch in held_out.batches])
        for held_out in (whole, cut)
    ]
    assert len(tokens[1]) == max_tokens
    assert tokens[1].tolist() == tokens[0][:max_tokens].tolist()
    assert {batch.num_rows for batch in cut.batches[:-1]} <= {PLAN.rows}


def test_batches_are_made_once():
    """All evaluations of a run measure the same batches."""
    held_out = held_out_of()
    assert held_out.batches is held_out.batches


def test_nothing_held_out_is_an_error_that_names_the_setting():
    """An evaluation on no document is refused in words that say what to change."""
    with pytest.raises(DataError, match=r"data\.holdout"):
        _ = held_out_of(fraction=0.0).batches


def test_a_bad_record_is_not_taken_for_nothing_held_out():
    """A record that cannot be read is reported as such, even before any document was held out."""
    with pytest.raises(DataError, match="document 1"):
        _ = held_out_of({"a": ["short", 1]}).batches


def test_an_evaluation_sums_over_all_targets():
    """Nats, targets and bytes are those of the batches: bytes leave end-of-text and first tokens out."""
    trainable, held_out = trainable_of(), held_out_of()
    evaluation = evaluator_of(trainable, held_out).run()
    targets = np.concatenate([batch.input_ids[batch.loss_mask] for batch in held_out.batches])
    assert evaluation.nats == pytest.approx(sum(trainable.evaluate(batch) for batch in held_out.batches), rel=1e-12)
    assert evaluation.num_targets == len(targets)
    assert evaluation.num_bytes == np.count_nonzero(targets < 256)
    assert evaluation.loss == pytest.approx(math.log(257), rel=0.1)


@pytest.mark.parametrize("max_rows", [1, 2, 3])
def test_an_evaluation_halves_its_rows_until_they_fit(max_rows):
    """A shortage of memory changes no figure, and the next batches are measured in rows that fit at once."""
    plenty = evaluator_of(trainable_of()).run()
    trainable = FaultyTrainable(trainable_of(max_rows))
    tried = []
    trainable.before_evaluation = lambda batch: tried.append(batch.num_rows)
    evaluation = evaluator_of(trainable).run()
    assert evaluation.nats == pytest.approx(plenty.nats, rel=1e-12)
    assert (evaluation.num_targets, evaluation.num_bytes) == (plenty.num_targets, plenty.num_bytes)
    assert tried.count(4) == 1


def test_an_evaluation_that_does_not_fit_row_by_row_is_an_error():
    """A shortage at one row ends the evaluation."""
    trainable = FaultyTrainable(trainable_of())

    def refuse(batch):
        msg = "no room"
        raise OutOfMemory(msg)

    trainable.before_evaluation = refuse
    with pytest.raises(OutOfMemory):
        evaluator_of(trainable).run()


def test_an_evaluation_can_be_given_up_between_batches():
    """An evaluation that should stop returns nothing rather than the figures of a part."""
    answers = iter([False, False, True])
    assert evaluator_of(trainable_of()).run(should_stop=lambda: next(answers)) is None


def masked(text, max_tokens):
    """Return the first tokens of a held-out text of which the small letters are no targets."""
    return held_out_of({"a": [text]}, max_tokens=max_tokens, plan=PLAN.with_(encoder=CAPITALS))


@pytest.mark.parametrize("held_out", [held_out_of({"a": ["x"]}, max_tokens=1), masked("a" * 40 + "B", 25)])
def test_documents_without_targets_have_no_figure(held_out):
    """An evaluation without any target returns nothing and says so once, or is refused."""
    said = []
    evaluator = Evaluator(trainable_of(), held_out, MemoryTokenizer(), SingleProcessGroup(), report=said.append)
    with pytest.raises(DataError, match=r"none of the .* held out holds a token that the model is to predict"):
        evaluator.run(refuse_empty=True)
    assert evaluator.run() is evaluator.run() is None
    assert len(said) == 1


def test_rows_without_a_target_are_counted():
    """Of an evaluation that has targets, the rows without one are said."""
    said = []
    held_out = masked("a" * 20 + "BIG" + "b" * 20, 40)
    Evaluator(trainable_of(), held_out, MemoryTokenizer(), SingleProcessGroup(), report=said.append).run(
        refuse_empty=True
    )
    without = sum(not row.any() for batch in held_out.batches for row in batch.loss_mask)
    assert without
    [sentence] = said
    assert sentence.startswith(f"warning: {without} of the {sum(batch.num_rows for batch in held_out.batches)} rows")


def test_targets_that_are_no_text_have_no_bits_per_byte():
    """Without a byte of text among the targets, bits per byte are no figure rather than those of one byte."""
    evaluation = evaluator_of(trainable_of(), held_out_of({"a": ["x"]})).run()  # the end of the text alone
    assert evaluation.num_targets == 1
    assert list(evaluation.metrics) == ["eval_loss"]
    assert evaluation.words(3) == [f"{evaluation.loss:.3f} nats/token"]


def test_reading_what_is_held_out_can_be_given_up():
    """Who is asked to stop while the documents are read, which may hang, does not wait for them."""
    may_go_on = threading.Event()

    class Hanging:
        def __iter__(self):
            may_go_on.wait(60)
            return iter(())

    held_out = HoldoutBatches(Hanging(), Holdout(1.0, seed=1), ConcatPacking(10), rows=4, max_tokens=100)
    try:
        assert evaluator_of(trainable_of(), held_out).run(should_stop=lambda: True) is None
    finally:
        may_go_on.set()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_an_evaluation_shows_its_share(is_stopped):
    """The share that is done rises from 0 and is gone from the screen at the end, also of one that was given up."""
    shown, held_out = [], held_out_of()
    evaluator = Evaluator(
        trainable_of(),
        held_out,
        MemoryTokenizer(),
        SingleProcessGroup(),
        show=lambda phase, share=None: shown.append((phase, share)),
    )
    evaluator.run(should_stop=lambda: is_stopped and any(share is not None for _, share in shown))
    shares = [share for phase, share in shown if phase == "evaluating"]
    tokens = [batch.num_targets for batch in held_out.batches]
    assert len(tokens) > 2
    done = [0, *accumulate(tokens)][: 1 if is_stopped else len(tokens)]
    assert shares == [Amount(number, sum(tokens), "tokens") for number in done]
    assert shown[-1] == ("", None)


SONGS = {"s": [f"la la la {number} la" for number in range(12)]}
RULES = {"r": [f"rule {number}: do not shout" for number in range(9)], "t": ["x", "?!" * 9]}


def mixed_held_out(*sources, max_tokens=10**6, names=("songs", "rules")):
    """Return the held-out batches of a mixture of ``sources``."""
    groups = groups_of([SONGS, RULES], Holdout(1.0, seed=1), PLAN.seed, *sources)
    packing = ConcatPacking(PLAN.length)
    whole = Holdout(1.0, seed=1)
    return HoldoutBatches(groups, whole, packing, rows=PLAN.rows, max_tokens=max_tokens, sources=names)


def piece_figures(trainable, held_out):
    """Return nats, targets and bytes of each source, by the pieces of its documents alone."""
    figures = {}
    for batch, sources in zip(held_out.batches, held_out.piece_sources, strict=True):
        for piece, source in zip(batch.pieces(), sources.tolist(), strict=True):
            targets = piece.input_ids[piece.loss_mask]
            found = (trainable.evaluate(piece), len(targets), np.count_nonzero(targets < 256))
            figures[source] = np.add(figures.get(source, 0), found)
    return figures


def texts_of_pieces(held_out, source):
    pieces = [
        piece.input_ids.ravel().tolist()
        for batch, sources in zip(held_out.batches, held_out.piece_sources, strict=True)
        for piece, number in zip(batch.pieces(), sources.tolist(), strict=True)
        if number == source
    ]
    return bytes(token if token < 256 else 10 for piece in pieces for token in piece).decode().splitlines()


def test_each_source_has_its_own_figures():
    """The parts of a mixture are those of the pieces of its documents, and the total is that without parts."""
    trainable, held_out = trainable_of(), mixed_held_out()
    evaluation = evaluator_of(trainable, held_out).run()
    figures = piece_figures(trainable, held_out)
    assert list(evaluation.parts) == ["songs", "rules"]
    for number, name in enumerate(evaluation.parts):
        part = evaluation.parts[name]
        assert part.nats == pytest.approx(figures[number][0], rel=1e-12)
        assert (part.num_targets, part.num_bytes) == tuple(figures[number][1:])
    alone = evaluator_of(trainable, mixed_held_out(names=())).run()
    assert (evaluation.nats, evaluation.num_targets, evaluation.num_bytes) == (
        alone.nats,
        alone.num_targets,
        alone.num_bytes,
    )
    assert not alone.parts


def test_each_document_counts_for_the_source_that_it_came_from():
    """The pieces of a source join to its documents, wherever they were cut."""
    held_out = mixed_held_out()
    assert sorted(texts_of_pieces(held_out, 0)) == sorted(SONGS["s"])
    assert sorted(texts_of_pieces(held_out, 1)) == sorted(RULES["r"] + RULES["t"])


def test_a_document_of_no_source_counts_in_the_total_alone():
    """Documents outside all ranges of scores change the total, but no part."""
    everywhere = evaluator_of(trainable_of(), mixed_held_out()).run()
    nowhere = evaluator_of(
        trainable_of(), mixed_held_out(lambda reader, scores: np.full(len(scores), -1 if reader else 0))
    ).run()
    assert nowhere.nats == everywhere.nats
    assert nowhere.parts == {"songs": everywhere.parts["songs"]}


def test_a_single_source_has_no_parts():
    """A mixture of one source is evaluated as that source alone, without the figures of pieces."""
    trainable = FaultyTrainable(trainable_of())
    rows = []
    trainable.before_evaluation = lambda batch: rows.append(batch.num_rows)
    evaluation = evaluator_of(trainable, mixed_held_out(names=("songs",))).run()
    assert rows
    assert evaluation.parts == {}


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_share_the_figures_of_sources(size):
    """Several ranks return the same totals and parts as one, up to the order of the sum."""
    alone = evaluator_of(trainable_of(), mixed_held_out()).run()
    groups = MemoryProcessGroup.linked(size)

    def run(group):
        return Evaluator(trainable_of(), mixed_held_out(), MemoryTokenizer(), group).run()

    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(run, groups))
    assert all(evaluation == found[0] for evaluation in found)
    assert found[0].nats == pytest.approx(alone.nats, rel=1e-12)
    for name, part in alone.parts.items():
        assert found[0].parts[name].nats == pytest.approx(part.nats, rel=1e-12)
        assert found[0].parts[name].num_targets == part.num_targets
        assert found[0].parts[name].num_bytes == part.num_bytes


@pytest.mark.parametrize("max_rows", [1, 3])
def test_parts_survive_a_shortage_of_memory(max_rows):
    """Rows that are evaluated a few at a time give the same parts."""
    plenty = evaluator_of(trainable_of(), mixed_held_out()).run()
    short = evaluator_of(trainable_of(max_rows), mixed_held_out()).run()
    assert short.parts.keys() == plenty.parts.keys()
    for name, part in plenty.parts.items():
        assert short.parts[name].nats == pytest.approx(part.nats, rel=1e-12)


def with_sets(held_out, **sets):
    evaluator = Evaluator(trainable_of(), held_out, MemoryTokenizer(), SingleProcessGroup(), sets=sets)
    return evaluator.run()


def test_sets_are_measured_beside_what_is_held_out():
    """Each set has the figures that it has alone, and the total is that of the held-out documents."""
    songs, rules = held_out_of(SONGS), held_out_of(RULES)
    evaluation = with_sets(held_out_of(), songs=songs, rules=rules)
    assert evaluation.nats == evaluator_of(trainable_of(), held_out_of()).run().nats
    assert evaluation.parts == {
        "songs": evaluator_of(trainable_of(), songs).run(),
        "rules": evaluator_of(trainable_of(), rules).run(),
    }


def test_without_held_out_documents_the_sets_together_are_the_total():
    """A run that holds out nothing has the loss over all tokens of its sets."""
    songs, rules = held_out_of(SONGS), held_out_of(RULES)
    evaluation = with_sets(held_out_of(fraction=0.0), songs=songs, rules=rules)
    parts = evaluation.parts.values()
    assert evaluation.nats == math.fsum(part.nats for part in parts)
    assert evaluation.num_targets == sum(part.num_targets for part in parts) > 0
    assert evaluation.num_bytes == sum(part.num_bytes for part in parts) > 0


def test_a_set_without_targets_changes_no_figure_of_the_others():
    """Beside a good set the total is that of the good set alone, and the other set has no figure."""
    good = held_out_of(SONGS)
    evaluation = with_sets(held_out_of(fraction=0.0), good=good, empty=masked("a" * 40 + "B", 25))
    assert list(evaluation.parts) == ["good"]
    alone = evaluator_of(trainable_of(), good).run()
    assert (evaluation.nats, evaluation.num_targets) == (alone.nats, alone.num_targets)
    assert not any("empty" in metric for metric in evaluation.metrics)
    assert evaluation.lacks("eval_loss/empty")
    assert not evaluation.lacks("eval_loss/good")
    assert not evaluation.lacks("eval_loss")
