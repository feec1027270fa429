"""Preparation of a module for the device: captured, checked, placed and compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import popart
import torch
from popart.session import reports
from poprt.compile import Executable

from poptorch import arguments
from poptorch._logging import logger
from poptorch.arguments import Arguments
from poptorch.capture import capture, replicas
from poptorch.capture.replicas import Grouping
from poptorch.enums import ConnectionType
from poptorch.errors import Error
from poptorch.execution import compilation, devices, files
from poptorch.execution.program import LoadedModel, iter_named_tensors, make_batching
from poptorch.operators import placement
from poptorch.options import checks as options_check
from poptorch.options.model_options import Options, known_names
from poptorch.options.strategies import PipelinedExecution

_DEFAULT_NAME: Final = "inference"
"""Name of a model in reports."""
_BROADCAST: Final = (
    "PopTorch does not support broadcasting buffers. If your model is able to tolerate buffers "
    "becoming out of sync between replicas, you can disable buffer broadcasting using "
    "poptorch.Options.broadcastBuffers(False)."
)


def bind_arguments(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """Return arguments of a call, bound to the parameters of a module's forward or a function."""
    forward = model.forward if isinstance(model, torch.nn.Module) else model
    return arguments.bind(forward, args, kwargs)


def prepare(
    model: Any,
    given: Arguments,
    options: Options,
    groupings: Mapping[str, Grouping],
    executable: Executable | None = None,
) -> LoadedModel:
    """Capture and compile a module.

    Args:
        model: The module or function.
        given: Arguments like those of its calls.
        options: Its options.
        groupings: Groups of replicas by the parameters that differ between them.
        executable: Executable of a file, which is used instead of compiling.

    Returns:
        The compiled module with its device, not loaded yet.

    Raises:
        Error: If the module or its options cannot be compiled.
    """
    options_check.validate_options(options.toDict(), known_names())
    args, kwargs = given.replace([_narrow(tensor, options) for _, tensor in given.iter_tensors()])
    split = replicas.split_parameters(model, groupings, options.replication_factor)
    with placement.record(options.execution_strategy) as recorder:
        bound = bind_arguments(model, args, kwargs)
        captured = capture.capture(
            model,
            bound,
            options.has_module_namescope,
            _has_strided_groups(options),
            options.replication_factor,
            split,
        )
    offline = options.connection_type is ConnectionType.Never
    num_ipus = placement.count_ipus(
        recorder.num_ipus, options.replication_factor, options.auto_round_num_ipus or offline
    )
    _check_stages(recorder.num_stages, options)
    _check_buffers(model, captured, options)
    files.export_proto(captured.model)
    device = devices.find_device(options, num_ipus)
    compiled = compilation.compile_model(captured, options, device, recorder.num_ipus, executable)
    _write_profile(compiled, options)
    return LoadedModel(captured, compiled, device, options, model)


def _write_profile(made: compilation.Compilation, options: Options) -> None:
    """Write the profile of a compiled model, if options of the engine ask for one."""
    engine = options._Popart.options.get("engineOptions", {})  # noqa: SLF001
    name = options.model_name if options.exists("model_name") else _DEFAULT_NAME
    try:
        folder = reports.write_profile(
            engine, made.executable, made.compiled.options, name, made.model
        )
    except popart.popart_runtime_error as error:
        raise Error(str(error)) from error
    if folder is not None:
        logger.info("Profile of the model, as modelled: %s", folder)


def _has_strided_groups(options: Options) -> bool:
    return bool(options._Popart.options.get("groupNormStridedChannelGrouping"))  # noqa: SLF001


def _narrow(tensor: torch.Tensor, options: Options) -> torch.Tensor:
    """Return the part of an input that one iteration of one replica gets."""
    parts = make_batching(options).num_parts
    if tensor.requires_grad:
        logger.warning(
            "Input tensor has requires_grad=True set. This tensor will be detached because "
            "backward pass via inputs is not supported."
        )
    if not tensor.ndim:
        return tensor
    size = tensor.shape[0]
    assert size % parts == 0, (
        f"Invalid batch dimension: In the input {tensor.shape}, the batch dimension ({size}) must "
        f"be a multiple of Options.deviceIterations({options.device_iterations}) * "
        f"Options.replicationFactor({options.replication_factor}) * "
        f"Options.Training.gradientAccumulation(1) = {parts} because it is used to calculate the "
        "batch size which will be executed on the device in any given iteration. For a full "
        "explanation see the batching semantics page of the documentation."
    )
    return tensor.detach().narrow(0, 0, size // parts)


def _check_stages(num_stages: int, options: Options) -> None:
    """Raise Error if there are fewer iterations than stages of a pipeline."""
    is_pipeline = type(options.execution_strategy) is PipelinedExecution
    logger.debug("enablePipelining set to value %d", is_pipeline and num_stages > 1)
    if is_pipeline and num_stages > options.device_iterations:
        raise Error(
            "poptorch.Options().deviceIterations must be greater than or equal to the number of "
            f"pipeline stages ({num_stages}) when using poptorch.PipelinedExecution. Use "
            "poptorch.ShardedExecution() to run stages one after the other.",
            type="poptorch_cpp_error",
        )


def _check_buffers(model: Any, captured: capture.Captured, options: Options) -> None:
    """Raise Error if replicas may not have different buffers, or named ones do not exist."""
    changed = any(state.buffer for state in captured.state)
    if changed and options.replication_factor > 1 and options.broadcast_buffers:
        raise Error(_BROADCAST, type="poptorch_cpp_error")
    tensors = dict(iter_named_tensors(model))
    for name in options.updatable_named_buffers:
        if name not in tensors:
            raise Error(
                f"updatableNamedBuffers: the model has no buffer {name!r}; it has "
                f"{', '.join(tensors) or 'none'}",
                type="poptorch_cpp_error",
            )
