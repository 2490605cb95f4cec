"""The container: an adapter for each port, chosen by the settings, and the use cases built from them."""

from __future__ import annotations

import operator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dependency_injector import containers, providers

from holdfast.adapters.shared.tensor_state.file_parts import captured
from holdfast.adapters.state_store.shown_transfer import ShownStateStore
from holdfast.application.checkpointing.checkpointer import Checkpointer
from holdfast.application.data.feed import Feed
from holdfast.application.inbox import Inbox
from holdfast.application.training.command_executor import LoopParts
from holdfast.application.training.data_ranks import DataRanks
from holdfast.application.training.evaluator import Evaluator
from holdfast.application.training.loop import TrainRun
from holdfast.application.training.step_engine import StepEngine
from holdfast.bootstrap.run_folder.record_file import RULES
from holdfast.bootstrap.run_folder.run_audit import audit_of
from holdfast.bootstrap.wiring import build_model as training
from holdfast.bootstrap.wiring import data_streams as data
from holdfast.bootstrap.wiring import disk_space as disk
from holdfast.bootstrap.wiring.access_roles import guard_of
from holdfast.bootstrap.wiring.archive_progress import ArchiveProgress
from holdfast.bootstrap.wiring.build_memory_tier import build_memory_tier
from holdfast.bootstrap.wiring.build_validation import build_pipeline, build_rejection_limit, sample_texts
from holdfast.bootstrap.wiring.data_providers import batch_streams, data_sources, token_sources, tokenizers
from holdfast.bootstrap.wiring.dataset_registry import datasets_in
from holdfast.bootstrap.wiring.deduplication import leave_out_duplicates
from holdfast.bootstrap.wiring.device_settings import choose_hardware, gpu_of, probe_of
from holdfast.bootstrap.wiring.document_encoder import build_encoder, with_chat_template
from holdfast.bootstrap.wiring.encryption_keys import build_shard_encryption
from holdfast.bootstrap.wiring.evaluation_providers import held_out_documents, prompt_sampler
from holdfast.bootstrap.wiring.evaluation_sets import evaluation_sets
from holdfast.bootstrap.wiring.eviction_policy import first_uses, load_eviction
from holdfast.bootstrap.wiring.excluded_documents import exclusion_of
from holdfast.bootstrap.wiring.hold_out import hold_out
from holdfast.bootstrap.wiring.late_value import LateValue, late_or, late_or_made
from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.bootstrap.wiring.open_ledger import open_ledger
from holdfast.bootstrap.wiring.open_lineage import Lineage
from holdfast.bootstrap.wiring.process_group import mesh_of, open_alone, open_group
from holdfast.bootstrap.wiring.record_files import rejections_of
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
from holdfast.bootstrap.wiring.text_transforms import fields_read, load_transforms
from holdfast.bootstrap.wiring.torch_providers import model_factories, optimizers
from holdfast.bootstrap.wiring.watch_drift import build_drift_monitor
from holdfast.configs.settings import TrainSettings
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.checkpoints.tiers import phase_at
from holdfast.domain.data.sample_order import RankShard
from holdfast.domain.data.work_part import WHOLE
from holdfast.domain.fault_tolerance.grace_period import GracePeriod
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.micro_batch import max_micro_batch
from holdfast.domain.training.train_plan import TrainPlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.application.data.reference_column import ReferenceColumn
    from holdfast.ports.tokenizer import Tokenizer


class Container(containers.DeclarativeContainer):
    """One selector for each port, chosen by the settings; adapters get primitives, never settings.

    ``report`` shows a line to a person, and ``keep_choice`` keeps the value that was first chosen for an ``auto``
    setting. ``show`` shows the current activity of the run while it takes no steps.
    """

    settings = providers.Dependency(instance_of=TrainSettings)
    directory = providers.Dependency(instance_of=Path)
    report: providers.Dependency[Any] = providers.Dependency()
    keep_choice: providers.Dependency[Any] = providers.Dependency()
    show: providers.Dependency[Any] = providers.Dependency()

    hardware = providers.Singleton(choose_hardware, settings, keep_choice)
    event_bus = providers.Selector(
        settings.provided.event_bus.kind,
        blinker=providers.Singleton(lazy("holdfast.adapters.event_bus.blinker:BlinkerEventBus")),
        memory=providers.Singleton(lazy("holdfast.adapters.event_bus.memory:MemoryEventBus")),
    )
    process_group = providers.Selector(
        settings.provided.distributed.kind,
        auto=providers.Singleton(open_group, settings.provided.distributed.timeout_seconds),
        ray=providers.Singleton(open_group, settings.provided.distributed.timeout_seconds),
        single=providers.Singleton(open_alone),
        torch=providers.Singleton(
            lazy("holdfast.adapters.process_group.torch:TorchProcessGroup"),
            settings.provided.distributed.timeout_seconds,
        ),
    )
    mesh = providers.Singleton(mesh_of, settings.provided.distributed, process_group.provided.size)
    data_ranks = providers.Singleton(DataRanks, process_group, mesh)
    work_part = providers.Object(WHOLE)
    places = providers.Object[Any]({})  # of the data, when the order of their files was chosen
    rules = providers.Object[Any](RULES)  # the versions with which the run began
    transforms = providers.Singleton(load_transforms, settings.provided.data)
    fields = providers.Singleton(fields_read, transforms, settings.provided.data, rules)
    data_source = data_sources(settings, places, rules.provided["files"], fields)
    late_data: providers.Singleton[LateValue[RunData | None]] = providers.Singleton(LateValue, None)
    run_data = providers.Callable(late_or, late_data, providers.Singleton(RunData, data_source))
    run_source = run_data.provided.source
    holdout_before = providers.Object[Any]({})  # the record of that with which the run began
    holdout = providers.Singleton(hold_out, run_source, settings, report, show, holdout_before)
    sample = providers.Factory(partial, sample_texts, run_source)
    limit = providers.Singleton(build_rejection_limit, settings.provided.data)
    pipeline_before_tokens = providers.Singleton(
        build_pipeline, transforms, settings.provided.data, sample, None, fields
    )
    rejections = providers.Singleton(rejections_of, settings.provided.data)
    tokenizer = tokenizers(
        settings,
        run_source,
        usable=(holdout, pipeline_before_tokens, settings.provided.data.task),
        judge=rejections.provided.reject,
        report=report,
        show=show,
    )
    late_tokenizer: providers.Singleton[LateValue[Tokenizer | None]] = providers.Singleton(LateValue, None)
    _made_tokenizer = providers.Callable(late_or_made, late_tokenizer, tokenizer.provider)
    run_tokenizer = providers.Singleton(
        with_chat_template, _made_tokenizer, settings.provided.data, rules.provided["files"]
    )
    document_encoder = providers.Singleton(build_encoder, settings.provided.data, run_tokenizer)
    resource_probe = providers.Singleton(
        lazy("holdfast.adapters.resource_probe.host:HostResourceProbe"),
        directory,
        gpu=providers.Callable(gpu_of, hardware),
    )
    model_factory = model_factories(settings, hardware)
    optimizer = optimizers(settings, hardware, mesh, rules, report)
    inbox = providers.Singleton(Inbox)
    ledger = providers.Singleton(open_ledger, settings.provided.ledger, directory, report)
    record = providers.List()
    _length = settings.provided.run.budget
    budget = providers.Singleton(Budget, _length.steps, _length.tokens, _length.minutes, settings.provided.data.epochs)
    schedule = providers.Singleton(
        training.schedule, settings.provided.optimizer.learning_rate, settings.provided.optimizer.schedule, budget
    )
    archive_progress = providers.Singleton(ArchiveProgress, show)
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
            report,
            process_group.provided.rank,
            guard=guard,
            phase_of=providers.Factory(partial, phase_at, schedule=schedule),
            count=archive_progress.provided.count,
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
    inner_store = providers.Object[Any](None)  # the state store without its wrapper
    mixture = providers.Singleton(data.mixture_of, settings.provided.data, settings.provided.run.seed, rules)
    pipeline = providers.Singleton(
        build_pipeline, transforms, settings.provided.data, sample, run_tokenizer, fields, report
    )
    cache_folder = providers.Singleton(data.cache_folder, settings.provided.data, settings.provided.run)
    mode = providers.Singleton(data.choose_mode, data_source, settings.provided.data, cache_folder, keep_choice)
    drift = providers.Singleton(
        build_drift_monitor, settings.provided.data, cache_folder, event_bus, document_encoder.provider, report
    )
    _read_parts = providers.Singleton(
        data.read_parts,
        run_source,
        mixture,
        document_encoder,
        rejections,
        pipeline,
        limit,
        providers.Selector(mode, cache=providers.Object(None), stream=drift),
    )
    shard_encryption = providers.Singleton(build_shard_encryption, settings.provided.data.cache.encryption)
    all_readers = providers.Singleton(
        leave_out_duplicates,
        providers.Singleton(
            data.with_added, _read_parts, run_data.provided.added, document_encoder, rejections, pipeline, limit
        ),
        settings.provided.data,
        mode,
        cache_folder,
        shard_encryption,
        progress=providers.Factory(partial, data.show_duplicates, show),
        part=work_part,
    )
    readers = providers.Callable(data.first_readers, all_readers, _read_parts)
    packing = providers.Singleton(data.choose_packing, settings.provided.data)
    excluded = providers.Singleton(exclusion_of, settings.provided.data)
    share = providers.Singleton(
        RankShard, settings.provided.optimizer.batch_size, data_ranks.provided.rank, data_ranks.provided.size
    )
    datasets = providers.Singleton(datasets_in, cache_folder, settings.provided.data.cache, show)
    lineage = providers.Singleton(Lineage, settings, directory, cache_folder, report)
    token_cache = providers.Factory(
        lazy("holdfast.adapters.token_cache.disk:DiskTokenCache"),
        cache_folder,
        budget=providers.Callable(data.cache_budget, settings.provided.data, cache_folder),
        eviction=providers.Singleton(
            load_eviction, settings.provided.data.cache, providers.Callable(first_uses, all_readers, mixture, datasets)
        ),
        max_open=providers.Callable(disk.open_shards, settings.provided.data),
        encryption=shard_encryption,
    )
    token_files = token_sources(settings, places, cache_folder, run_tokenizer, rules.provided["files"])
    form = providers.Callable(data.form_of, settings.provided.data)
    tokens = providers.Selector(
        form,
        text=providers.Singleton(
            data.prepare,
            all_readers,
            token_cache.provider,
            rejections,
            datasets,
            lineage,
            workers=settings.provided.data.workers,
            report=report,
            show=show,
        ),
        tokens=providers.List(token_files),
    )
    changes = (run_data.provided.growth, excluded)
    batch_stream = batch_streams(
        settings, mode, (tokens, readers), (mixture, packing, holdout, share), changes, (rules, process_group)
    )
    late_reference: providers.Singleton[LateValue[ReferenceColumn | None]] = providers.Singleton(LateValue, None)
    late_data_changes = providers.Singleton(LateValue, 0)
    trained_stream = providers.Callable(data.trained_stream, batch_stream, late_reference.provided.get.call())
    depth = providers.Callable(data.prefetch_depth, settings.provided.data, settings.provided.optimizer.batch_size)
    feed = providers.Singleton(Feed, trained_stream, prefetch=depth, source=run_source, rejections=rejections)
    model = providers.Singleton(
        training.build_model, model_factory, run_tokenizer, settings, packing, optimizer, report=report, show=show
    )
    eval_packing = providers.Callable(training.held_out_packing, model, settings.provided.data)
    held_out_by = (holdout, eval_packing, rules)
    held_out = held_out_documents(
        settings, form, (readers, token_files, tokens), late_reference, held_out_by, excluded, mixture
    )
    eval_sets = providers.Singleton(
        evaluation_sets, settings, rules, fields, document_encoder, rejections, pipeline, eval_packing
    )
    trainable = providers.Singleton(lambda optimizer, model: optimizer.prepare(model), optimizer, model)
    evaluator = providers.Singleton(
        Evaluator,
        trainable,
        held_out,
        run_tokenizer,
        data_ranks,
        sets=eval_sets,
        rule=providers.Singleton(training.preference_rule, settings),
        report=report,
        show=show,
    )
    sampler = prompt_sampler(settings, trainable, run_tokenizer, process_group, report=report, show=show)
    late_micro_batch: providers.Singleton[LateValue[int | None]] = providers.Singleton(LateValue, None)
    micro_batch = providers.Singleton(
        late_or,
        late_micro_batch,
        providers.Callable(
            max_micro_batch,
            settings.provided.optimizer.num_rows,
            settings.provided.optimizer.fixed_micro_batch,
            data_ranks.provided.size,
        ),
    )
    engine = providers.Singleton(StepEngine, trainable, micro_batch=micro_batch)
    memory_pressure = providers.Singleton(MemoryPressure)
    checkpoints = providers.Singleton(
        Checkpointer,
        providers.Singleton(ShownStateStore, state_store, show),
        trainable,
        event_bus,
        process_group,
        inbox,
        parts=providers.Callable(operator.add, record, providers.Callable(captured, run_tokenizer.provided.write)),
        memory=providers.Singleton(
            build_memory_tier, settings.provided.state_store, process_group.provided.size, memory_pressure
        ),
        conditions=providers.Callable(
            conditions, settings, hardware, mesh, micro_batch, late_data_changes.provided.get.call()
        ),
    )
    grace = providers.Factory(GracePeriod, settings.provided.recovery.grace_seconds)
    plan = providers.Singleton(TrainPlan, budget, schedule, grace, settings.provided.recovery.early_stopping.rule)
    loop_parts = providers.Singleton(
        LoopParts,
        feed=feed,
        engine=engine,
        evaluator=evaluator,
        sampler=sampler,
        checkpoints=checkpoints,
        bus=event_bus,
        inbox=inbox,
        ranks=data_ranks,
    )
    train_run = providers.Singleton(TrainRun, plan, loop_parts)

    opening_parts = providers.Singleton(
        OpeningParts,
        process_group=process_group,
        inbox=inbox,
        state_store=state_store,
        inner_store=inner_store,
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
        mixture=mixture,
        factory=model_factory,
        report=report,
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
        show=archive_progress.provided.show,
        memory_pressure=memory_pressure,
        lineage=lineage,
        resource_probe=providers.Callable(
            probe_of,
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
    """Return the parts that measure the model of ``container`` on the documents that are held out.

    ``as_begun`` returns the data that the run began with.
    """
    container.late_data().set(as_begun(container.found_data()))
    parts: EvaluationParts = container.evaluation_parts()
    return parts
