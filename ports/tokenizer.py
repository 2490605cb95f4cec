"""The port for the conversion of text to token ids and back, and the optional ability to form conversations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from datetime import date
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from holdfast.domain.training.conversation_record import ChatMessage, Conversation
    from holdfast.domain.training.reply_spans import TrainOn


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of several documents, flat: document ``i`` is ``ids[offsets[i]:offsets[i + 1]]``.

    ``ids`` is uint16 or uint32, (num_tokens,); ``offsets`` int64, (num_documents + 1,). ``loss_mask``, bool
    (num_tokens,), says which tokens are trained on; None means all of them, as a tokenizer returns. ``counts``, int64
    (num_records,), are the numbers of documents that each record became, at least 1; None means one each.
    """

    ids: NDArray[np.unsignedinteger]
    offsets: NDArray[np.int64]
    loss_mask: NDArray[np.bool_] | None = None
    counts: NDArray[np.int64] | None = None

    def __iter__(self) -> Iterator[NDArray[np.unsignedinteger]]:
        """Yield the ids of each document: a view of ``ids``, (number of its tokens,)."""
        for start, end in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            yield self.ids[start:end]


class Tokenizer(ABC):
    """Encodes documents, always as ordinary text.

    - Pure: equal documents give equal ids, and a batch gives the same ids as its documents one by one.
    - Ids lie in ``[0, vocabulary_size)``. ``encode`` adds no special token, and the text of a special token in a
      document does not become the special id.
    - ``decode(encode(text))`` returns ``text``, if the tokenizer is lossless.
    - ``token_bytes`` summed over a document's ids is the number of its UTF-8 bytes, if the tokenizer is lossless.
    - ``fingerprint`` is the same wherever a tokenizer is loaded, and differs if the encoding differs.
    - A document that UTF-8 cannot represent (a lone surrogate) raises ``DataError`` that names the document and the
      character, both counted from 0, as in "document 1 ... character 2".
    - Usable from several threads at once.
    - ``write`` puts files into a folder that Hugging Face's ``AutoTokenizer`` can load directly.
    """

    @property
    @abstractmethod
    def vocabulary_size(self) -> int:
        """Return the number of ids, including special ids."""

    @property
    @abstractmethod
    def end_of_text(self) -> int:
        """Return the id that ends each document."""

    @property
    @abstractmethod
    def token_bytes(self) -> NDArray[np.int32]:
        """Return the number of bytes of text of each id: int32, (vocabulary_size,); 0 for special ids."""

    @abstractmethod
    def encode(self, documents: Sequence[str]) -> Encoded:
        """Return the ids of ``documents``. Raises ``DataError`` if UTF-8 cannot represent a document."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids`` without special ids."""

    @abstractmethod
    def write(self, folder: Path) -> None:
        """Write the tokenizer's files into the existing ``folder``, with the same bytes each time."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short text that identifies the encoding."""


@dataclass(frozen=True, slots=True)
class SupervisedIds:
    """The token ids of a document, int64 (num_tokens,), and which of them are trained on, bool (num_tokens,)."""

    ids: NDArray[np.int64]
    loss_mask: NDArray[np.bool_]


class SurroundsDocuments(ABC):
    """The optional ability of a ``Tokenizer`` to begin documents with special tokens, or to end them with several."""

    @property
    @abstractmethod
    def around(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return the special ids before the text of each document, and those after it, the last one end-of-text."""


def ids_around(tokenizer: Tokenizer) -> tuple[Sequence[int], Sequence[int]]:
    """Return the special ids before and after the text of each document; without the ability only end-of-text after it.

    A text to continue has those before it.
    """
    return tokenizer.around if isinstance(tokenizer, SurroundsDocuments) else ((), (tokenizer.end_of_text,))


class ShowsSpecialTokens(ABC):
    """The optional ability of a ``Tokenizer`` to write out special tokens."""

    @abstractmethod
    def decode_all(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, with the names of special ids."""


class ChatTemplate(ABC):
    """Turns a conversation into the ids that a chat model continues with its reply, or is trained on.

    - Pure: equal conversations give equal ids, all in the vocabulary of the tokenizer; the ids to train on are also the
      same in another process and on another day.
    - The text of a special token in a message does not become the special id, so a message cannot end itself.
    - The ids to train on are those of the replies, each with the token that ends it. Before a reply come exactly the
      ids that ``encode`` gives for the messages before it, so training and use agree.
    - ``fingerprint`` identifies everything that decides the ids to train on, but for the tokenizer.
    - Usable from several threads at once.
    """

    @property
    @abstractmethod
    def ends(self) -> AbstractSet[int]:
        """Return the ids that end a reply, among them end-of-text."""

    @abstractmethod
    def encode(self, messages: Sequence[ChatMessage]) -> Sequence[int]:
        """Return the ids of ``messages`` and of the beginning of the reply.

        Raises ``DataError`` if the template does not accept the conversation.
        """

    @abstractmethod
    def encode_training(
        self, conversations: Sequence[Conversation], train_on: TrainOn = "all_assistant"
    ) -> Sequence[Sequence[SupervisedIds]]:
        """Return the documents of each of ``conversations``, in which its replies are trained on.

        A conversation is one document, or several if the template renders earlier replies otherwise than the last one.
        Each reply is trained on once. Raises ``DataError`` if a conversation has no reply to train on, or the template
        does not render it so that each reply continues the messages before it. The message continues a sentence that
        begins with "the document at position 7".
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short text that identifies the template and its options, the same in every process."""


@dataclass(frozen=True, slots=True)
class TemplateChoice:
    """A chat template for a tokenizer: its source, None for that of the tokenizer, and the variables it is given.

    ``special_tokens`` are those that the source needs. ``training_date`` is the day that a template with the current
    date writes into conversations to train on. With ``checks_prompts`` a conversation is refused if the template leaves
    out a part of its prompts or tools.
    """

    source: str | None
    options: Mapping[str, object]
    training_date: date
    special_tokens: Sequence[str] = ()
    checks_prompts: bool = True


class HasChatTemplate(ABC):
    """The optional ability of a ``Tokenizer`` to come with a chat template, and to take another one.

    - ``with_template`` returns an equal tokenizer but for its template, which is among the files that it writes.
    """

    @property
    @abstractmethod
    def chat_template(self) -> ChatTemplate | None:
        """Return the chat template, None if this tokenizer has none."""

    @abstractmethod
    def with_template(self, choice: TemplateChoice) -> Self:
        """Return this tokenizer with another template, or with its own and other variables.

        Raises ``ConfigurationError`` if it has no template, or lacks a special token that the template needs.
        """
