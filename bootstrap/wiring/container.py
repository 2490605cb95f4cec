"""Which adapter answers which port, and who is built from what."""

from __future__ import annotations

import operator
from functools import partial
from pathlib import Path
from typing import Any

from dependency_injector import containers, providers

from holdfast.adapters.shared.tensor_state.file_parts import captured
from holdfast.application.checkpointing.checkpointer import Checkpointer
from holdfast.application.data.feed import Feed
from holdfast.application.data.holdout_batches import HoldoutBatches, ShardGroups, TextGroups
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.inbox import Inbox
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
from holdfast.bootstrap.wiring.determinism import conditions
from holdfast.bootstrap.wiring.device_settings import choose_hardware, gpu_of
from holdfast.bootstrap.wiring.encryption_keys import build_shard_encryption
from holdfast.bootstrap.wiring.eviction_policy import first_uses, load_eviction
from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.bootstrap.wiring.process_group import open_group
from holdfast.bootstrap.wiring.reserve_host_memory import MemoryPressure
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

    chosen = providers.Singleton(choose_hardware, settings, decide)
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
    added: providers.Object[Any] = providers.Object(())  # sources of what was added to the data since the run began
    growth = providers.Object(data.UNGROWN)
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
    holdout = providers.Singleton(data.hold_out, data_source, settings.provided.data, settings.provided.run.seed, say)
    transforms = providers.Singleton(load_transforms, settings.provided.data)
    rejections = providers.Singleton(RejectedRecords, settings.provided.data.on_error)
    tokenizer = providers.Selector(
        settings.provided.tokenizer.kind,
        train=providers.Singleton(
            lazy("holdfast.adapters.tokenizer.train:train_tokenizer"),
            data_source,
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
    resource_probe = providers.Singleton(
        lazy("holdfast.adapters.resource_probe.host:HostResourceProbe"),
        directory,
        gpu=providers.Callable(gpu_of, chosen),
    )
    model_factory = model_factories(settings, chosen)
    optimizer = optimizers(settings, chosen, say)
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
    readers = providers.Singleton(data.read_parts, data_source, mixture, tokenizer, rejections, transforms)
    all_readers = providers.Singleton(data.with_added, readers, added, tokenizer, rejections, transforms)
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
        end_of_text=tokenizer.provided.end_of_text,
        vocabulary_size=tokenizer.provided.vocabulary_size,
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
            data.cached_batches, tokens, mixture, packing, holdout, share, settings.provided.data.epochs, growth
        ),
        stream=providers.Singleton(
            data.streamed_batches, readers, mixture, packing, holdout, share, data=settings.provided.data
        ),
    )
    identified = providers.Selector(form, text=data_source, tokens=token_files)
    data_fingerprint = providers.Callable(lambda data: data.fingerprint(), identified)
    data_changes: providers.Object[int] = providers.Object(0)
    feed = providers.Singleton(
        Feed, batch_stream, prefetch=settings.provided.data.prefetch, source=data_source, rejections=rejections
    )
    model = providers.Singleton(training.build_model, model_factory, tokenizer, settings, packing, say=say)
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
        Evaluator, trainable, held_out, tokenizer.provided.token_bytes, process_group, show=show
    )
    micro_batch = providers.Singleton(
        max_micro_batch,
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
        parts=providers.Callable(operator.add, record, providers.Callable(captured, tokenizer.provided.write)),
        memory=providers.Singleton(
            build_memory_tier, settings.provided.state_store, process_group.provided.size, memory_pressure
        ),
        conditions=providers.Callable(conditions, settings, chosen, share.provided.ranks, micro_batch, data_changes),
    )
    grace = providers.Factory(GracePeriod, settings.provided.recovery.grace_seconds)
    plan = providers.Singleton(TrainPlan, budget, schedule, grace)
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
