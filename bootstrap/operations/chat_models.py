"""Checkpoints that reply to a person, each to the same texts or conversations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.tensor_state.file_parts import MODEL_FILE
from holdfast.application.training.generate import chat_prompt, plain_prompt, stream_reply
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.operations.named_checkpoint import place_of
from holdfast.bootstrap.operations.trained_model import open_trained
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.record_file import meant_run
from holdfast.bootstrap.run_folder.run_audit import record_use
from holdfast.domain.errors import ConfigurationError, OutOfMemory
from holdfast.domain.sizes import shown_size
from holdfast.ports.tokenizer import HasChatTemplate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.application.training.generate import ReplyEnd, ReplyPrompt
    from holdfast.bootstrap.operations.named_checkpoint import Choice
    from holdfast.bootstrap.operations.trained_model import Trained
    from holdfast.domain.phase import ShowPhase
    from holdfast.domain.training.conversation_record import ChatMessage
    from holdfast.domain.training.text_generation import Sampling

_FREE_MEMORY = lazy("holdfast.adapters.shared.device.host_memory:free_bytes")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The request for one reply: to a conversation, or if ``messages`` is None the continuation of ``text``."""

    sampling: Sampling
    text: str = ""
    messages: Sequence[ChatMessage] | None = None


@final
@dataclass(frozen=True, slots=True)
class ChatModel:
    """A trained model under a short ``name`` for people; it gives one reply at a time."""

    name: str
    trained: Trained

    @property
    def has_template(self) -> bool:
        """Return whether its tokenizer has a chat template."""
        tokenizer = self.trained.tokenizer
        return isinstance(tokenizer, HasChatTemplate) and tokenizer.chat_template is not None

    def prompt_of(self, request: ChatRequest) -> ReplyPrompt:
        """Return the prompt of ``request``.

        Raises ``ConfigurationError`` for a conversation if there is no chat template, and ``DataError`` if the template
        does not accept it.
        """
        trainable, tokenizer = self.trained.trainable, self.trained.tokenizer
        if request.messages is None:
            return plain_prompt(trainable, tokenizer, request.text, request.sampling)
        template = tokenizer.chat_template if isinstance(tokenizer, HasChatTemplate) else None
        if template is None:
            msg = f"the tokenizer of {self.name} has no chat template: it continues plain text only"
            raise ConfigurationError(msg)
        return chat_prompt(trainable, template, request.messages, request.sampling)

    def reply(
        self, prompt: ReplyPrompt, show: Callable[[int | None, str], object], is_stopped: Callable[[], bool]
    ) -> ReplyEnd:
        """Stream the reply to ``prompt`` to ``show``, as ``stream_reply`` does."""
        return stream_reply(self.trained.trainable, self.trained.tokenizer, prompt, show, is_stopped=is_stopped)


def open_chat_models(
    chosen: Sequence[tuple[Path, Choice]],
    *,
    trusted: Mapping[str, str],
    show: ShowPhase,
    free_memory: Callable[[], int] = _FREE_MEMORY,
) -> Sequence[ChatModel]:
    """Return the checkpoints that ``chosen`` names by path and choice, in order; each is opened once.

    The use of each is recorded in the audit of its run. ``trusted`` and ``show`` are as for ``open_trained``, and
    ``free_memory`` returns the bytes that are left. Raises ``ConfigurationError`` if a path does not exist or a
    checkpoint does not fit into memory beside those before it, and the errors of ``open_trained``.
    """
    for path, choice in chosen:
        if not path.exists():
            wanted = "name a run folder, such as runs/default, or the folder of a checkpoint"
            msg = f"there is no folder {path}: {wanted}{meant_run(path)}"
            raise ConfigurationError(msg)
        place_of(path, choice)
    opened: list[ChatModel] = []
    for path, choice in dict.fromkeys(chosen):
        _refuse_too_large(path, choice, free_memory(), len(opened))
        try:
            trained = open_trained(path, choice=choice, trusted=trusted, show=show)
        except (OutOfMemory, MemoryError) as error:
            msg = f"{path} does not fit into memory{_beside(len(opened))}: name fewer checkpoints, or a smaller model"
            raise ConfigurationError(msg) from error
        record_use(place_of(path, choice).path, "TextGenerated", {"location": trained.location})
        opened.append(ChatModel(_name_of(trained.location), trained))
    names = [model.name for model in opened]
    return [model if names.count(model.name) == 1 else replace(model, name=model.trained.location) for model in opened]


def _name_of(location: str) -> str:
    """Return a short name of the checkpoint at ``location``: of its run and its step, or of its folder."""
    folder = Path(location)
    is_in_run = len(folder.parents) > 1 and folder.parent == RunLayout(folder.parents[1]).checkpoints
    return f"{folder.parents[1].name}, step {folder.name.rpartition('-')[2]}" if is_in_run else folder.name


def _refuse_too_large(path: Path, choice: Choice, free: int, num_opened: int) -> None:
    """Raise ``ConfigurationError`` if the weights of a checkpoint on the disk are larger than the ``free`` bytes."""
    place = place_of(path, choice)
    run = RunLayout(place.path)
    step = run.newest_durable_step() if place.choice.step is None else place.choice.step
    folder = place.path if place.is_alone else run.checkpoint(step)
    weights = folder / MODEL_FILE
    needed = weights.stat().st_size if weights.is_file() else 0
    if needed > free:
        msg = (
            f"{path} needs {shown_size(needed)} for its weights, but {shown_size(free)} of memory are left"
            f"{_beside(num_opened)}: name fewer checkpoints, or a smaller model"
        )
        raise ConfigurationError(msg)


def _beside(num_opened: int) -> str:
    return "" if not num_opened else f" beside {num_opened} other{'s' if num_opened > 1 else ''}"
