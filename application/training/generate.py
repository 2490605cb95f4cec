"""Generates text with a trained model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from typing import TYPE_CHECKING, final

from holdfast.domain.phase import show_nothing
from holdfast.domain.training.conversation_record import ChatMessage, MessageRole
from holdfast.domain.training.text_generation import GeneratedText
from holdfast.ports.optimizer import HasOwnEnds
from holdfast.ports.tokenizer import HasChatTemplate, ShowsSpecialTokens, ids_around

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from collections.abc import Set as AbstractSet

    from holdfast.domain.phase import ShowPhase
    from holdfast.domain.training.text_generation import Sampling
    from holdfast.ports.optimizer import Trainable
    from holdfast.ports.process_group import ProcessGroup
    from holdfast.ports.tokenizer import ChatTemplate, Tokenizer

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # the text that a tokenizer decodes an incomplete character to


def generate(
    trainable: Trainable,
    tokenizer: Tokenizer,
    prompt: str,
    sampling: Sampling,
    *,
    note: Callable[[str], object] = lambda _: None,
) -> str:
    """Return ``prompt`` and the model's continuation; an empty prompt starts a new document.

    A length beyond the model's positions is shortened, as ``fitted`` does, and ``note`` gets a sentence about it.
    """
    ids, sampling, shortened = fitted(trainable, tokenizer, prompt, sampling)
    if shortened is not None:
        note(shortened)
    ends = end_ids(tokenizer, trainable)
    return prompt + tokenizer.decode(new_ids(trainable, ids, sampling, ends, tokenizer.end_of_text))


def fitted(
    trainable: Trainable, tokenizer: Tokenizer, prompt: str, sampling: Sampling
) -> tuple[Sequence[int], Sampling, str | None]:
    """Return the ids of ``prompt`` and the sampling, both shortened to the positions of the model.

    The third value is a sentence for a person if something was shortened, else None. New tokens are cut first, down to
    half of the positions, then the beginning of the prompt, but not the special ids before it.
    """
    prefix, own = ids_around(tokenizer)[0], [int(token) for token in tokenizer.encode([prompt]).ids]
    ids = [*prefix, *own] or [tokenizer.end_of_text]
    kept, sampling, note = fitted_ids(trainable.num_positions, ids, sampling)
    return [*prefix, *kept[len(prefix) :]] if len(kept) > len(prefix) else kept, sampling, note


def fitted_ids(
    positions: int | None, ids: Sequence[int], sampling: Sampling
) -> tuple[Sequence[int], Sampling, str | None]:
    """Return ``ids`` and ``sampling`` shortened to ``positions``, as ``fitted`` does; None is no limit."""
    wanted = sampling.max_new_tokens
    if positions is None or len(ids) + wanted <= positions:
        return ids, sampling, None
    kept = min(len(ids), max(positions - wanted, positions // 2, 1))
    new = max(1, min(wanted, positions - kept))
    note = f"the model has {positions} positions: "
    note += f"it writes {new} new tokens at most, not {wanted}" if new < wanted else "they do not hold the whole prompt"
    if kept < len(ids):
        note += f", and reads the last {kept} of the {len(ids)} tokens of the prompt"
    return ids[-kept:], replace(sampling, max_new_tokens=new), note


@final
class IncrementalDecoder:
    """Turns the ids of one text, one after another, into pieces of whole characters that join to the decoded text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # from the last piece on, as a tokenizer may decode the start of a text differently
        self._num_shown = 0

    def after(self, token: int) -> str:
        """Return the text that is complete after ``token``; empty while a character is incomplete."""
        self._ids.append(token)
        text = self._new()
        if not text or text.endswith(_UNFINISHED):
            return ""
        self._ids = self._ids[self._num_shown :]
        self._num_shown = len(self._ids)
        return text

    def rest(self) -> str:
        """Return the remaining text after the last token."""
        text = self._new()
        self._num_shown = len(self._ids)
        return text

    def _new(self) -> str:
        shown = self._tokenizer.decode(self._ids[: self._num_shown])
        return self._tokenizer.decode(self._ids)[len(shown) :]


class ReplyEnd(StrEnum):
    """The ways in which a reply ends: by the model itself, at the maximum length, or because a person stopped it."""

    MODEL = "model"
    LENGTH = "length"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ReplyPrompt:
    """The ids that a model continues, the sampling, and the ids that end the reply.

    ``note`` is a sentence for a person if something was shortened.
    """

    ids: Sequence[int]
    sampling: Sampling
    ends: AbstractSet[int]
    note: str | None = None


def plain_prompt(trainable: Trainable, tokenizer: Tokenizer, text: str, sampling: Sampling) -> ReplyPrompt:
    """Return the prompt that continues ``text`` as ``generate`` does."""
    ids, sampling, note = fitted(trainable, tokenizer, text, sampling)
    return ReplyPrompt(ids, sampling, frozenset(end_ids(tokenizer, trainable)), note)


def chat_prompt(
    trainable: Trainable, template: ChatTemplate, messages: Sequence[ChatMessage], sampling: Sampling
) -> ReplyPrompt:
    """Return the prompt for a reply to ``messages``.

    If they are too long for the positions of the model, the oldest exchanges are left out, but not the system message.
    """
    positions = trainable.num_positions
    kept, ids = list(messages), template.encode(messages)
    first = int(kept[0].role is MessageRole.SYSTEM) if kept else 0
    while positions is not None and len(ids) + sampling.max_new_tokens > positions and len(kept) - first > 2:
        del kept[first : first + 2]
        ids = template.encode(kept)
    ids, sampling, note = fitted_ids(positions, ids, sampling)
    if (missing := len(messages) - len(kept)) and note is None:
        note = f"the model has {positions} positions: it does not see the first {missing} messages"
    return ReplyPrompt(ids, sampling, template.ends | set(own_ends(trainable)), note)


def stream_reply(
    trainable: Trainable,
    tokenizer: Tokenizer,
    prompt: ReplyPrompt,
    show: Callable[[int | None, str], object],
    *,
    is_stopped: Callable[[], bool] = lambda: False,
) -> ReplyEnd:
    """Pass each new id to ``show`` with the text that is complete after it, in whole characters; return the end.

    The rest of an incomplete character comes last, without an id. ``is_stopped`` is asked at each token.
    """
    pieces, told = IncrementalDecoder(tokenizer), list[int]()

    def tell(token: int) -> None:
        if is_stopped():
            raise _Ended(ReplyEnd.STOPPED)
        if token in prompt.ends:
            raise _Ended(ReplyEnd.MODEL)
        told.append(token)
        show(token, pieces.after(token))

    try:
        trainable.stream(prompt.ids, prompt.sampling, end_of_text=tokenizer.end_of_text, tell=tell)
        end = ReplyEnd.LENGTH if len(told) == prompt.sampling.max_new_tokens else ReplyEnd.MODEL
    except _Ended as ended:
        end = ended.end
    if rest := pieces.rest():
        show(None, rest)
    return end


def stream_text(
    trainable: Trainable,
    tokenizer: Tokenizer,
    text: str,
    sampling: Sampling,
    show: Callable[[str], object],
    *,
    note: Callable[[str], object] = lambda _: None,
) -> None:
    """Pass the text of ``generate`` to ``show`` piece by piece as it is generated, in whole characters.

    ``note`` gets a sentence if something is shortened.
    """
    prompt = plain_prompt(trainable, tokenizer, text, sampling)
    if prompt.note is not None:
        note(prompt.note)
    show(text)
    stream_reply(trainable, tokenizer, prompt, lambda _, piece: show(piece))


def whole_reply(trainable: Trainable, tokenizer: Tokenizer, prompt: ReplyPrompt) -> tuple[str, ReplyEnd]:
    """Return the reply to ``prompt`` and how it ended; all ranks generate together."""
    kept = new_ids(trainable, prompt.ids, prompt.sampling, prompt.ends, tokenizer.end_of_text)
    is_ended = len(kept) < prompt.sampling.max_new_tokens
    return tokenizer.decode(kept), ReplyEnd.MODEL if is_ended else ReplyEnd.LENGTH


def sample_text(
    trainable: Trainable,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    text: str,
    sampling: Sampling,
    *,
    note: Callable[[str], object],
) -> str:
    """Return ``text`` with the model's continuation, or by a ``template`` with the reply to it on a line of its own.

    ``note`` gets a sentence if something is shortened.
    """
    if template is None:
        return generate(trainable, tokenizer, text, sampling, note=note)
    prompt = chat_prompt(trainable, template, [ChatMessage(MessageRole.USER, text)], sampling)
    if prompt.note is not None:
        note(prompt.note)
    return f"{text}\n{whole_reply(trainable, tokenizer, prompt)[0]}"


class _Ended(Exception):
    """Ends a generation from within; it never leaves this module."""

    def __init__(self, end: ReplyEnd) -> None:
        super().__init__(str(end))
        self.end = end


@final
class PromptSampler:
    """Continues each of ``prompts``, the first with the seed of ``sampling`` and each later one with the next number.

    The same parameters give the same texts, and training is unchanged. All ranks of ``group`` generate together. In a
    run of one process an error ends the texts of this time, and ``report`` gets a sentence; on several ranks it is
    raised, as the others wait. With a ``template`` each prompt is a message of the user, and its text the reply: both
    are as the model reads and writes them, with the special tokens of the template.
    """

    def __init__(
        self,
        trainable: Trainable,
        tokenizer: Tokenizer,
        prompts: Sequence[str],
        sampling: Sampling,
        group: ProcessGroup,
        *,
        template: ChatTemplate | None = None,
        report: Callable[[str], object] = lambda _: None,
        show: ShowPhase = show_nothing,
    ) -> None:
        self._trainable = trainable
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._sampling = sampling
        self._group = group
        self._template = template
        self._report = report
        self._show = show

    def run(self, *, should_stop: Callable[[], bool] = lambda: False) -> Sequence[GeneratedText]:
        """Return the continuations of the prompts, fewer if ``should_stop`` returned true before one of them."""
        texts: list[GeneratedText] = []
        try:
            for number, prompt in enumerate(self._prompts):
                if any(self._group.sum([should_stop()])):
                    break
                self._show("writing samples", number / len(self._prompts))
                texts.append(self._continued(prompt, self._sampling.seed + number))
        except Exception as error:
            if self._group.size > 1:
                raise
            self._report(f"no sample of the prompt {prompt[:40]!r} can be written: {type(error).__name__}: {error}")
        finally:
            self._show("")
        return texts

    def _continued(self, prompt: str, seed: int) -> GeneratedText:
        if self._template is not None:
            return self._reply(self._template, prompt, replace(self._sampling, seed=seed))
        text = generate(self._trainable, self._tokenizer, prompt, replace(self._sampling, seed=seed))
        return GeneratedText(prompt, text.removeprefix(prompt), seed)

    def _reply(self, template: ChatTemplate, prompt: str, sampling: Sampling) -> GeneratedText:
        tokenizer = self._tokenizer
        asked = chat_prompt(self._trainable, template, [ChatMessage(MessageRole.USER, prompt)], sampling)
        text, end = whole_reply(self._trainable, tokenizer, asked)
        shown = tokenizer.decode_all if isinstance(tokenizer, ShowsSpecialTokens) else tokenizer.decode
        ended = shown([end_of_turn(template.ends, tokenizer.end_of_text)])
        return GeneratedText(shown(asked.ids), text + ended if end is ReplyEnd.MODEL else text, sampling.seed)


def end_ids(tokenizer: Tokenizer, trainable: Trainable | None = None) -> Sequence[int]:
    """Return the ids that end a text or a reply: end-of-text, then the others, ascending.

    They are those of the chat template, and those at which the model of ``trainable`` stops by its own settings.
    """
    template = tokenizer.chat_template if isinstance(tokenizer, HasChatTemplate) else None
    others = {*own_ends(trainable), *(() if template is None else template.ends)}
    return [tokenizer.end_of_text, *sorted(others - {tokenizer.end_of_text})]


def own_ends(trainable: Trainable | None) -> Sequence[int]:
    """Return the ids at which the model of ``trainable`` stops by its own settings, none if it knows none."""
    return trainable.own_ends if isinstance(trainable, HasOwnEnds) else ()


def end_of_turn(ends: Collection[int], end_of_text: int) -> int:
    """Return the id of ``ends`` that usually ends a reply: one of the template, else ``end_of_text``."""
    return min(set(ends) - {end_of_text}, default=end_of_text)


def new_ids(
    trainable: Trainable, prompt: Sequence[int], sampling: Sampling, ends: Collection[int], end_of_text: int
) -> Sequence[int]:
    """Return the ids that ``trainable`` writes after ``prompt``, up to the first of ``ends``.

    All ranks generate together. They stop at the end of a turn; what is written after another end is left out.
    """
    ids = trainable.generate(prompt, sampling, end_of_text=end_of_turn(ends, end_of_text))
    return list(takewhile(lambda token: token not in ends, ids))
