"""A model-based augmentation: a causal language model rewrites sentences before they are tokenized.

    python examples/paraphrase_transform.py FOLDER

trains a tiny model on made-up sentences in FOLDER/model, without a network, and prints its paraphrases. A package that
declares the entry point

    [project.entry-points."holdfast.transform"]
    paraphrase = "paraphrase_transform:ParaphraseTransform"

makes the class available to a run:

    data:
      transforms:
        - {kind: paraphrase, options: {model: FOLDER/model, probability: 0.3}}

A model of your own takes the place of the tiny one, if its folder has the format of Hugging Face and it was trained on
lines such as "sentence => paraphrase". For back-translation, give ``prompts`` two entries: each is filled with the
result of the one before, as in ["{} in French:", "{} in English:"].
"""

from __future__ import annotations

import itertools
import re
import sys
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from holdfast.ports.transform import Transform

if TYPE_CHECKING:
    from collections.abc import Sequence

_END = "<|endoftext|>"
_UNKNOWN = "<unknown>"
_SENTENCES = re.compile(r"[^.!?\n]+")
# words of the made-up sentences, each with its paraphrase
_SUBJECTS = {"the cat": "the kitten", "a dog": "one hound", "the boy": "the lad", "my friend": "my companion"}
_VERBS = {"sees": "notices", "likes": "enjoys", "finds": "discovers", "wants": "desires"}
_OBJECTS = {"a house": "one home", "the road": "the street", "some food": "something edible", "the sea": "the ocean"}


@final
class ParaphraseTransform(Transform):
    """Replaces sentences by the text that a causal language model continues them with.

    ``model`` is a folder with the model and its tokenizer. Each sentence is rewritten with ``probability``, which is
    decided by a hash of the sentence and ``seed``. The model always takes its most likely token, on the CPU and one
    sentence at a time: the result then depends on the sentence alone, as the port demands, and not on its neighbors in
    a batch. A sentence stays as it is if the model does not end within ``max_tokens``, or if the sentence or the
    model's answer has an unknown word.
    """

    def __init__(
        self,
        *,
        model: str,
        prompts: Sequence[str] = ("{} =>",),
        probability: float = 1.0,
        seed: int = 0,
        max_tokens: int = 64,
    ) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model, local_files_only=True)
        self._model: Any = AutoModelForCausalLM.from_pretrained(model, local_files_only=True).eval()
        self._prompts, self._probability, self._seed, self._max_tokens = prompts, probability, seed, max_tokens
        digest = blake2b(digest_size=16)
        for path in sorted(Path(model).iterdir()):
            digest.update(path.name.encode() + path.read_bytes())
        self._content = digest.hexdigest()

    def __call__(self, text: str) -> str | None:
        """Return ``text`` with some sentences rewritten; spaces and signs between sentences stay."""
        return _SENTENCES.sub(lambda found: self._rewritten(found[0]), text)

    def fingerprint(self) -> str:
        """Return the options, a hash of the model's files, and the library that computes with them."""
        options = [*self._prompts, self._probability, self._seed, self._max_tokens]
        return f"paraphrase 1 {options} {self._content} torch {torch.__version__}"

    def _rewritten(self, sentence: str) -> str:
        number = int.from_bytes(blake2b(f"{self._seed} {sentence}".encode(), digest_size=8).digest(), "big")
        if not sentence.strip() or number >= self._probability * 2**64:
            return sentence
        result: str | None = sentence.strip()
        for prompt in self._prompts:
            result = result and self._continued(prompt.replace("{}", result))
        before = sentence[: len(sentence) - len(sentence.lstrip())]
        return before + result + sentence[len(sentence.rstrip()) :] if result else sentence

    @torch.inference_mode()
    def _continued(self, prompt: str) -> str | None:
        """Return the model's continuation of ``prompt`` up to its end-of-text token, or None if it is of no use."""
        ids = self._tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
        num_given = ids.shape[1]
        if self._tokenizer.unk_token_id in ids[0].tolist():
            return None
        for _ in range(self._max_tokens):
            best = self._model(input_ids=ids, use_cache=False).logits[0, -1].argmax()
            if best == self._tokenizer.eos_token_id:
                return self._tokenizer.decode(ids[0, num_given:]) or None
            if best == self._tokenizer.unk_token_id:
                return None
            ids = torch.cat([ids, best.reshape(1, 1)], dim=1)
        return None


def write_tiny_model(folder: Path, *, steps: int = 80) -> None:
    """Train a model with two layers on all made-up sentences, and write it with its tokenizer into ``folder``."""
    tables = (_SUBJECTS, _VERBS, _OBJECTS)
    pairs = [" ".join(words) for words in itertools.product(*tables)]
    answers = [" ".join(words) for words in itertools.product(*(table.values() for table in tables))]
    lines = [f"{pair} => {answer} {_END}" for pair, answer in zip(pairs, answers, strict=True)]
    words = sorted({word for line in lines for word in line.split()} - {_END})
    core = Tokenizer(WordLevel({word: number for number, word in enumerate([_END, _UNKNOWN, *words])}, _UNKNOWN))
    core.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=_END, unk_token=_UNKNOWN, pad_token=_END, clean_up_tokenization_spaces=False
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=len(words) + 2,
                n_positions=128,
                n_embd=64,
                n_layer=2,
                n_head=4,
                bos_token_id=0,
                eos_token_id=0,
            )
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        batch = tokenizer(lines, padding=True, return_tensors="pt")
        # after the first end-of-text, which is also the padding, nothing is learned
        length = batch["attention_mask"].sum(1, keepdim=True)
        wanted = batch["input_ids"].masked_fill(torch.arange(batch["input_ids"].shape[1]) >= length, -100)
        for _ in range(steps):
            logits = model(**batch).logits[:, :-1].flatten(0, 1)
            torch.nn.functional.cross_entropy(logits, wanted[:, 1:].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(folder: str) -> None:
    """Train the tiny model and show its paraphrases."""
    write_tiny_model(Path(folder) / "model")
    transform = ParaphraseTransform(model=str(Path(folder) / "model"))
    for text in ("the cat sees a house. my friend likes the sea!", "a dog wants some food."):
        print(f"{text} -> {transform(text)}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print(f"usage: python {sys.argv[0]} FOLDER", file=sys.stderr)
        sys.exit(2)
    main(sys.argv[1])
