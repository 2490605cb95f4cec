"""The ids of rendered conversations, and which of them belong to replies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, final

import numpy as np
from tokenizers import Tokenizer as Core

from holdfast.adapters.tokenizer.hf_core import Piece, reading_core, telling_panics
from holdfast.domain.errors import DataError
from holdfast.ports.tokenizer import SupervisedIds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from tokenizers import Encoding

    from holdfast.adapters.tokenizer.hf_core import HiddenSpecials
    from holdfast.domain.training.reply_spans import RenderedReplies

_NAME = "the tokenizer"


@final
class RenderedEncoder:
    """Encodes what a template renders by ``core``: special tokens become their ids, unless they are ``hidden``."""

    def __init__(self, core: Core, hidden: HiddenSpecials) -> None:
        record = json.loads(core.to_str())
        record["post_processor"] = None  # some shorten the offsets of tokens that begin with a space
        self._core, plain = (Core.from_str(json.dumps(record)) for _ in range(2))
        self._core.encode_special_tokens, plain.encode_special_tokens = False, True
        self._plain = reading_core(plain)
        self._hidden = hidden

    def ids(self, rendered: str) -> list[int]:
        """Return the ids of ``rendered``."""
        with telling_panics(_NAME):
            return [number for piece in self._hidden.pieces(rendered) for number in self._encoding(piece).ids]

    def supervised(self, rendered: Sequence[RenderedReplies], end_of_text: int) -> list[SupervisedIds]:
        """Return the ids of several texts, with a mask of those in a span; a text without an end has ``end_of_text``.

        A token is never partly in a span: if there is one, the text is cut at the end of the span and each part encoded
        alone, as the beginning of a reply is encoded alone when the model continues it. Raises ``DataError`` if the
        tokenizer cannot encode a part alone.
        """
        pieces = [list(self._hidden.pieces(each.text)) for each in rendered]
        texts = [piece.text for each in pieces for piece in each if piece.token is None]
        with telling_panics(_NAME):
            encodings = iter(self._core.encode_batch(texts, add_special_tokens=False))
            found = zip(rendered, pieces, strict=True)
            return [self._joined(each, some, encodings, end_of_text) for each, some in found]

    def _joined(
        self, rendered: RenderedReplies, pieces: Sequence[Piece], encodings: Iterator[Encoding], end_of_text: int
    ) -> SupervisedIds:
        ids: list[NDArray[np.int64]] = []
        masks: list[NDArray[np.bool_]] = []
        for piece in pieces:
            encoding = next(encodings) if piece.token is None else self._encoding(piece)
            for part_ids, mask in self._masked(piece, encoding, rendered.spans):
                ids.append(part_ids)
                masks.append(mask)
        if not rendered.is_ended:
            ids.append(np.array([end_of_text]))
            masks.append(np.array([True]))
        return SupervisedIds(np.concatenate(ids), np.concatenate(masks))

    def _masked(
        self, piece: Piece, encoding: Encoding, spans: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
        """Yield the ids of ``piece`` with their mask, in one part or in several that are cut at the ends of spans."""
        starts, ends = np.array(encoding.offsets, np.int64).reshape(-1, 2).T + piece.begin
        if piece.token is not None:
            starts[:], ends[:] = piece.begin, piece.begin + len(piece.text)
        for place in (place for span in spans for place in span):
            if bool(((starts < place) & (place < ends)).any()):
                yield from self._cut(piece, encoding, spans, place)
                return
        mask = np.zeros(len(starts), np.bool_)
        for start, end in spans:
            mask |= (start <= starts) & (starts < end)
        yield np.array(encoding.ids, np.int64), mask

    def _cut(
        self, piece: Piece, encoding: Encoding, spans: Sequence[tuple[int, int]], place: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
        cut = place - piece.begin
        parts = [Piece(piece.begin, piece.text[:cut], None), Piece(place, piece.text[cut:], None)]
        encodings = [self._encoding(part) for part in parts]
        joined = [number for each in encodings for number in each.ids]
        if self._core.decode(joined, skip_special_tokens=False) != self._core.decode(
            encoding.ids, skip_special_tokens=False
        ):
            shown = self._hidden.shown(piece.text[max(0, cut - 20) : cut + 20])
            msg = f"has a token across the beginning or the end of a reply, in {shown!r}: remove the white space there"
            raise DataError(msg)
        for part, each in zip(parts, encodings, strict=True):
            yield from self._masked(part, each, spans)

    def _encoding(self, piece: Piece) -> Encoding:
        if piece.token is not None:
            return self._plain.encode(piece.token, add_special_tokens=False)
        return self._core.encode(piece.text, add_special_tokens=False)
