"""A module that runs forward once while torch.export watches, and records what it cannot see.

Buffers are replaced by clones for that run. Those whose version has changed afterwards are state:
their new values are outputs of the graph. Inputs that forward changes are treated the same.
"""

# ruff: noqa: SLF001  # torch shows versions and buffers nowhere else

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from poptorch.arguments import Arguments, iter_tensors
from poptorch.errors import Error
from poptorch.operators import placement, scopes
from poptorch.operators.multi_conv import note_convolution
from poptorch.operators.tracing import Print, current_trace, tracing
from poptorch.translations import ctc, embeddings

IPU = "ipu"
_CONVOLUTIONS = frozenset({torch.conv1d, torch.conv2d, torch.conv3d, torch.convolution})
_MIXED = frozenset(
    {
        torch.nn.functional.linear,
        torch.conv1d,
        torch.conv2d,
        torch.conv3d,
        torch.conv_transpose1d,
        torch.conv_transpose2d,
        torch.conv_transpose3d,
        torch.prelu,
    }
)
"""Functions whose parameters are cast to the type of the activations on the IPU."""
_CAST = (torch.half, torch.bfloat16, torch.float32, torch.float64)
_WHOLE = {torch.half: 2**11, torch.float32: 2**24}
"""Numbers up to which a type holds every whole one."""


@dataclass(slots=True)
class Recording:
    """What one run of forward has shown.

    Attributes:
        result: What it returned, with the tensors of the capture.
        outputs: Number of tensors in the result.
        buffers: Names of the buffers that it changes.
        inputs: Positions of the inputs that it changes, among the flattened ones.
        prints: Tensors that it prints.
        attributes: Tensors of modules that are no buffers, and that it changes.
        error: Exception that it raised.
    """

    result: Any = None
    outputs: int = 0
    buffers: list[str] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    prints: list[Print] = field(default_factory=list)
    attributes: list[Any] = field(default_factory=list)
    error: Exception | None = None

    def clear(self) -> None:
        """Forget what an earlier run has shown."""
        self.__init__()  # type: ignore[misc]  # the defaults stand there


class Recorder(torch.nn.Module):  # type: ignore[misc]  # mypy sees no torch
    """Module of tensors to tensors: outputs, new buffers, new inputs and printed tensors."""

    def __init__(
        self, model: Callable[..., Any], arguments: Arguments, has_strided_groups: bool = False
    ) -> None:
        super().__init__()
        owner = getattr(model, "__self__", model)
        if isinstance(owner, torch.nn.Module):
            self.user = owner
        self._modules_by_name = (
            dict(owner.named_modules()) if isinstance(owner, torch.nn.Module) else {}
        )
        # In a tuple, so that torch does not register a module a second time.
        self._call = (model,)
        self._arguments = arguments
        self._has_strided_groups = has_strided_groups
        # torch.export restores attributes after the run, so this object is filled in place.
        self.recording = Recording()

    def forward(self, *tensors: Any) -> list[Any]:
        """Run the model's forward function on clones."""
        recording = self.recording
        recording.clear()
        placement.restart()
        inputs = [tensor.clone() for tensor in tensors]
        versions = [tensor._version for tensor in inputs]
        with (
            tracing() as trace,
            _cloned_state(self._modules_by_name) as state,
            scopes.follow(self._modules_by_name),
        ):
            args, keywords = self._arguments.replace(inputs)
            try:
                with DeviceMode(self._has_strided_groups):
                    recording.result = self._call[0](*args, **keywords)
            except Exception as error:
                recording.error = error
                raise
            _check_buffers(state)
        results = [tensor for _, tensor in iter_tensors(recording.result)]
        recording.outputs = len(results)
        altered = [entry for entry in state if entry.clone._version != entry.version]
        changed = [entry for entry in altered if entry.path]
        attributes = [entry for entry in altered if not entry.path]
        recording.buffers = [entry.path for entry in changed]
        recording.attributes = [attribute.value for attribute in attributes]
        recording.inputs = [
            index
            for index, (tensor, version) in enumerate(zip(inputs, versions, strict=True))
            if tensor._version != version
        ]
        recording.prints = [entry for _, entry in trace.prints]
        return [
            *results,
            *(entry.clone for entry in changed),
            *(inputs[index] for index in recording.inputs),
            *(tensor for tensor, _ in trace.prints),
            *(attribute.clone for attribute in attributes),
        ]


class DeviceMode(TorchFunctionMode):  # type: ignore[misc]  # mypy sees no torch
    """Rules of the IPU that differ from the CPU's: its device's name, parameters in half."""

    def __init__(self, has_strided_groups: bool = False) -> None:
        super().__init__()
        self._has_strided_groups = has_strided_groups

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch as the IPU would."""
        keywords = dict(kwargs or {})
        if _is_ipu(keywords.get("device")):
            keywords["device"] = "cpu"
        args = tuple("cpu" if _is_ipu(argument) else argument for argument in args)
        if func in _MIXED:
            args = _match_types(args)
            cast = _match_types((*args[:1], *keywords.values()))[len(args[:1]) :]
            keywords = dict(zip(keywords, cast, strict=True))
        if _is_getter(func):
            return func(*args, **keywords)
        own = _OWN.get(func, func)
        if func is F.group_norm and self._has_strided_groups:
            own = functools.partial(_group_strided, own)
        if func in _CONVOLUTIONS:
            note_convolution(current_trace())
        with placement.mark_operator():
            result = own(*args, **keywords)
        if isinstance(result, (torch.Tensor, tuple, list)):
            placement.note_operator()
        return result


def _normalize(func: Callable[..., Any], x: Any, *args: Any, **keywords: Any) -> Any:
    """Compute half activations in float if parameters or statistics are in float."""
    operands = (x, *args)
    kinds = {leave.dtype for leave in tree_leaves((operands, keywords)) if torch.is_tensor(leave)}
    if not kinds >= {torch.half, torch.float32}:
        return func(*operands, **keywords)
    return func(*tree_map(_widen, operands), **tree_map(_widen, keywords)).to(x.dtype)


def _widen(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) else value


def _is_getter(func: Any) -> bool:
    return getattr(func, "__name__", "") == "__get__"


def _is_ipu(device: Any) -> bool:
    if isinstance(device, torch.device):
        return bool(device.type == IPU)
    return isinstance(device, str) and device.partition(":")[0] == IPU


def _match_types(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cast floating-point parameters to the first value's type, if that is one, too."""
    if not values or not isinstance(values[0], torch.Tensor) or values[0].dtype not in _CAST:
        return values
    return tuple(
        value.to(values[0].dtype)
        if isinstance(value, torch.Tensor) and value.dtype in _CAST
        else value
        for value in values
    )


def _batch_norm(
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Normalize by the batch's statistics in training.

    torch's exporter writes the form for inference instead. The running statistics stay as they
    are: PopART copies new ones in training sessions only (Ir::constructBackwards).
    """
    if not training:
        operands = (running_mean, running_var, weight, bias, training, momentum, eps)
        return _normalize(F.batch_norm, x, *operands)
    axes = [axis for axis in range(x.dim()) if axis != 1]
    shape = [-1 if axis == 1 else 1 for axis in range(x.dim())]
    wide = x.float()
    mean = wide.mean(axes)
    centred = wide - mean.reshape(shape)
    var = (centred * centred).mean(axes)
    y = centred * torch.rsqrt(var + eps).reshape(shape)
    if weight is not None:
        y = y * weight.reshape(shape)
    if bias is not None:
        y = y + bias.reshape(shape)
    return y.to(x.dtype)


def _group_strided(
    func: Any, x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Normalize groups of every num_groups-th channel: PopART's groupNormStridedChannelGrouping."""
    order = torch.arange(x.shape[1]).reshape(-1, num_groups).T.reshape(-1)
    parameters = [
        parameter if parameter is None else parameter[order] for parameter in (weight, bias)
    ]
    return func(x[:, order], num_groups, *parameters, eps)[:, torch.argsort(order)]


def _random_(x: Any, *limits: int | None, generator: Any = None, **named: int | None) -> Any:
    """Fill a tensor with whole numbers: torch.export cannot write an argument called `from`."""
    del generator
    names = ("to",) if len(limits) == 1 else ("from", "to")
    bounds = {**dict(zip(names, limits, strict=False)), **named}
    low, high = bounds.get("from") or 0, bounds.get("to") or _WHOLE.get(x.dtype, 2**31 - 1)
    return x.copy_(torch.randint(low, high, x.shape).to(x.dtype))


_OWN: dict[Any, Callable[..., Any]] = {
    F.batch_norm: _batch_norm,
    F.ctc_loss: ctc.ctc_loss,
    F.one_hot: embeddings.check_one_hot,
    torch.Tensor.random_: _random_,
    **{
        each: functools.partial(_normalize, each)
        for each in (F.group_norm, F.instance_norm, F.layer_norm)
    },
}
"""Functions of torch that are computed otherwise on the IPU."""


@dataclass(frozen=True, slots=True)
class _Buffer:
    """A buffer and its clone: the module that holds it, names, and the clone's first version.

    A tensor that is a plain attribute of its module has no path.
    """

    module: Any
    name: str
    path: str
    value: Any
    clone: Any
    version: int


@contextmanager
def _cloned_state(modules: dict[str, Any]) -> Iterator[list[_Buffer]]:
    """Replace the buffers and tensor attributes of modules by clones, and restore them at the end.

    One buffer under two names stays one.
    """
    seen: dict[int, Any] = {}
    originals = [(module, dict(vars(module)), dict(module._buffers)) for module in modules.values()]
    state = []
    for prefix, module in modules.items():
        for name, value in module._buffers.items():
            if value is None or id(value) in seen:
                module._buffers[name] = seen.get(id(value))
                continue
            clone = seen[id(value)] = value.clone()
            path = f"{prefix}.{name}" if prefix else name
            state.append(_Buffer(module, name, path, value, clone, clone._version))
            module._buffers[name] = clone
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                clone = vars(module)[name] = value.clone()
                state.append(_Buffer(module, name, "", value, clone, clone._version))
    try:
        yield state
    finally:
        for module, attributes, buffers in originals:
            module._buffers.clear()
            module._buffers.update(buffers)
            for name, value in attributes.items():
                if isinstance(value, torch.Tensor) or isinstance(
                    vars(module).get(name), torch.Tensor
                ):
                    vars(module)[name] = value


def _check_buffers(state: list[_Buffer]) -> None:
    """Raise Error for a buffer that forward has removed or bound to another tensor."""
    for entry in state:
        if not entry.path:
            continue
        if entry.name not in entry.module._buffers:
            raise Error(
                f"Buffer {entry.path} is removed from the model when calling the forward method."
            )
        buffer = entry.module._buffers[entry.name]
        if buffer is not entry.clone and not isinstance(
            entry.module, torch.nn.modules.batchnorm._NormBase
        ):
            raise Error(
                f"Buffer {entry.path} is reassigned within the model when calling the forward "
                f"method. This is not supported. Consider using self.{entry.name}.copy_(src) to "
                "copy data from a source tensor, where src is the name of the source tensor."
            )
