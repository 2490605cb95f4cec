"""Builds the model and the learning-rate schedule from the settings."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from holdfast.application.training.generate import end_ids
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.adapter_choice.plugins import has_methods, load_plugin, make_plugin
from holdfast.bootstrap.adapter_choice.process_group import is_launched
from holdfast.configs.sections.decoder import DecoderModelSettings
from holdfast.configs.sections.distributed import MeshSettings, mesh_settings
from holdfast.configs.sections.model import HuggingFaceModelSettings
from holdfast.configs.sections.optimizer import AccelerateOptimizerSettings
from holdfast.configs.sections.schedule import SCHEDULES
from holdfast.domain.built_in import LOSSES
from holdfast.domain.data.packing import BestFitPacking, ConcatPacking, SlidingPacking
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.phase import show_nothing
from holdfast.domain.training.lr_schedule import (
    Constant,
    RangeTest,
    Span,
    WarmupDecay,
    WarmupStableDecay,
    half_cosine,
    one_minus_sqrt,
    straight_line,
)
from holdfast.domain.training.preference_loss import PreferenceRule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from holdfast.configs.sections.data import FeedSettings
    from holdfast.configs.sections.schedule import ScheduleSettings
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.data.packing import Packing
    from holdfast.domain.phase import ShowPhase
    from holdfast.domain.training.budget import Budget
    from holdfast.domain.training.lr_schedule import Schedule
    from holdfast.ports.model_factory import Model, ModelFactory
    from holdfast.ports.optimizer import Optimizer
    from holdfast.ports.tokenizer import Tokenizer


def build_model(
    factory: ModelFactory[Model],
    tokenizer: Tokenizer,
    settings: TrainSettings,
    packing: Packing,
    optimizer: Optimizer[Model],
    *,
    report: Callable[[str], object],
    show: ShowPhase = show_nothing,
) -> Model:
    """Return the model of a run, with its loss; raises ``ConfigurationError`` if it cannot do what the settings ask.

    Limits that do not prevent training are reported, and ``show`` gets the progress of loading weights. If several
    processes divide the model, ``optimizer`` places the weights, so that each process has only its part of them.
    """
    seed = settings.run.seed
    if _divides_weights(settings) and _places_weights(optimizer):
        factory.defer_weights()
    with _loading_shown(settings, show):
        model = factory.build(vocabulary_size=tokenizer.vocabulary_size, end_of_text=tokenizer.end_of_text, seed=seed)
    if settings.data.task == "preference" and settings.optimizer.dpo.disable_dropout:
        _disable_dropout(model, report)
    add_adapters(model, settings)
    _stop_at_ends(model, tokenizer)
    if isinstance(settings.model, (HuggingFaceModelSettings, DecoderModelSettings)) and network_of(model) is not None:
        from holdfast.adapters.shared.modeling.loss_selection import choose_loss

        wanted = settings.model.loss
        own = None if wanted in LOSSES else load_plugin("loss", wanted, built_in=LOSSES)
        if settings.optimizer.kind == "deepspeed" and wanted == "auto":
            wanted = "plain"  # ZeRO-3 gathers a parameter for the module that owns it alone
        choose_loss(model, wanted, own_loss=own)  # type: ignore[arg-type]
    prefer(model, settings)
    if _shares_rows(packing) and not _isolates_documents(model):
        lazy("holdfast.adapters.shared.modeling.document_isolation:raise_mixed_rows")(model.network, packing.length)  # type: ignore[attr-defined]
    for note in getattr(model, "notes", ()):
        report(note)
    return model


def _disable_dropout(model: object, report: Callable[[str], object]) -> None:
    disable: Any = lazy("holdfast.adapters.shared.modeling.dpo_loss:disable_dropout")
    if (network := network_of(model)) is not None and disable(network):
        report("the model's dropout is off while it learns preferences (optimizer.dpo.disable_dropout)")


def _divides_weights(settings: TrainSettings) -> bool:
    """Return whether each process is to have only its part of the weights, and none needs all of them before.

    Adapters, 8-bit layers and the fingerprint of a reference model are made from all weights.
    """
    chosen = settings.optimizer
    if not is_launched() or not isinstance(chosen, AccelerateOptimizerSettings) or chosen.precision == "fp8":
        return False
    is_whole = chosen.sharding == "ddp" and mesh_settings(settings.distributed) == MeshSettings()
    return not is_whole and settings.model.lora is None and settings.data.task != "preference"


def _places_weights(optimizer: object) -> bool:
    """Return whether ``optimizer`` places the weights of a model that was built without them; a host's own may not."""
    from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer

    return isinstance(optimizer, AccelerateOptimizer)


def prefer(model: object, settings: TrainSettings) -> None:
    """Let ``model`` learn preferences if the data are such; raises ``ConfigurationError`` if it cannot."""
    rule = preference_rule(settings)
    if rule is None:
        return
    if network_of(model) is None:
        msg = f"data.task is preference, but a {type(model).__name__} has no such loss: use a model of transformers"
        raise ConfigurationError(msg)
    model.preference = lazy("holdfast.adapters.shared.modeling.dpo_loss:DpoLoss")(rule)  # type: ignore[attr-defined]


def preference_rule(settings: TrainSettings) -> PreferenceRule | None:
    """Return the loss of preferences by the settings, None for other data."""
    if settings.data.task != "preference":
        return None
    chosen = settings.optimizer.dpo
    return PreferenceRule(chosen.beta, chosen.label_smoothing)


def _stop_at_ends(model: object, tokenizer: Tokenizer) -> None:
    """Let ``model`` stop at the ends of ``tokenizer`` also in programs that load its checkpoints and exports."""
    network = network_of(model)
    if network is None:
        return

    def is_special(number: int) -> bool:
        return number < tokenizer.vocabulary_size and not tokenizer.token_bytes[number]

    end_at: Any = lazy("holdfast.adapters.shared.modeling.generation_settings:end_generation_at")
    end_at(network, end_ids(tokenizer), is_special=is_special)


def _loading_shown(settings: TrainSettings, show: ShowPhase) -> AbstractContextManager[object]:
    """Return a context in which ``show`` gets the weights that transformers loads."""
    if not (isinstance(settings.model, HuggingFaceModelSettings) and settings.model.loads_weights):
        return nullcontext()
    shown: Any = lazy("holdfast.adapters.model_factory.loaded_weights:loading_shown")(show)
    return shown  # type: ignore[no-any-return]


def add_adapters(model: object, settings: TrainSettings) -> None:
    """Add the adapters in the settings to ``model``; raises ``ConfigurationError`` if that is impossible."""
    chosen = settings.model.lora
    if chosen is None:
        return
    if network_of(model) is None:
        msg = f"model.lora is set, but a {type(model).__name__} cannot have adapters: set model.lora to null"
        raise ConfigurationError(msg)
    if settings.optimizer.kind == "deepspeed":
        msg = "model.lora does not work with optimizer.kind=deepspeed: use accelerate"
        raise ConfigurationError(msg)
    if chosen.quantize != "none" and settings.optimizer.sharding == "fsdp2":
        msg = "model.lora.quantize is 4bit, whose weights fsdp2 cannot shard: set optimizer.sharding=ddp"
        raise ConfigurationError(msg)
    from holdfast.adapters.shared.modeling.lora import LoraPlan, add_lora

    targets = None if chosen.target_modules == "auto" else chosen.target_modules
    plan = LoraPlan(chosen.rank, chosen.alpha, chosen.dropout, targets, chosen.quantize)
    path, revision = settings.model.path, settings.model.revision
    add_lora(model, plan, seed=settings.run.seed, path=path, revision=revision)  # type: ignore[arg-type]


def network_of(model: object) -> Any:
    """Return the torch module inside ``model``, None if it is not a torch model."""
    return getattr(model, "network", None)


def _isolates_documents(model: object) -> bool:
    return bool(getattr(model, "isolates_documents", True))


def held_out_packing(model: object, data: FeedSettings) -> Packing:
    """Return the packing of held-out documents: each has its own rows if ``model`` would mix documents in a row.

    Conversations are not divided, as a reply needs the messages before it; replies to compare are not cut either.
    """
    length = data.row_length
    if not _isolates_documents(model):
        return SlidingPacking(length, length)
    if data.task == "text":
        return ConcatPacking(length)
    return BestFitPacking(length, "drop" if data.task == "preference" else "truncate")


def _shares_rows(packing: Packing) -> bool:
    return not (isinstance(packing, SlidingPacking) and packing.stride == packing.length)


_SHAPES = {"cosine": half_cosine, "linear": straight_line, "1-sqrt": one_minus_sqrt}


def schedule(peak: float, settings: ScheduleSettings, budget: Budget) -> Schedule:
    """Return the learning rates of a run; raises ``ConfigurationError`` if the start of the decay is not known."""
    warmup = _span(settings.warmup_steps, settings.warmup_tokens) or Span(0)
    decay = _span(settings.decay_steps, settings.decay_tokens)
    floor = peak * settings.floor
    match settings.kind:
        case "constant":
            return Constant(peak, warmup)
        case "wsd":
            _check_end(warmup, decay, budget)
            return WarmupStableDecay(peak, warmup, floor, _SHAPES[settings.decay_shape], budget, decay)
        case "range_test":
            return RangeTest(peak, warmup, floor, budget)
        case kind if kind not in SCHEDULES:
            return _outside_schedule(kind, peak, budget, settings.options or {})
        case kind:
            return WarmupDecay(peak, warmup, floor, _SHAPES[kind], decay or budget)


def _outside_schedule(kind: str, peak: float, budget: Budget, options: Mapping[str, Any]) -> Schedule:
    made: Schedule = make_plugin(
        "schedule",
        kind,
        load_plugin("schedule", kind, built_in=SCHEDULES),
        {"peak": peak, "budget": budget, **options},
        is_one=lambda made: has_methods(made, "at"),
        otherwise=" without at",
    )
    return made


def _span(steps: int | None, tokens: int | None) -> Span | None:
    if tokens is not None:
        return Span(tokens, "tokens")
    return None if steps is None else Span(steps)


def _check_end(warmup: Span, decay: Span | None, budget: Budget) -> None:
    if decay is None or (budget.is_undecided and decay.unit == "steps"):
        return
    place = f"optimizer.schedule.decay_{decay.unit}"
    limit, other = decay.limit_of(budget), "tokens" if decay.unit == "steps" else "steps"
    if limit is None:
        length = "minutes and epochs become steps" if budget.is_undecided else f"run.budget is in {other}"
        msg = (
            f"{place} counts {decay.unit} back from the end of the run, but {length}: give "
            f"optimizer.schedule.decay_{other} or run.budget.{decay.unit} instead"
        )
        raise ConfigurationError(msg)
    if None not in (budget.steps, budget.tokens):
        msg = (
            f"{place} counts {decay.unit} back from the end of the run, but with both run.budget.steps and "
            f"run.budget.tokens set, that end is not known in advance: set run.budget.{other} to null"
        )
        raise ConfigurationError(msg)
    before = warmup.length if warmup.unit == decay.unit else 0
    if before + decay.length > limit:
        msg = (
            f"{place} is {decay.length}: together with {before} {decay.unit} of warm-up that is more than "
            f"run.budget.{decay.unit}, which is {limit}; shorten either"
        )
        raise ConfigurationError(msg)


_BALANCE = "holdfast.adapters.shared.modeling.expert_balance"


def balance_experts(model: object, settings: TrainSettings, *, report: Callable[[str], object]) -> None:
    """Add the balancing loss of ``model.balancing_loss`` to a mixture of experts, in place, and report it.

    Call this before the optimizer wraps ``model``; other models are left as they are. Raises ``ConfigurationError`` if
    the setting does not fit the model, or if the probe shows that the loss would not act as the setting says.
    """
    network: Any = network_of(model)
    if network is None or not isinstance(settings.model, HuggingFaceModelSettings):
        return
    chosen, name = settings.model.balancing_loss, type(network).__name__
    if not lazy(f"{_BALANCE}:has_experts")(network):
        if chosen != "auto":
            msg = f"model.balancing_loss is {chosen:g}, but {name} has no experts: set it to auto"
            raise ConfigurationError(msg)
        return
    coefficient = lazy(f"{_BALANCE}:coefficient_for")(network, None if chosen == "auto" else chosen)
    if coefficient and settings.data.task == "preference":
        msg = (
            f"the experts of {name} would be balanced by tokens, but data.task=preference counts pairs: set "
            "model.balancing_loss=0"
        )
        raise ConfigurationError(msg)
    if coefficient is None:
        report(f"the experts of {name} train without a balancing loss: its config has no router_aux_loss_coef")
    balance = lazy(f"{_BALANCE}:balance_experts")(model, coefficient or 0.0)
    if coefficient:
        lazy("holdfast.adapters.shared.modeling.balance_probe:probe_balance")(model, balance, coefficient)
        report(
            f"the balancing loss of {len(balance.routers)} routers has the coefficient {coefficient:g}, and was probed"
        )
