"""A torch language model that computes its own loss: torch model factories build it, torch optimizers train it."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from threading import Condition
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias, final

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from holdfast.adapters.shared.modeling.attention import found_ends, packed_arguments
from holdfast.adapters.shared.modeling.dpo_loss import target_losses
from holdfast.adapters.shared.modeling.generation_settings import (
    config_text,
    generation_parts,
    only_settings,
    sample_settings,
)
from holdfast.adapters.shared.modeling.losses import (
    IGNORED,
    chunked_cross_entropy,
    chunked_rows,
    liger_cross_entropy,
    rows_at_once,
)
from holdfast.adapters.shared.modeling.network_layers import untie
from holdfast.adapters.shared.network.ranks import is_first_rank, rank, world_size
from holdfast.adapters.shared.tensor_state.consolidation import ConsolidatedTensors, rank_file
from holdfast.adapters.shared.tensor_state.converted_ranges import check_same_weights, converted_ranges
from holdfast.adapters.shared.tensor_state.file_parts import MODEL_FILE, TextPart
from holdfast.adapters.shared.tensor_state.local_shards import assign, host_slices, host_tensors, local_slice, shape_of
from holdfast.adapters.shared.tensor_state.safetensors_file import TensorsPart
from holdfast.adapters.shared.tensor_state.sharded_tensors import slices_part
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from torch import Tensor
    from transformers import PreTrainedModel

    from holdfast.adapters.shared.modeling.deferred_weights import DeferredWeights
    from holdfast.adapters.shared.modeling.dpo_loss import DpoLoss
    from holdfast.adapters.shared.modeling.expert_balance import ExpertBalance
    from holdfast.adapters.shared.modeling.loss_probe import LossProbe
    from holdfast.adapters.shared.modeling.tensor_parallel import (
        ContextParallelism,
        PipelineParallelism,
        TensorParallelism,
    )
    from holdfast.adapters.shared.tensor_state.consolidation import Convert
    from holdfast.adapters.shared.tensor_state.local_shards import ReadRange, Slice
    from holdfast.adapters.shared.tensor_state.sharded_tensors import SlicedTensors
    from holdfast.domain.training.text_generation import Sampling
    from holdfast.ports.state_store import JoinedPart, StatePart

    OwnLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class Adapters(Protocol):
    """Adapters that are trained and saved in place of all weights."""

    def tensors(self, network: nn.Module) -> dict[str, Tensor]:
        """Return the trainable tensors of ``network`` by their saved names, in their own shapes and dtypes."""

    def files(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Return the files of the tensors, ``MODEL_FILE`` among them, each with its additional tensors.

        Additional tensors may have any shape and dtype.
        """

    def description(self) -> StatePart:
        """Return the file that describes the adapters."""

    def read(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the ``tensors`` of ``MODEL_FILE`` without the additional ones, shapes and dtypes unchanged.

        Raises ``StateError`` if they belong to another base model.
        """


@final
class CausalLanguageModel(nn.Module):
    """A causal model with the interface of Hugging Face, whose forward returns the summed loss of a packed batch.

    The network gets position ids that restart with each document, no attention mask and ``use_cache=False``: only then
    does transformers isolate packed documents. ``loss`` says how it is computed: ``chunked`` (never all logits; the
    head must be a plain linear one), ``liger`` (the same by that package's kernels) or ``plain`` (all logits at once).
    ``own_loss``, if given, is minimized in place of cross-entropy: it takes fp32 logits (tokens, vocabulary) and labels
    int64 (tokens,), -100 for ignored ones, and returns the sum of independent losses of the tokens; evaluation stays
    cross-entropy. ``isolates_documents``: rows may hold several documents. ``notes`` explain choices to a person, a
    line each. If there are ``adapters``, only they are captured and loaded. ``token_losses``, if given, is a tensor
    fp32 (rows, length) of zeros, into which an evaluation also writes the loss of each target; the sum that it returns
    does not change. ``balance``, if given, adds the balancing loss of a mixture of experts to the gradient.
    ``loss_probe``, if given, compares the next chunked loss in training with the plain one, once. ``preference``, if
    given, is minimized in training in place of cross-entropy. ``tensor_parallelism``, if given, has shared the weights
    of the network among ranks that have the same rows; ``context_parallelism``, if given, divides the tokens of each
    row among such ranks; ``pipeline_parallelism``, if given, has given each of such ranks a share of the layers.
    ``deferred``, if given, places the weights, which are on the meta device until then.
    """

    def __init__(self, network: PreTrainedModel, *, deferred: DeferredWeights | None = None) -> None:
        super().__init__()
        self.deferred = deferred
        self.network = network
        self.loss: Literal["chunked", "liger", "plain"] = "plain"
        self.own_loss: OwnLoss | None = None
        self.isolates_documents = True
        self.notes: tuple[str, ...] = ()
        self.adapters: Adapters | None = None
        self.token_losses: Tensor | None = None
        self.balance: ExpertBalance | None = None
        self.loss_probe: LossProbe | None = None
        self.preference: DpoLoss | None = None
        self.tensor_parallelism: TensorParallelism | None = None
        self.context_parallelism: ContextParallelism | None = None
        self.pipeline_parallelism: PipelineParallelism | None = None

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        loss_mask: Tensor,
        document_ends: Tensor | None = None,
        target_places: Tensor | None = None,
        target_pieces: Tensor | None = None,
        reference_margins: Tensor | None = None,
    ) -> Tensor:
        """Return the summed loss in nats, fp32, of the targets; ids int64 and mask bool, all (rows, length).

        ``document_ends`` and ``target_places`` are those of ``Batch``. Without them they are found on the device, and a
        GPU is waited for. ``target_pieces`` and ``reference_margins``, those of a batch of preferences, are used by
        ``preference`` only.
        """
        labels = torch.full_like(input_ids, IGNORED)
        labels[:, :-1] = input_ids[:, 1:].masked_fill(~loss_mask[:, 1:], IGNORED)
        if (context := self.context_parallelism) is not None and input_ids.shape != context.padded(input_ids, 0).shape:
            input_ids, labels = context.padded(input_ids, 0), context.padded(labels, IGNORED)
            position_ids, document_ends = context.padded(position_ids, 0), None  # each token of padding is a document
        arguments = packed_arguments(self.network, position_ids, document_ends)
        if context is not None:
            ends = found_ends(position_ids) if document_ends is None else document_ends
            arguments = context.own_arguments(arguments, position_ids, ends)
            input_ids, labels, target_places = context.own_tokens(input_ids), context.own_tokens(labels), None
        if self.training and self.preference is not None:
            losses = self._target_losses(input_ids, arguments, labels.flatten(), target_places)
            return self.preference.summed(losses, target_pieces, reference_margins)
        each = None if self.token_losses is None or self.training else torch.zeros_like(labels, dtype=torch.float32)
        loss = self._summed_loss(input_ids, arguments, labels.flatten(), target_places, each)
        if each is not None and self.token_losses is not None:
            each = each if context is None else context.whole_rows(each)
            width = self.token_losses.shape[1]
            self.token_losses[:, 1:] += each[:, : width - 1]  # a label stands one place before its target
        return loss if context is None else context.total(loss)

    @property
    def probed(self) -> Any:
        """Return the network for checks that compute with weights."""
        return self.network if self.deferred is None else self.deferred.probed

    @property
    def num_positions(self) -> int | None:
        """Return the context length in tokens, or None without a limit."""
        positions: int | None = getattr(self.network.config, "max_position_embeddings", None)
        return positions

    def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        end_of_text: int,
        tell: Callable[[int], object] = lambda _: None,
    ) -> Sequence[int]:
        """Return new ids after ``prompt``, as ``Trainable.generate`` promises; a long prompt loses its beginning.

        ``tell`` receives each id as it is generated. Raises ``ConfigurationError`` if no position is left for new
        tokens.
        """
        return new_tokens(self.network, list(prompt)[-self._room_for_prompt(sampling) :], sampling, end_of_text, tell)

    def capture(self, *, copy: bool = True) -> Sequence[StatePart]:
        """Return weights and description by value, as files that ``from_pretrained`` loads, on the first rank.

        The model is not sharded: each rank has all of it. Without ``copy`` weights are as ``host_slices`` give them.
        """
        return (*self._whole(self._files(), self._own_tensors(), copy=copy), *self._descriptions())

    def capture_slices(self, *, copy: bool = True) -> Sequence[StatePart | JoinedPart]:
        """Return this rank's slices of the weights; on the first rank also the file that joins them."""
        return (*self._sliced("weights", self._files(), self._own_tensors(), copy=copy), *self._descriptions())

    def capture_as(
        self, name: str, tensors: Mapping[str, Tensor], *, copy: bool, sharded: bool
    ) -> Sequence[StatePart | JoinedPart]:
        """Return the file ``name`` in the form of ``MODEL_FILE``, with ``tensors`` in place of those of their names.

        ``tensors`` have shapes, dtypes and shards of ``trained_tensors``. Without ``sharded`` each rank has all of
        them. The ranks' parts are those of ``capture`` or ``capture_slices``.
        """
        files = {name: self._files()[MODEL_FILE]}
        own = {**self._own_tensors(), **tensors}
        if sharded:
            return self._sliced(name.removesuffix(".safetensors"), files, own, copy=copy)
        return self._whole(files, own, copy=copy)

    def trained_tensors(self) -> dict[str, Tensor]:
        """Return the parameters that training changes, by their names here, each once; this rank's shards of them."""
        return {name: tensor for name, tensor in self._own_tensors().items() if tensor.requires_grad}

    def loading(self, saved: SlicedTensors, *, into: Mapping[str, Tensor] | None = None) -> Callable[[], None]:
        """Return a function that loads the weights of ``saved``, as ``capture`` wrote them, while ``saved`` is open.

        It loads them into the network, or only those that are in ``into``, with the names of ``trained_tensors``, into
        that. Raises ``StateError`` if names or shapes differ. Of weights that only change their names, this rank's
        part is read, in place.
        """
        if self.adapters is None:
            ranges, shapes = converted_ranges(saved, getattr(self.network, "from_huggingface", dict))
            untie(self.network, shapes)
        else:
            own = self.adapters.read({name: saved.whole(name) for name in saved.shapes})
            ranges = {name: partial(_range_of, tensor.reshape(-1)) for name, tensor in own.items()}
            shapes = {name: tensor.shape for name, tensor in own.items()}
        self._check_same_tensors(shapes)
        return partial(self._read, ranges, into)

    def _summed_loss(
        self,
        input_ids: Tensor,
        arguments: Mapping[str, Any],
        labels: Tensor,
        places: Tensor | None,
        each: Tensor | None,
    ) -> Tensor:
        """Return the summed loss of ``labels`` (tokens,); if ``each`` is given, write that of each label into it."""
        own_loss = self.own_loss if self.training else None
        flat = None if each is None else each.view(-1)
        if (pipeline := self.pipeline_parallelism) is not None:
            hidden = self.network.base_model(input_ids=input_ids, **arguments).last_hidden_state
            empty = torch.zeros((), device=hidden.device)
            loss = pipeline.from_last(self.loss_of(hidden, labels, flat) if pipeline.is_last else empty)
            if each is not None:
                each.copy_(pipeline.from_last(each))
            return loss
        if self.loss == "plain":
            logits = self.network(input_ids=input_ids, **arguments).logits.flatten(0, 1).float()
            if flat is not None:
                flat += cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
            return _summed(logits, labels) if own_loss is None else own_loss(logits, labels)
        hidden = self.network.base_model(input_ids=input_ids, **arguments).last_hidden_state
        return self._chunked(hidden.flatten(0, 1), labels, own_loss, places, flat)

    def loss_of(self, hidden: Tensor, labels: Tensor, each: Tensor | None = None) -> Tensor:
        """Return the summed loss in nats, fp32, of the last stage's ``hidden`` (rows, length, width).

        ``labels`` are int64 (rows x length,), -100 for ignored ones; ``each``, fp32 of their shape, gets their losses.
        """
        own_loss = self.own_loss if self.training else None
        if self.loss != "plain":
            return self._chunked(hidden.flatten(0, 1), labels, own_loss, each=each)
        logits = self.network.get_output_embeddings()(hidden).flatten(0, 1).float()
        if each is not None:
            each += cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
        return _summed(logits, labels) if own_loss is None else own_loss(logits, labels)

    def _target_losses(
        self, input_ids: Tensor, arguments: Mapping[str, Any], labels: Tensor, places: Tensor | None
    ) -> Tensor:
        """Return the loss of each target in nats, fp32 (targets,), with a gradient."""
        places = torch.nonzero(labels != IGNORED)[:, 0] if places is None else places
        if self.loss == "plain":
            logits = self.network(input_ids=input_ids, **arguments).logits.flatten(0, 1)[places].float()
            return cross_entropy(logits, labels[places], reduction="none")
        hidden = self.network.base_model(input_ids=input_ids, **arguments).last_hidden_state.flatten(0, 1)[places]
        head = self.network.get_output_embeddings()
        return target_losses(hidden, head, labels[places], vocabulary=head.out_features)

    def _chunked(
        self,
        hidden: Tensor,
        labels: Tensor,
        own_loss: OwnLoss | None,
        places: Tensor | None = None,
        each: Tensor | None = None,
    ) -> Tensor:
        head = self.network.get_output_embeddings()
        if self.training and (probe := self.loss_probe) is not None:
            self.loss_probe = None
            probe.compare(partial(self._chunked, own_loss=self.own_loss), hidden, head, labels, self.own_loss)
        rows = rows_at_once(head.out_features, hidden.device.type)
        if own_loss is not None:
            return chunked_rows(own_loss, hidden, head, labels, rows_at_once=rows_at_once(head.out_features))
        shared = self.tensor_parallelism
        is_split = shared is not None and self.loss == "chunked"
        weight, bias = head.weight, head.bias
        if shared is not None:
            weight, bias = (shared.whole(parameter, is_partial=is_split) for parameter in (weight, bias))
        if self.loss == "liger":
            if each is not None:
                chunked_cross_entropy(hidden, weight, bias, labels, rows_at_once=rows, places=places, each=each)
            return liger_cross_entropy(hidden, weight, bias, labels)
        if not is_split or shared is None:
            return chunked_cross_entropy(hidden, weight, bias, labels, rows_at_once=rows, places=places, each=each)
        places = torch.nonzero(labels != IGNORED)[:, 0] if places is None else places
        hidden, places = shared.spread(hidden), shared.own_part(places)
        part = chunked_cross_entropy(hidden, weight, bias, labels, rows_at_once=rows, places=places, each=each)
        if each is not None:
            each.copy_(shared.total(each))
        return shared.total(part)

    def _room_for_prompt(self, sampling: Sampling) -> int:
        if (positions := self.num_positions) is None:
            return sys.maxsize
        if positions <= sampling.max_new_tokens:
            msg = f"the model has {positions} positions: ask for fewer than {positions} new tokens"
            raise ConfigurationError(msg)
        return positions - sampling.max_new_tokens

    @torch.no_grad()
    def _read(self, ranges: Mapping[str, ReadRange], into: Mapping[str, Tensor] | None = None) -> None:
        targets = self._own_tensors() if into is None else into
        for name, read in ranges.items():
            if name in targets:
                assign(targets[name], read)

    def _check_same_tensors(self, saved: Mapping[str, torch.Size]) -> None:
        pipeline = self.pipeline_parallelism
        own = {name: shape_of(tensor) for name, tensor in self._own_tensors().items()}
        check_same_weights(own if pipeline is None else pipeline.shapes, saved)

    @property
    def _convert(self) -> Convert:
        """Return the function that converts tensors to their names and forms in ``MODEL_FILE``."""
        return dict if self.adapters is not None else getattr(self.network, "to_huggingface", dict)

    def _whole(
        self, files: Mapping[str, Mapping[str, Tensor]], tensors: Mapping[str, Tensor], *, copy: bool
    ) -> Sequence[StatePart]:
        """Return ``files`` of the whole ``tensors``, each with its additional tensors, on the first rank."""
        weights = host_tensors(self._slices(tensors), copy=copy)
        if not is_first_rank():
            return ()
        named = {name: {**self._convert(weights), **more} for name, more in files.items()}
        return [
            TensorsPart(name, {key: tensor.contiguous() for key, tensor in file.items()})
            for name, file in named.items()
        ]

    def _sliced(
        self, kind: str, files: Mapping[str, Mapping[str, Tensor]], tensors: Mapping[str, Tensor], *, copy: bool
    ) -> Sequence[StatePart | JoinedPart]:
        """Return this rank's slices of ``tensors``; on the first rank also the parts that join them as ``files``."""
        slices = [rank_file(kind, each, world_size()) for each in range(world_size())]
        part = slices_part(slices[rank()], host_slices(self._slices(tensors), copy=copy))
        if not is_first_rank():
            return (part,)
        return (part, *(ConsolidatedTensors(name, slices, self._convert, more) for name, more in files.items()))

    def _files(self) -> Mapping[str, Mapping[str, Tensor]]:
        return {MODEL_FILE: {}} if self.adapters is None else self.adapters.files()

    def _descriptions(self) -> Sequence[StatePart]:
        if not is_first_rank():
            return ()
        settings = generation_parts(self.network)
        if self.adapters is not None:
            return (self.adapters.description(), *settings)
        return (TextPart("config.json", config_text(self.network.config.to_json_string())), *settings)

    def _slices(self, tensors: Mapping[str, Tensor]) -> dict[str, Slice]:
        is_alone = self.pipeline_parallelism is not None
        return {name: local_slice(tensor, is_alone=is_alone) for name, tensor in tensors.items()}

    def _own_tensors(self) -> dict[str, Tensor]:
        """Return each tensor once: tied weights have their first name, as Hugging Face saves them."""
        if self.adapters is not None:
            return self.adapters.tensors(self.network)
        tensors: dict[int, tuple[str, Tensor]] = {}
        for name, tensor in self.network.state_dict(keep_vars=True).items():
            tensors.setdefault(id(tensor), (name, tensor))
        return dict(tensors.values())


def _summed(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")


def _range_of(flat: Tensor, start: int, count: int, _into: Tensor | None = None) -> Tensor:
    return flat[start : start + count]


@final
class RandomTurn:
    """A random state of its own for one text, seeded by ``seed``, in a ``with`` block that one thread at a time is in.

    ``pass_on`` lets a waiting thread go first, in the order of their arrival, and then continues with the same draws.
    Outside the blocks the random state of the process is as if nothing had been drawn.
    """

    _condition = Condition()
    _num_arrived = 0
    _num_left = 0

    def __init__(self, seed: int, device: torch.device) -> None:
        self._seed = seed
        self._device = device
        self._outer = ExitStack()

    def pass_on(self) -> None:
        """Let the next thread go first, if one waits."""
        if RandomTurn._num_arrived - RandomTurn._num_left == 1:
            return
        states = self._states()
        self._leave()
        self._arrive()
        torch.set_rng_state(states[0])
        if len(states) > 1:
            torch.cuda.set_rng_state(states[1], self._device)

    def __enter__(self) -> Self:
        """Wait for the turn."""
        self._arrive()
        torch.manual_seed(self._seed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the turn."""
        self._leave()

    def _states(self) -> list[torch.Tensor]:
        """Return the random states, uint8, of the CPU and of a CUDA device."""
        on_device = [torch.cuda.get_rng_state(self._device)] if self._device.type == "cuda" else []
        return [torch.get_rng_state(), *on_device]

    def _arrive(self) -> None:
        with self._condition:
            number = RandomTurn._num_arrived
            RandomTurn._num_arrived += 1
            self._condition.wait_for(lambda: RandomTurn._num_left == number)
        self._outer.enter_context(torch.random.fork_rng())

    def _leave(self) -> None:
        self._outer.close()
        with self._condition:
            RandomTurn._num_left += 1
            self._condition.notify_all()


_LEAST_TEMPERATURE = 1e-30  # logits divided by less are no floats, and at it the likeliest id has all probability


def new_tokens(
    network: PreTrainedModel,
    prompt: Sequence[int],
    sampling: Sampling,
    end_of_text: int,
    tell: Callable[[int], object],
) -> Sequence[int]:
    """Return the ids after ``prompt`` up to ``end_of_text``, which is left out; ``tell`` receives each id at once.

    At temperature 0 each id is the likeliest one; at others the network's own settings of samples count too.
    The random state of the process and the mode of ``network`` (training) stay as they were, also if ``tell`` raises.
    Threads that generate with different networks take turns after each token.
    """
    ids = torch.tensor([list(prompt)], device=network.device)
    chosen: dict[str, Any] = {"do_sample": False}
    own: Mapping[str, Any] = {}
    if sampling.temperature > 0:
        own = sample_settings(network)
        chosen = {"do_sample": True, "temperature": max(sampling.temperature, _LEAST_TEMPERATURE)}
        chosen |= {"top_k": sampling.top_k, "top_p": sampling.top_p}
    network = network.eval()
    try:
        with only_settings(network, own), RandomTurn(sampling.seed, ids.device) as turn, torch.no_grad():
            out = network.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=sampling.max_new_tokens,
                eos_token_id=end_of_text,
                pad_token_id=end_of_text,
                streamer=_Streamer(tell, end_of_text, turn),
                **chosen,
            )
    finally:
        network.train()
    new: list[int] = out[0, ids.shape[1] :].tolist()
    return new[: new.index(end_of_text)] if end_of_text in new else new


@final
class _Streamer:
    """Passes on new ids; transformers calls ``put`` with the prompt and then with each token, and ``end`` last."""

    def __init__(self, tell: Callable[[int], object], end_of_text: int, turn: RandomTurn) -> None:
        self._tell = tell
        self._turn = turn
        self._end_of_text = end_of_text
        self._has_prompt = False
        self._has_ended = False

    def put(self, tokens: Tensor) -> None:
        """Pass ``tokens``, of one row, on unless they are the prompt or come after the end of the text."""
        if not self._has_prompt:
            self._has_prompt = True
            return
        for token in tokens.flatten().tolist():
            self._has_ended = self._has_ended or token == self._end_of_text
            if not self._has_ended:
                self._tell(token)
        self._turn.pass_on()

    def end(self) -> None:
        """Do nothing."""
