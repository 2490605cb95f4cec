"""Bits per byte count the bytes of the documents, whatever the tokenizer makes of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer as Core
from tokenizers import models, normalizers, pre_tokenizers, processors

from holdfast.adapters.document_encoder.completion import CompletionDocumentEncoder
from holdfast.adapters.document_encoder.text import TextDocumentEncoder
from holdfast.adapters.model_factory.memory import MemoryModelFactory
from holdfast.adapters.optimizer.memory import MemoryOptimizer
from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer
from holdfast.application.training.evaluator import Evaluator
from holdfast.bootstrap.run_folder import folder
from holdfast.domain.data.holdout import Holdout
from holdfast.ports.document_encoder import DocumentEncoder
from holdfast.ports.transform import Record
from tests.support.command_line import run_here, tiny
from tests.support.small_tokenizers import sentencepiece_tokenizer, small_tokenizer, write_tokenizer
from tests.support.streams import Plan, held_out_of

TEXTS = [
    "The quick Brown fox,  and 13 lazy dogs.\n",
    "Fünf größere Äpfel; e\u0301t\u0065\u0301, ﬁne ½ and ①",
    " leading space and\ttabs\r\n\r\n",
    "你好,世界。 здравствуй \U0001f642",
    "q",
    "\U0001f642",
]


def words(*, adds_bos=True):
    """Return a WordPiece tokenizer in lower case, which knows few characters."""
    letters = [f"{mark}{letter}" for mark in ("", "##") for letter in "abcdefghijklmnoprstuvwxyz.,"]
    core = Core(models.WordPiece({name: number for number, name in enumerate(["[UNK]", "[CLS]", "[SEP]", *letters])}))
    core.normalizer = normalizers.BertNormalizer()
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    if adds_bos:
        core.post_processor = processors.TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 1)])
    return core


def composing(form):
    core = small_tokenizer("gpt-2", adds_bos=True)
    core.normalizer = form
    return core


LOSSLESS = {"gpt-2": small_tokenizer("gpt-2", adds_bos=True), "llama-bpe": small_tokenizer("llama-bpe", adds_bos=True)}
OTHERS = {
    "WordPiece": words(),
    "NFKC": composing(normalizers.NFKC()),
    "without accents": composing(normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])),
    "Llama 2": sentencepiece_tokenizer(),
    "Metaspace": sentencepiece_tokenizer(doubles_space=False),
}


def tokenizer_of(core):
    ends = {"<|endoftext|>", "</s>", "[SEP]"}
    end = next(name for name in sorted(ends) if core.token_to_id(name) is not None)
    return HuggingfaceTokenizer(core.to_str(), backend="huggingface", end_of_text=end)


def evaluation_of(tokenizer, texts, *, length=4096, max_tokens=10**6, encoder=None):
    plan = replace(Plan(length=length, rows=2, seed=1), encoder=encoder or TextDocumentEncoder(tokenizer))
    held_out = held_out_of({"a": texts}, plan, Holdout(1.0, seed=1), max_tokens)
    model = MemoryModelFactory().build(
        vocabulary_size=tokenizer.vocabulary_size, end_of_text=tokenizer.end_of_text, seed=1
    )
    said = []
    evaluator = Evaluator(
        MemoryOptimizer().prepare(model), held_out, tokenizer, SingleProcessGroup(), report=said.append
    )
    return evaluator.run(), held_out, said


@pytest.mark.parametrize("name", [*LOSSLESS, *OTHERS])
def test_whole_documents_count_their_own_bytes(name):
    """After a beginning of text each token is a target, so all bytes count: those of the texts, as all read them."""
    tokenizer = tokenizer_of((LOSSLESS | OTHERS)[name])
    evaluation, held_out, said = evaluation_of(tokenizer, TEXTS)
    assert evaluation.num_bytes == sum(len(text.encode()) for text in TEXTS)
    assert not said
    held = sum((tokenizer.token_bytes[batch.input_ids] * batch.loss_mask).sum() for batch in held_out.batches)
    assert (held == evaluation.num_bytes) == (name in LOSSLESS)


@pytest.mark.parametrize("name", [*LOSSLESS, *OTHERS])
def test_each_token_has_a_share_of_its_own_document(name):
    """Where tokens hold the text the shares are what they hold, so nothing changes there."""
    tokenizer = tokenizer_of((LOSSLESS | OTHERS)[name])
    encoder, records = TextDocumentEncoder(tokenizer), [Record(text, {}) for text in TEXTS]
    encoded = encoder.encode(records)
    found = encoder.text_bytes(records, encoded)
    sums = np.add.reduceat(found, encoded.offsets[:-1]).tolist()
    assert sums == [len(text.encode()) for text in TEXTS]
    if name in LOSSLESS:
        assert found.tolist() == tokenizer.token_bytes[encoded.ids].tolist()
    alone = [encoder.text_bytes([record], encoder.encode([record])) for record in records]
    assert found.tolist() == np.concatenate(alone).tolist()


@pytest.mark.parametrize("length", [8, 31])
def test_documents_that_rows_cut_count_what_is_measured_of_them(length):
    """All tokens of all rows stand for all texts; the first of each piece, which nothing predicts, does not count."""
    tokenizer = tokenizer_of(OTHERS["WordPiece"])
    evaluation, held_out, _ = evaluation_of(tokenizer, TEXTS * 3, length=length)
    whole = 3 * sum(len(text.encode()) for text in TEXTS)
    assert sum(each.sum() for each in held_out.text_bytes) == whole
    firsts = sum(
        each.reshape(-1)[batch.starts].sum() for batch, each in zip(held_out.batches, held_out.text_bytes, strict=True)
    )
    assert evaluation.num_bytes == whole - firsts < whole
    cut, *_ = evaluation_of(tokenizer, TEXTS * 3, length=length, max_tokens=60)
    assert 0 < cut.num_bytes < evaluation.num_bytes


def test_completions_count_their_own_bytes():
    """Bytes of the prompts, which are no targets, do not count, even if the tokenizer makes few tokens of them."""
    tokenizer = tokenizer_of(OTHERS["WordPiece"])
    pairs = [("QQQQ ÄÄÄÄ qqq qqq qqq qqq", "a  b"), ("", "Fünf"), ("a", "größere  Äpfel\n")]
    records = [json.dumps({"prompt": prompt, "completion": completion}) for prompt, completion in pairs]
    evaluation, *_ = evaluation_of(tokenizer, records, encoder=CompletionDocumentEncoder(tokenizer))
    assert evaluation.num_bytes == sum(len(completion.encode()) for _, completion in pairs)


def test_a_text_that_is_not_known_is_counted_by_tokens_and_that_is_said():
    """Encoders of others may not tell the bytes of texts; the sentence has the numbers, once."""

    class Plain(DocumentEncoder):
        def __init__(self, inner):
            self.inner = inner

        def encode(self, records):
            return self.inner.encode(records)

        def fingerprint(self):
            return self.inner.fingerprint()

    tokenizer = tokenizer_of(OTHERS["WordPiece"])
    evaluation, held_out, said = evaluation_of(tokenizer, TEXTS, encoder=Plain(TextDocumentEncoder(tokenizer)))
    held = sum((tokenizer.token_bytes[batch.input_ids] * batch.loss_mask).sum() for batch in held_out.batches)
    assert evaluation.num_bytes == held
    assert len(said) == 1
    assert "hold 25 bytes of the 50" in said[0]


@pytest.mark.slow
def test_a_begun_run_keeps_the_meaning_of_its_figure(tmp_path, monkeypatch):
    """A run without a record of the rule counts what tokens hold, and says so; a new one counts the documents."""
    (tmp_path / "words").mkdir()
    write_tokenizer(words(), tmp_path / "words", eos_token="[SEP]", unk_token="[UNK]", bos_token="[CLS]")
    data = tmp_path / "data.jsonl"
    texts = [f"Über  Größe {number}, and  THE Rest\n" for number in range(60)]
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    own = [each for each in tiny(data) if not each.startswith(("tokenizer.", "run.name=", "data.holdout="))]
    settings = [*own, "tokenizer.kind=huggingface", f"tokenizer.path={tmp_path}/words", "data.holdout=0.3"]
    found = {}
    for name, version in (("old", 1), ("new", 2)):
        path = tmp_path / "runs" / name / "run.json"
        with monkeypatch.context() as patch:
            patch.setattr(folder, "RULES", {**folder.RULES, "text_bytes": version})
            process = run_here("train", *settings, f"run.name={name}", "run.budget.steps=1", cwd=tmp_path)
        assert process.returncode == 0, process.stderr
        if name == "old":
            record = json.loads(path.read_text())
            del record["rules"]["text_bytes"]
            path.write_text(json.dumps(record | {"schema": 1}))
        process = run_here("train", *settings, f"run.name={name}", "run.budget.steps=2", cwd=tmp_path)
        assert process.returncode == 0, process.stderr
        assert ("the tokenizer changes text" in process.stdout + process.stderr) == (name == "old")
        evaluated = run_here("evaluate", str(path.parent), "--json", cwd=tmp_path)
        lines = (path.parent / "metrics.jsonl").read_text().splitlines()
        last = [each for each in map(json.loads, lines) if "eval_bits_per_byte" in each][-1]
        result = json.loads(evaluated.stdout)
        assert result["bits_per_byte"] == pytest.approx(last["eval_bits_per_byte"])
        found[name] = last
    assert found["old"]["eval_loss"] == found["new"]["eval_loss"]
    assert found["old"]["eval_bits_per_byte"] > 1.3 * found["new"]["eval_bits_per_byte"]
    assert math.isfinite(found["new"]["eval_bits_per_byte"])
