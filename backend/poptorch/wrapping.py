"""inferenceModel, trainingModel and load: modules and files become executors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from os import PathLike
from typing import Any, NoReturn

import torch

from poptorch.enums import ConnectionType, OutputMode
from poptorch.errors import Error
from poptorch.execution import files
from poptorch.execution.executor import PoplarExecutor
from poptorch.options.model_options import Options
from poptorch.options.strategies import PipelinedExecution


def inferenceModel(model: Any, options: Options | None = None) -> PoplarExecutor:
    """Wrap a module, so that calls run on the simulated IPU.

    Parameters are shared with the module. The options cannot be changed any more.

    Args:
        model: A module, a function of tensors, or another executor, whose module is taken.
        options: Options; None means the defaults.

    Returns:
        The executor.

    Raises:
        Error: If the options are of another type, or accumulate gradients.

    Example:
        >>> import poptorch
        >>> import torch
        >>> model = poptorch.inferenceModel(torch.nn.ReLU())
        >>> model(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """
    chosen = _take_options(options)
    if isinstance(model, PoplarExecutor):
        model = model.model
    if not callable(model):
        raise Error(f"expected a torch.nn.Module or a function, found {type(model).__name__}")
    _check_accumulation(chosen)
    if chosen.defaultOutputMode():
        chosen.outputMode(OutputMode.All)
    chosen.freeze()
    is_module = isinstance(model, torch.nn.Module)
    return PoplarExecutor(copy.copy(model) if is_module else model, chosen)


def trainingModel(model: Any, options: Options | None = None, optimizer: Any = None) -> NoReturn:
    """Reject training, which this implementation lacks.

    Args:
        model: A module.
        options: Options.
        optimizer: An optimizer.

    Raises:
        Error: Always.
    """
    del model, options, optimizer
    raise Error(
        "poptorch.trainingModel: training is not supported by this implementation, which simulates "
        "inference only. Train with PyTorch and wrap the module by poptorch.inferenceModel"
    )


def load(
    filename: str | PathLike[str], edit_opts_fn: Callable[[Options], Any] | None = None
) -> PoplarExecutor:
    """Load a model that compileAndExport or save has written with its module.

    The module is unpickled, which runs code of the file: load only files that you trust;
    `inspect_file` reads others. The machine code of a real SDK's file does not run here: its module
    is compiled again.

    Args:
        filename: Path of the file.
        edit_opts_fn: Function that changes the options before they are used.

    Returns:
        The executor.

    Raises:
        Error: If the file cannot be read.
    """
    file = files.read_file(filename)
    data = files.unpickle(file)
    assert data.model is not None, (
        f"{filename} was exported without its model (export_model=False): wrap the model by "
        "poptorch.inferenceModel and call its loadExecutable()"
    )
    options = data.options.clone()
    options.deleteIfExists("ipu_version")
    if options.connection_type is ConnectionType.Never:
        options.connectionType(ConnectionType.Always)
    if edit_opts_fn is not None:
        edit_opts_fn(options)
    executor = inferenceModel(data.model, options)
    executor._load(file, data)  # noqa: SLF001 # unpickled once
    return executor


def _take_options(options: Any) -> Options:
    if options is None:
        return Options()
    if not isinstance(options, Options):
        raise Error(
            f"Invalid type: 'options' is of type {type(options)} but must be a poptorch.Options"
        )
    options.freeze()
    return copy.deepcopy(options)


def _check_accumulation(options: Options) -> None:
    if options.Training.gradient_accumulation == 1:
        return
    text = (
        "You must set poptorch.Options().Training.gradientAccumulation to 1 or leave it as its "
        "default value (1) when running a poptorch.inferenceModel()."
    )
    if type(options.execution_strategy) is PipelinedExecution:
        text += (
            " Use poptorch.Options().deviceIterations to process a sufficient number of batches "
            "each run for pipelined execution instead."
        )
    raise Error(text)
