"""The torch adapters of a run, which build the model and train it."""

from __future__ import annotations

from typing import Any

from dependency_injector import providers

from holdfast.bootstrap.wiring import build_model as training
from holdfast.bootstrap.wiring.device_settings import checkpointing
from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.bootstrap.wiring.process_group import pipeline_schedule


def model_factories(settings: providers.Dependency[Any], chosen: providers.Provider[Any]) -> providers.Selector[Any]:
    """Return the choice of model factories."""
    again = providers.Callable(checkpointing, settings, chosen.provided["optimizer.precision"])
    return providers.Selector(
        settings.provided.model.kind,
        huggingface=providers.Singleton(
            lazy("holdfast.adapters.model_factory.huggingface:HuggingfaceModelFactory"),
            path=settings.provided.model.path,
            revision=settings.provided.model.revision,
            pretrained=settings.provided.model.loads_weights,
            config=settings.provided.model.config,
            attention=chosen.provided["model.attention"],
            sequence_length=settings.provided.data.sequence_length,
            trusts=providers.Factory(
                lazy("holdfast.adapters.model_factory.pickled_weights:Trust"),
                code_of=settings.provided.model.trust_remote_code,
                pickle_of=settings.provided.model.trust_pickle,
            ),
            gradient_checkpointing=again,
        ),
        decoder=providers.Singleton(
            lazy("holdfast.adapters.model_factory.decoder:DecoderModelFactory"),
            config=settings.provided.model.shape,
            path=settings.provided.model.path,
            dropout=settings.provided.model.dropped,
            attention=chosen.provided["model.attention"],
            initialisation=settings.provided.model.initialisation,
            initializer_range=settings.provided.model.initializer_range,
            sequence_length=settings.provided.data.sequence_length,
            gradient_checkpointing=again,
        ),
    )


def _algorithm(settings: providers.Dependency[Any], rules: providers.Provider[Any]) -> providers.Singleton[Any]:
    return providers.Singleton(
        lazy("holdfast.adapters.optimizer.optimizer_spec:OptimizerSpec"),
        settings.provided.optimizer.algorithm,
        weight_decay=settings.provided.optimizer.weight_decay,
        betas=settings.provided.optimizer.betas,
        epsilon=settings.provided.optimizer.epsilon,
        decay_embeddings=settings.provided.optimizer.decay_embeddings,
        ema_decay=settings.provided.optimizer.ema_decay,
        rule=rules.provided["parameter_groups"],
    )


def optimizers(
    settings: providers.Dependency[Any],
    chosen: providers.Provider[Any],
    mesh: providers.Provider[Any],
    rules: providers.Provider[Any],
    report: providers.Dependency[Any],
) -> providers.Selector[Any]:
    """Return the choice of optimizers."""
    algorithm = _algorithm(settings, rules)
    return providers.Selector(
        settings.provided.optimizer.kind,
        accelerate=providers.Singleton(
            lazy("holdfast.adapters.optimizer.accelerate:AccelerateOptimizer"),
            device=chosen.provided["optimizer.device"],
            precision=chosen.provided["optimizer.precision"],
            algorithm=algorithm,
            clip=settings.provided.optimizer.clip,
            seed=settings.provided.run.seed,
            sequence_length=settings.provided.data.sequence_length,
            parallelism=providers.Factory(
                lazy("holdfast.adapters.optimizer.parallelism:Parallelism"),
                settings.provided.optimizer.sharding,
                offload=settings.provided.optimizer.offload,
                mesh=mesh,
                schedule=providers.Callable(pipeline_schedule, settings.provided.distributed),
            ),
        ),
        deepspeed=providers.Singleton(
            lazy("holdfast.adapters.optimizer.deepspeed:DeepspeedOptimizer"),
            device=chosen.provided["optimizer.device"],
            precision=chosen.provided["optimizer.precision"],
            own=providers.Callable(training.deepspeed_values, settings.provided.optimizer),
            config=providers.Callable(training.deepspeed_file, settings.provided.optimizer, report),
            algorithm=algorithm,
            seed=settings.provided.run.seed,
            sequence_length=settings.provided.data.sequence_length,
        ),
    )
