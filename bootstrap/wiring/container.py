"""The container: an adapter for each port, chosen by the settings, and the use cases built from them."""

from __future__ import annotations

import operator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dependency_injector import containers, providers

from holdfast.adapters.shared.tensor_state.file_parts import captured
from holdfast.application.checkpointing.checkpointer import Checkpointer
from holdfast.application.data.feed import Feed
from holdfast.application.data.holdout_batches import HoldoutBatches, ShardGroups, TextGroups
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.inbox import Inbox
from holdfast.application.training.command_executor import LoopParts
from holdfast.application.training.evaluator import Evaluator
from holdfast.application.training.loop import TrainRun
from holdfast.application.training.step_engine import StepEngine
from holdfast.bootstrap.run_folder.run_audit import audit_of
from holdfast.bootstrap.wiring import build_model as training
from holdfast.bootstrap.wiring import data_sources as sources
from holdfast.bootstrap.wiring import data_streams as data
from holdfast.bootstrap.wiring import disk_space as disk
from holdfast.bootstrap.wiring.access_roles import guard_of
from holdfast.bootstrap.wiring.build_memory_tier import build_memory_tier
from holdfast.bootstrap.wiring.dataset_registry import datasets_in
from holdfast.bootstrap.wiring.device_settings import choose_hardware, gpu_of
from holdfast.bootstrap.wiring.encryption_keys import build_shard_encryption
from holdfast.bootstrap.wiring.eviction_policy import first_uses, load_eviction
from holdfast.bootstrap.wiring.late_value import LateValue
from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.bootstrap.wiring.process_group import open_group
from holdfast.bootstrap.wiring.reserve_host_memory import MemoryPressure
from holdfast.bootstrap.wiring.resume_conditions import conditions
from holdfast.bootstrap.wiring.run_parts import (
    BatchParts,
    DataParts,
    EvaluationParts,
    HostParts,
    ModelParts,
    OpeningParts,
    RunData,
    RunParts,
)
from holdfast.bootstrap.wiring.state_stores import build_disk_store
from holdfast.bootstrap.wiring.text_transforms import load_transforms
from holdfast.bootstrap.wiring.torch_providers import model_factories, optimizers
from holdfast.configs.settings import TrainSettings
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.checkpoints.tiers import phase_at
from holdfast.domain.data.sample_order import RankShard
from holdfast.domain.fault_tolerance.grace_period import GracePeriod
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.micro_batch import max_micro_batch
from holdfast.domain.training.train_plan import TrainPlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.ports.resource_probe import ResourceProbe
    from holdfast.ports.tokenizer import Tokenizer


def _or_whole(late: LateValue[RunData | None], whole: RunData) -> RunData:
    return late.get() or whole


def _or_configured(late: LateValue[Tokenizer | None], configured: Callable[[], Tokenizer]) -> Tokenizer:
    kept = late.get()
    return configured() if kept is None else kept


def _or_largest(late: LateValue[int | None], rows: int, fixed: int | None, num_ranks: int) -> int:
    return late.get() or max_micro_batch(rows, fixed, num_ranks)


def _probe_of(probe: Callable[[], ResourceProbe], rank: int, *, is_wanted: bool) -> ResourceProbe | None:
    return probe() if is_wanted and rank == 0 else None


class Container(containers.DeclarativeContainer):
    """One selector a port, chosen by the settings; adapters get primitives, never settings.

    ``say`` shows a line to a person, and ``decide`` keeps what an ``auto`` setting was once decided to be.
    ``show`` shows what the run is busy with while it takes no steps.
    """

    settings = providers.Dependency(instance_of=TrainSettings)
    directory = providers.Dependency(instance_of=Path)
    say: providers.Dependency[Any] = providers.Dependency()
    decide: providers.Dependency[Any] = providers.Dependency()
    show: providers.Dependency[Any] = providers.Dependency()

    hardware = providers.Singleton(choose_hardware, settings, decide)
    event_bus = providers.Selector(
        settings.provided.event_bus.kind,
        blinker=providers.Singleton(lazy("holdfast.adapters.event_bus.blinker:BlinkerEventBus")),
        memory=providers.Singleton(lazy("holdfast.adapters.event_bus.memory:MemoryEventBus")),
    )
    process_group = providers.Selector(
        settings.provided.distributed.kind,
        auto=providers.Singleton(open_group, settings.provided.distributed.timeout_seconds),
        single=providers.Singleton(lazy("holdfast.adapters.process_group.single:SingleProcessGroup")),
        torch=providers.Singleton(
            lazy("holdfast.adapters.process_group.torch:TorchProcessGroup"),
            settings.provided.distributed.timeout_seconds,
        ),
    )
    places = providers.Object[Any]({})  # of the data, when the order of their files was chosen
    data_source = providers.Selector(
        settings.provided.data.kind,
        python_library=providers.Singleton(
            lazy("holdfast.adapters.data_source.python_library:PythonLibraryDataSource")
        ),
        files=providers.Singleton(sources.open_files, settings.provided.data, places),
        huggingface=providers.Singleton(sources.open_dataset, settings.provided.data),
        mixture=providers.Singleton(sources.mix, settings.provided.data, places),
        tokens=providers.Singleton(sources.NoText),
    )
    late_data: providers.Singleton[LateValue[RunData | None]] = providers.Singleton(LateValue, None)
    run_data = providers.Callable(_or_whole, late_data, providers.Singleton(RunData, data_source))
    run_source = run_data.provided.source
    holdout = providers.Singleton(data.hold_out, run_source, settings.provided.data, settings.provided.run.seed, say)
    transforms = providers.Singleton(load_transforms, settings.provided.data)
    rejections = providers.Singleton(RejectedRecords, settings.provided.data.on_error)
    tokenizer = providers.Selector(
        settings.provided.tokenizer.kind,
        train=providers.Singleton(
            lazy("holdfast.adapters.tokenizer.train:train_tokenizer"),
            run_source,
            vocabulary_size=settings.provided.tokenizer.vocabulary_size,
            max_bytes=settings.provided.tokenizer.max_bytes,
            usable=providers.Callable(data.usable_text, holdout, transforms),
            usable_key=providers.Callable(data.usable_key, holdout, transforms),
            cache_dir=settings.provided.run.cache_directory,
            judge=rejections.provided.reject,
            backend=settings.provided.tokenizer.backend,
            report=say,
        ),
        huggingface=providers.Singleton(
            lazy("holdfast.adapters.tokenizer.huggingface:HuggingfaceTokenizer.load"),
            settings.provided.tokenizer.path,
            revision=settings.provided.tokenizer.revision,
            backend=settings.provided.tokenizer.backend,
            report=say,
            follows_model=settings.provided.tokenizer.follows_model,
        ),
    )
    late_tokenizer: providers.Singleton[LateValue[Tokenizer | None]] = providers.Singleton(LateValue, None)
    run_tokenizer = providers.Callable(_or_configured, late_tokenizer, tokenizer.provider)
    resource_probe = providers.Singleton(
        lazy("holdfast.adapters.resource_probe.host:HostResourceProbe"),
        directory,
        gpu=providers.Callable(gpu_of, hardware),
    )
    model_factory = model_factories(settings, hardware)
    optimizer = optimizers(settings, hardware, say)
    inbox = providers.Singleton(Inbox)
    record = providers.List()
    _length = settings.provided.run.budget
    budget = providers.Singleton(Budget, steps=_length.steps, tokens=_length.tokens)
    schedule = providers.Singleton(
        training.schedule, settings.provided.optimizer.learning_rate, settings.provided.optimizer.schedule, budget
    )
    audit = providers.Singleton(audit_of, directory, settings.provided.state_store)
    guard = providers.Singleton(guard_of, settings.provided.state_store, audit)
    state_store = providers.Selector(
        settings.provided.state_store.kind,
        disk=providers.Singleton(
            build_disk_store,
            directory,
            settings.provided.state_store,
            settings.provided.run,
            inbox,
            say,
            process_group.provided.rank,
            guard=guard,
            phase_of=providers.Factory(partial, phase_at, schedule=schedule),
        ),
        memory=providers.Singleton(
            lazy("holdfast.adapters.state_store.memory:MemoryStateStore"),
            providers.Factory(
                Retention,
                settings.provided.state_store.keep,
                settings.provided.state_store.keep_every,
                settings.provided.state_store.keep_best,
                settings.provided.state_store.keep_hours,
            ),
        ),
    )

    mixture = providers.Singleton(data.mixture_of, settings.provided.data, settings.provided.run.seed)
    readers = providers.Singleton(data.read_parts, run_source, mixture, run_tokenizer, rejections, transforms)
    all_readers = providers.Singleton(
        data.with_added, readers, run_data.provided.added, run_tokenizer, rejections, transforms
    )
    packing = providers.Singleton(data.choose_packing, settings.provided.data)
    share = providers.Singleton(
        RankShard, settings.provided.optimizer.batch_size, process_group.provided.rank, process_group.provided.size
    )
    cache_folder = providers.Singleton(data.cache_folder, settings.provided.data, settings.provided.run)
    datasets = providers.Singleton(datasets_in, cache_folder, settings.provided.data.cache, show)
    token_cache = providers.Factory(
        lazy("holdfast.adapters.token_cache.disk:DiskTokenCache"),
        cache_folder,
        budget=providers.Callable(data.cache_budget, settings.provided.data, cache_folder),
        eviction=providers.Singleton(
            load_eviction, settings.provided.data.cache, providers.Callable(first_uses, all_readers, mixture, datasets)
        ),
        max_open=providers.Callable(disk.open_shards, settings.provided.data),
        encryption=providers.Singleton(build_shard_encryption, settings.provided.data.cache.encryption),
    )
    token_files = providers.Singleton(
        lazy("holdfast.adapters.token_source.files:FilesTokenSource"),
        providers.Callable(sources.placed, settings.provided.data.path, places),
        folder=cache_folder,
        end_of_text=run_tokenizer.provided.end_of_text,
        vocabulary_size=run_tokenizer.provided.vocabulary_size,
        dtype=settings.provided.data.dtype,
        column=settings.provided.data.column,
    )
    form = providers.Callable(data.form_of, settings.provided.data)
    tokens = providers.Selector(
        form,
        text=providers.Singleton(
            data.prepare,
            all_readers,
            token_cache.provider,
            rejections,
            datasets,
            workers=settings.provided.data.workers,
            say=say,
            show=show,
        ),
        tokens=providers.List(token_files),
    )
    mode = providers.Singleton(data.choose_mode, data_source, settings.provided.data, cache_folder, decide)
    batch_stream = providers.Selector(
        mode,
        cache=providers.Singleton(
            data.cached_batches,
            tokens,
            mixture,
            packing,
            holdout,
            share,
            settings.provided.data.epochs,
            run_data.provided.growth,
        ),
        stream=providers.Singleton(
            data.streamed_batches, readers, mixture, packing, holdout, share, data=settings.provided.data
        ),
    )
    late_data_changes = providers.Singleton(LateValue, 0)
    feed = providers.Singleton(
        Feed,
        batch_stream,
        prefetch=settings.provided.data.prefetch,
        source=run_source,
        rejections=rejections,
    )
    model = providers.Singleton(training.build_model, model_factory, run_tokenizer, settings, packing, say=say)
    held_out = providers.Singleton(
        HoldoutBatches,
        providers.Selector(
            form,
            text=providers.Singleton(TextGroups, readers, holdout, settings.provided.run.seed),
            tokens=providers.Singleton(ShardGroups, token_files),
        ),
        holdout,
        providers.Callable(training.held_out_packing, model, settings.provided.data.sequence_length),
        rows=settings.provided.evaluation.batch_size,
        max_tokens=settings.provided.evaluation.max_tokens,
    )
    trainable = providers.Singleton(lambda optimizer, model: optimizer.prepare(model), optimizer, model)
    evaluator = providers.Singleton(
        Evaluator, trainable, held_out, run_tokenizer.provided.token_bytes, process_group, show=show
    )
    late_micro_batch: providers.Singleton[LateValue[int | None]] = providers.Singleton(LateValue, None)
    micro_batch = providers.Singleton(
        _or_largest,
        late_micro_batch,
        settings.provided.optimizer.num_rows,
        settings.provided.optimizer.fixed_micro_batch,
        process_group.provided.size,
    )
    engine = providers.Singleton(StepEngine, trainable, micro_batch=micro_batch)
    memory_pressure = providers.Singleton(MemoryPressure)
    checkpoints = providers.Singleton(
        Checkpointer,
        state_store,
        trainable,
        event_bus,
        process_group,
        inbox,
        parts=providers.Callable(operator.add, record, providers.Callable(captured, run_tokenizer.provided.write)),
        memory=providers.Singleton(
            build_memory_tier, settings.provided.state_store, process_group.provided.size, memory_pressure
        ),
        conditions=providers.Callable(
            conditions,
            settings,
            hardware,
            share.provided.ranks,
            micro_batch,
            late_data_changes.provided.get.call(),
        ),
    )
    grace = providers.Factory(GracePeriod, settings.provided.recovery.grace_seconds)
    plan = providers.Singleton(TrainPlan, budget, schedule, grace)
    loop_parts = providers.Singleton(
        LoopParts,
        feed=feed,
        engine=engine,
        evaluator=evaluator,
        checkpoints=checkpoints,
        bus=event_bus,
        inbox=inbox,
        group=process_group,
    )
    train_run = providers.Singleton(TrainRun, plan, loop_parts)

    opening_parts = providers.Singleton(
        OpeningParts,
        process_group=process_group,
        inbox=inbox,
        state_store=state_store,
        audit=audit,
        guard=guard,
        budget=budget,
        schedule=schedule,
    )
    found_data = providers.Singleton(
        RunData, data_source, providers.Selector(form, text=providers.Object(None), tokens=token_files)
    )
    data_parts = providers.Singleton(
        DataParts,
        settings=settings,
        found=found_data,
        mode=mode,
        transforms=transforms,
        mixture=mixture,
        factory=model_factory,
        say=say,
        show=show,
    )
    model_parts = providers.Singleton(
        ModelParts,
        settings=settings,
        hardware=hardware,
        process_group=process_group,
        model=model,
        trainable=trainable,
    )
    evaluation_parts = providers.Singleton(EvaluationParts, held_out=held_out, evaluator=evaluator)
    batch_parts = providers.Singleton(
        BatchParts, tokenizer=run_tokenizer, holdout=holdout, batch_stream=batch_stream, feed=feed
    )
    host_parts = providers.Singleton(
        HostParts,
        directory=directory,
        show=show,
        memory_pressure=memory_pressure,
        resource_probe=providers.Callable(
            _probe_of,
            resource_probe.provider,
            process_group.provided.rank,
            is_wanted=settings.provided.resources.auto_tune,
        ),
    )
    run_parts = providers.Singleton(
        RunParts,
        settings=settings,
        opened=opening_parts,
        data=batch_parts,
        model=model_parts,
        micro_batch=micro_batch,
        event_bus=event_bus,
        checkpoints=checkpoints,
        host=host_parts,
    )


def open_evaluation(container: Container, as_begun: Callable[[RunData], RunData]) -> EvaluationParts:
    """Return the parts that measure the model of ``container`` on documents held out of the data ``as_begun``."""
    container.late_data().set(as_begun(container.found_data()))
    parts: EvaluationParts = container.evaluation_parts()
    return parts
