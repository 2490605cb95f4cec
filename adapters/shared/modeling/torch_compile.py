"""Compiles layers for training (torch.compile), and measures the compilations."""

from __future__ import annotations

import shutil
import sysconfig
import time
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler
from torch._inductor import config as inductor
from torch.utils._triton import has_triton
from transformers.modeling_layers import GradientCheckpointingLayer

from holdfast.adapters.shared.modeling.network_layers import layers_of
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

_MODES = ("default", "reduce-overhead", "max-autotune")


@final
class CompiledLayers:
    """Compiles the layers of ``network`` in place, for training, and measures the compilations until ``close``.

    Each layer's forward is compiled by itself (regional compilation): layers of one kind share their code, so that
    warm-up does not grow with their number; hooks, gradient checkpointing, the head and the loss are not compiled. Each
    shape gets its own code, independent of earlier shapes, so a resumed run rounds as before (torch compiles 8 versions
    of a layer at most; a further shape runs uncompiled). Names of parameters do not change. In evaluation and
    generation, where shapes differ from call to call, layers run as they were. ``mode`` is default, reduce-overhead or
    max-autotune of ``torch.compile``; ``device`` a device type. ``graphs``, ``recompiles`` (code that was compiled
    again for other shapes or values) and ``seconds`` are those of this process so far; ``on_start`` gets the first and
    the last of them when a compilation begins, in its thread. Compiled code of earlier runs in the process is
    forgotten, as torch bounds how often one function may be compiled. Raises ``ConfigurationError`` for
    another mode, a network without layers, or a machine without the compiler that torch needs.
    """

    def __init__(self, network: nn.Module, mode: str, device: str) -> None:
        if mode not in _MODES:
            msg = f"model.compile is {mode}: it must be none, {', '.join(_MODES)}"
            raise ConfigurationError(msg)
        self.graphs = 0
        self.recompiles = 0
        self.seconds = 0.0
        self._began = 0.0
        self.on_start: Callable[[int, float], object] = lambda _graph, _seconds: None
        layers = layers_of(network)
        if not layers:
            msg = f"{type(network).__name__} has no layers that could be compiled one by one: set model.compile=none"
            raise ConfigurationError(msg)
        check_tools(device)
        torch.compiler.reset()
        for layer in layers:
            _compile(layer, mode)
        callback_handler.register_start_callback(self._start)
        callback_handler.register_end_callback(self._end)

    def close(self) -> None:
        """Stop counting."""
        if self._start in callback_handler.start_callbacks:  # any call of torch.compiler.reset removes them
            callback_handler.remove_start_callback(self._start)
        if self._end in callback_handler.end_callbacks:
            callback_handler.remove_end_callback(self._end)

    def _start(self, compilation: CallbackArgs) -> None:
        self._began = time.perf_counter()
        if compilation.callback_trigger is CallbackTrigger.DYNAMO:
            self.graphs += 1
            # an id is frame/compilation: the first compilation of a frame is 0
            self.recompiles += not compilation.compile_id.endswith("/0")
            self.on_start(self.graphs, self.seconds)

    def _end(self, compilation: CallbackArgs) -> None:
        del compilation
        self.seconds += time.perf_counter() - self._began


def _compile(layer: nn.Module, mode: str) -> None:
    eager = layer.forward
    beneath = _beneath_checkpointing(layer)
    compiled = torch.compile(beneath or eager, mode=mode, dynamic=False)

    @wraps(eager)
    def forward(*arguments: Any, **options: Any) -> Any:
        if not layer.training:
            return eager(*arguments, **options)
        if beneath is not None and layer.gradient_checkpointing:
            again: Any = layer._gradient_checkpointing_func  # noqa: SLF001 transformers itself calls it
            return again(partial(compiled, **options), *arguments)
        return compiled(*arguments, **options)

    layer.forward = forward


def _beneath_checkpointing(layer: nn.Module) -> Callable[..., Any] | None:
    """Return the forward of ``layer`` beneath activation checkpointing, or None where nothing wraps it.

    From version 5.23 on transformers wraps the forward; earlier versions wrapped the call, which leaves the forward
    unchanged.
    """
    if not isinstance(layer, GradientCheckpointingLayer) or "__call__" in vars(GradientCheckpointingLayer):
        return None
    forward: Callable[..., Any] = vars(type(layer).forward)["__wrapped__"].__get__(layer)
    return forward


def check_tools(device: str) -> None:
    """Raise ``ConfigurationError`` if torch lacks a tool that it needs to compile for ``device``."""
    if device == "cpu":
        named = [name for name in inductor.cpp.cxx if name]
        if not any(shutil.which(name) for name in named):
            msg = f"model.compile needs a C++ compiler on a CPU, and {' or '.join(named)} is missing: install it, "
            raise ConfigurationError(msg + "name another one in CXX, or set model.compile=none")
        if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
            msg = "model.compile needs Python's headers on a CPU (the system's package python3-dev): install them, or "
            raise ConfigurationError(msg + "set model.compile=none")
    elif device == "cuda" and not has_triton():
        msg = "model.compile needs Triton, which is missing or does not support this GPU: set model.compile=none"
        raise ConfigurationError(msg)
