"""Which adapter answers which port, and who is built from what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dependency_injector import containers, providers

from application.checkpoints import Checkpoints
from application.choose_holdout import choose_holdout
from application.engine import Engine
from application.evaluate import Evaluator
from application.feed import Feed, FeedPlan
from application.held_out import HeldOut
from application.inbox import Inbox
from application.train import TrainPlan, TrainRun
from bootstrap.lazy import lazy
from bootstrap.plugins import check_options, load_plugin
from configs.settings import TrainSettings
from domain.budget import Budget
from domain.schedule import WarmupCosine

if TYPE_CHECKING:
    from collections.abc import Mapping

PORTS = (
    "data_source",
    "tokenizer",
    "model_factory",
    "optimizer",
    "state_store",
    "event_bus",
    "process_group",
)
_SECTIONS = {"data_source": "data", "model_factory": "model"}


def _build_model(factory: Any, tokenizer: Any, seed: int) -> Any:
    return factory.build(vocabulary_size=tokenizer.vocabulary_size, end_of_text=tokenizer.end_of_text, seed=seed)


def _schedule(peak: float, warmup_steps: int, floor: float, budget: Budget) -> WarmupCosine:
    return WarmupCosine(peak, warmup_steps, peak * floor, budget)


class Container(containers.DeclarativeContainer):
    """One selector a port, chosen by the settings; adapters get primitives, never settings.

    ``chosen`` maps the names of ``auto`` settings to what they were resolved to; ``say`` shows a line to a person.
    """

    settings = providers.Dependency(instance_of=TrainSettings)
    directory = providers.Dependency(instance_of=Path)
    chosen = providers.Dependency(instance_of=dict)
    say: providers.Dependency[Any] = providers.Dependency()

    event_bus = providers.Selector(
        settings.provided.event_bus.kind,
        blinker=providers.Singleton(lazy("adapters.event_bus.blinker:BlinkerEventBus")),
        memory=providers.Singleton(lazy("adapters.event_bus.memory:MemoryEventBus")),
    )
    process_group = providers.Selector(
        settings.provided.process_group.kind,
        single=providers.Singleton(lazy("adapters.process_group.single:SingleProcessGroup")),
        torch=providers.Singleton(
            lazy("adapters.process_group.torch:TorchProcessGroup"), settings.provided.process_group.timeout_seconds
        ),
    )
    data_source = providers.Selector(
        settings.provided.data.kind,
        python_library=providers.Singleton(lazy("adapters.data_source.python_library:PythonLibraryDataSource")),
        files=providers.Singleton(
            lazy("adapters.data_source.files:FilesDataSource"),
            settings.provided.data.path,
            format=settings.provided.data.format,
            text_field=settings.provided.data.text_field,
        ),
    )
    holdout = providers.Singleton(
        choose_holdout, data_source, settings.provided.data.holdout, settings.provided.run.seed, say
    )
    tokenizer = providers.Selector(
        settings.provided.tokenizer.kind,
        train=providers.Singleton(
            lazy("adapters.tokenizer.train:train_tokenizer"),
            data_source,
            vocabulary_size=settings.provided.tokenizer.vocabulary_size,
            max_bytes=settings.provided.tokenizer.max_bytes,
            holds_out=holdout.provided.holds,
            holdout_key=providers.Callable(repr, holdout),
            cache_dir=settings.provided.run.cache_directory,
            report=say,
        ),
        huggingface=providers.Singleton(
            lazy("adapters.tokenizer.huggingface:HuggingfaceTokenizer.load"),
            settings.provided.tokenizer.path,
            revision=settings.provided.tokenizer.revision,
        ),
    )
    model_factory = providers.Selector(
        settings.provided.model.kind,
        huggingface=providers.Singleton(
            lazy("adapters.model_factory.huggingface:HuggingfaceModelFactory"),
            path=settings.provided.model.path,
            revision=settings.provided.model.revision,
            pretrained=settings.provided.model.loads_weights,
            config=settings.provided.model.config,
            attention=settings.provided.model.attention,
            sequence_length=settings.provided.data.sequence_length,
        ),
    )
    optimizer = providers.Selector(
        settings.provided.optimizer.kind,
        accelerate=providers.Singleton(
            lazy("adapters.optimizer.accelerate:AccelerateOptimizer"),
            device=chosen.provided["optimizer.device"],
            precision=chosen.provided["optimizer.precision"],
            weight_decay=settings.provided.optimizer.weight_decay,
            betas=settings.provided.optimizer.betas,
            epsilon=settings.provided.optimizer.epsilon,
            clip=settings.provided.optimizer.clip,
            seed=settings.provided.run.seed,
            sequence_length=settings.provided.data.sequence_length,
        ),
    )
    state_store = providers.Selector(
        settings.provided.state_store.kind,
        disk=providers.Singleton(
            lazy("adapters.state_store.disk:DiskStateStore"),
            directory,
            keep=settings.provided.state_store.keep,
        ),
        memory=providers.Singleton(
            lazy("adapters.state_store.memory:MemoryStateStore"), keep=settings.provided.state_store.keep
        ),
    )

    budget = providers.Singleton(
        Budget, steps=settings.provided.run.budget.steps, tokens=settings.provided.run.budget.tokens
    )
    feed_plan = providers.Singleton(
        FeedPlan,
        sequence_length=settings.provided.data.sequence_length,
        rows=settings.provided.optimizer.batch_size,
        seed=settings.provided.run.seed,
        epochs=settings.provided.data.epochs,
        prefetch=settings.provided.data.prefetch,
        shuffle_tokens=settings.provided.data.shuffle_tokens,
    )
    evaluation_plan = providers.Singleton(
        FeedPlan,
        sequence_length=settings.provided.data.sequence_length,
        rows=settings.provided.evaluation.batch_size,
        seed=settings.provided.run.seed,
    )
    inbox = providers.Singleton(Inbox)
    feed = providers.Singleton(Feed, data_source, tokenizer, holdout, feed_plan)
    held_out = providers.Singleton(
        HeldOut,
        data_source,
        tokenizer,
        holdout,
        evaluation_plan,
        max_tokens=settings.provided.evaluation.max_tokens,
    )
    model = providers.Singleton(_build_model, model_factory, tokenizer, settings.provided.run.seed)
    trainable = providers.Singleton(lambda optimizer, model: optimizer.prepare(model), optimizer, model)
    evaluator = providers.Singleton(Evaluator, trainable, held_out, tokenizer.provided.token_bytes)
    engine = providers.Singleton(
        Engine,
        trainable,
        micro_batch=providers.Callable(
            lambda micro, whole: micro or whole,
            settings.provided.optimizer.micro_batch,
            settings.provided.optimizer.batch_size,
        ),
    )
    checkpoints = providers.Singleton(Checkpoints, state_store, trainable, event_bus, parts=providers.List(tokenizer))
    plan = providers.Singleton(
        TrainPlan,
        budget,
        providers.Callable(
            _schedule,
            settings.provided.optimizer.learning_rate,
            settings.provided.optimizer.schedule.warmup_steps,
            settings.provided.optimizer.schedule.floor,
            budget,
        ),
    )
    train_run = providers.Singleton(
        TrainRun,
        plan=plan,
        feed=feed,
        engine=engine,
        evaluator=evaluator,
        checkpoints=checkpoints,
        bus=event_bus,
        inbox=inbox,
        group=process_group,
    )


def assemble(
    settings: TrainSettings, directory: Path, chosen: Mapping[str, str], say: Any, overrides: Mapping[str, Any]
) -> Container:
    """Return the container of one run: outside adapters added, ``overrides`` (by provider name) put in their place."""
    container = Container(
        settings=providers.Object(settings),
        directory=providers.Object(directory),
        chosen=providers.Object(dict(chosen)),
        say=providers.Object(say),
    )
    for port in PORTS:
        section = getattr(settings, _SECTIONS.get(port, port))
        selector = getattr(container, port)
        if port not in overrides and section.kind not in selector.providers:
            adapter = load_plugin(port, section.kind, built_in=selector.providers)
            options = {"keep": section.keep, **section.options} if port == "state_store" else section.options
            check_options(port, section.kind, adapter, **options)
            selector.set_providers(**selector.providers, **{section.kind: providers.Singleton(adapter, **options)})
    for name, replacement in overrides.items():
        getattr(container, name).override(providers.Object(replacement))
    return container
