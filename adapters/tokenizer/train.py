"""A tokenizer trained on the documents of the run."""

from __future__ import annotations

import json
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, NoReturn, final

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from holdfast.adapters.shared.files.file_operations import explain, replace_file
from holdfast.adapters.shared.files.regular_file import read_regular
from holdfast.adapters.tokenizer.backends.text_pieces import pieces
from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer
from holdfast.domain.data.no_text import no_text, none_usable
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.domain.phase import Amount, show_nothing
from holdfast.domain.sizes import shown_size
from holdfast.ports.data_source import Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from holdfast.adapters.tokenizer.document_frame import AddBos
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.data_source import DataSource, Document, Unit

    Judge = Callable[[Unit, Rejected, Callable[[Unit, Rejected], str]], object]

END_OF_TEXT = "<|endoftext|>"
SMALLEST_VOCABULARY = 257

_LONGEST_WORD, _BEGINNING, _SHORT_WORD = 1 << 20, 1 << 16, 32  # characters
# Raise it when the same documents become another tokenizer. It was not raised when words of more than _LONGEST_WORD
# were first counted by their beginning only: few data have them, and all cached tokenizers would be lost.
_TRAINING = 1
_READING, _COUNTING, _MERGING = (
    "reading text for the tokenizer",
    "training the tokenizer, counting words",
    "training the tokenizer, merging",
)


def train_tokenizer(
    source: DataSource,
    *,
    vocabulary_size: int,
    max_bytes: int,
    usable: Callable[[Document], str | None],
    usable_key: str,
    cache_dir: Path,
    special_tokens: Sequence[str] = (),
    judge: Judge = lambda *_: None,
    add_bos: AddBos = "auto",
    backend: str = "auto",
    report: Callable[[str], object] = lambda _: None,
    show: ShowPhase = show_nothing,
) -> HuggingfaceTokenizer:
    """Return a byte-level BPE tokenizer of ``vocabulary_size`` entries, end-of-text 0, trained on ``source``.

    ``special_tokens`` are further special tokens, which follow end-of-text; no text becomes one of them.
    At most ``max_bytes`` of UTF-8 are used, taken evenly along the units; ``usable`` returns the text to be used, or
    None to leave a text out, and ``usable_key`` identifies this function. Equal arguments give an equal tokenizer, also
    in another process; it is cached in ``cache_dir``, ``report`` receives lines and ``show`` the progress. Fewer
    documents than the vocabulary needs give a smaller one. ``add_bos`` and ``backend`` are those of the class. Raises
    ``DataError`` if there is no text, or the error of ``judge`` about the first unusable record, and
    ``ConfigurationError`` if the vocabulary cannot hold the bytes.
    """
    _check_size(vocabulary_size, SMALLEST_VOCABULARY + len(special_tokens))
    more = [list(special_tokens)] if special_tokens else []
    how = [_TRAINING, tokenizers.__version__, source.fingerprint(), vocabulary_size, max_bytes, usable_key, *more]
    file = cache_dir / "tokenizers" / f"{_digest(json.dumps(how))}.json"
    if (serialized := _load(file, report)) is None:
        rejected = _FirstRejected()
        documents = list(_shown(sample_documents(source, max_bytes, usable, rejected), _READING, max_bytes, show))
        if not any(documents):
            _raise_no_text(source, rejected, judge)
        serialized = _train(documents, vocabulary_size, special_tokens, report, show)
        _store(file, serialized, report)
    return HuggingfaceTokenizer(
        serialized, name=str(file), end_of_text=END_OF_TEXT, add_bos=add_bos, backend=backend, report=report
    )


def sample_documents(
    source: DataSource,
    max_bytes: int,
    usable: Callable[[Document], str | None],
    rejected: Callable[[Unit, Rejected], object] = lambda _unit, _rejected: None,
) -> Iterator[str]:
    """Yield usable texts of ``source`` in its order, at most ``max_bytes`` of UTF-8, spread along the units by size.

    ``rejected`` receives the unusable records. Raises ``DataError`` for a record that only a passing error made
    unreadable.
    """
    source = source.confirming()  # as the tokenizer is cached
    units = source.units()
    total = sum(max(unit.size, 1) for unit in units)
    passed = taken = 0
    for unit in units:
        passed += max(unit.size, 1)
        share = max_bytes * passed // total
        if taken >= share:
            continue
        for document in source.read(unit):
            if isinstance(document, Rejected):
                if document.is_passing:
                    raise DataError(document.reason)  # the tokenizer is cached, and would lack the rest for good
                rejected(unit, document)
                continue  # reading it for training decides whether the run fails
            if text := usable(document):
                content = text.encode("utf-8", "replace")[: max_bytes - taken]
                taken += len(content)
                yield content.decode("utf-8", "ignore")
            if taken >= share:
                break


def _check_size(vocabulary_size: int, smallest: int) -> None:
    if vocabulary_size < smallest:
        msg = f"tokenizer.vocabulary_size is {vocabulary_size}, but 256 bytes and the special tokens need {smallest}"
        raise ConfigurationError(msg)


@final
class _FirstRejected:
    """Stores the first unusable record, and counts them all."""

    def __init__(self) -> None:
        self.first: tuple[Unit, Rejected] | None = None
        self.count = 0

    def __call__(self, unit: Unit, rejected: Rejected) -> None:
        self.first = self.first or (unit, rejected)
        self.count += 1


def _raise_no_text(source: DataSource, rejected: _FirstRejected, judge: Judge) -> NoReturn:
    """Raise ``DataError`` with the reason why ``source`` gave no text: the first rejected record, or no documents."""
    if rejected.first is None:
        units = source.units()
        has_text = any(getattr(document, "text", "") for unit in units for document in source.read(unit))
        raise DataError((none_usable if has_text else no_text)([unit.name for unit in units]))
    unit, first = rejected.first
    judge(unit, first, source.tell)
    count = "its only record" if rejected.count == 1 else f"all of its {rejected.count:,} records that were read"
    msg = f"no text is left to train a tokenizer on, {count} cannot be used: {first.reason}"
    raise DataError(msg)


def _shown(texts: Iterable[str], phase: str, most: int, show: ShowPhase) -> Iterator[str]:
    """Yield ``texts``, and show how many bytes of ``most`` they have had so far."""
    done = 0
    for text in texts:
        yield text
        done += len(text.encode())
        show(phase, Amount(done, most))


def _train(
    documents: list[str],
    vocabulary_size: int,
    special_tokens: Sequence[str],
    report: Callable[[str], object],
    show: ShowPhase,
) -> str:
    num_bytes = sum(len(document.encode()) for document in documents)
    report(f"training a {vocabulary_size:,}-entry tokenizer on {shown_size(num_bytes)} of {len(documents):,} documents")
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    # the library allocates memory for all that it is asked for, and each merge takes at least a byte
    most = SMALLEST_VOCABULARY + len(special_tokens) + num_bytes
    trainer = trainers.BpeTrainer(
        vocab_size=min(vocabulary_size, most),
        min_frequency=2,
        show_progress=False,
        special_tokens=[END_OF_TEXT, *special_tokens],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    core.train_from_iterator(_in_pieces(_shown(documents, _COUNTING, num_bytes, show), show), trainer)
    if core.get_vocab_size() < vocabulary_size:
        report(f"the documents hold no more than {core.get_vocab_size():,} entries, so the vocabulary has no more")
    return str(core.to_str())


def _in_pieces(documents: Iterable[str], show: ShowPhase = show_nothing) -> Iterator[str]:
    """Yield ``documents`` in pieces with the same words: training uses only the words and their counts.

    Each merge of a word that fills many pieces would take seconds, so only the beginning of such a word is used, as
    many short words.
    """
    for piece in chain.from_iterable(map(pieces, documents)):
        if len(piece) <= _LONGEST_WORD:
            yield piece
        else:
            yield from (piece[begin : begin + _SHORT_WORD] for begin in range(0, _BEGINNING, _SHORT_WORD))
    show(_MERGING)


def _load(file: Path, report: Callable[[str], object]) -> str | None:
    if not file.exists():
        return None
    try:
        record = json.loads(read_regular(file))
        serialized = str(record["tokenizer"])
        is_whole = bool(record["blake2b"] == _digest(serialized))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        is_whole = False
    if is_whole:
        return serialized
    report(f"the tokenizer stored in {file} is damaged or cannot be read: training it again")
    return None


def _store(file: Path, serialized: str, report: Callable[[str], object]) -> None:
    content = json.dumps({"blake2b": _digest(serialized), "tokenizer": serialized})
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, content.encode(), is_shared=True)
    except OSError as error:
        why = f"{explain(error)} or choose another folder with run.cache_dir"
        report(f"the tokenizer cannot be stored in {file} ({why}): the next run trains it again")


def _digest(serialized: str) -> str:
    return blake2b(serialized.encode(), digest_size=16).hexdigest()
