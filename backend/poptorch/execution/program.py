"""A compiled module on its device: the program, its weights and its state.

Weights are streamed: `copy_to_device` reads those of the module. A parameter that the compiler has
made a constant of the program is compared instead: if it has changed, the program is stale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import popart
import torch
from popart import AnchorReturnType, DeviceInfo
from popart.lowering import Effect, EffectKind
from popart.session import reports
from popart.session.program import DeviceProgram
from popart.session.replication import JointProgram

from popef._tools.arrays import Array
from poptorch.enums import CommGroupType, OutputMode
from poptorch.errors import Error
from poptorch.execution import counters
from poptorch.execution.compilation import Compilation
from poptorch.execution.steps import Batching, DeviceState, Steps

if TYPE_CHECKING:
    from poptorch.capture.capture import Captured
    from poptorch.options.model_options import Options

_DEVICE_TYPES = {torch.float64: torch.float32, torch.bfloat16: torch.float32}
"""Types that arrays lack or that the device narrows."""
_NARROWED = {np.dtype(np.int64): np.int32, np.dtype(np.float64): np.float32}


def to_array(tensor: torch.Tensor) -> Array:
    """Return a tensor's values as an array, not copied if its type and layout allow it."""
    tensor = tensor.detach()
    dtype = _DEVICE_TYPES.get(tensor.dtype)
    if dtype is not None:
        tensor = tensor.to(dtype)
    array: Array = tensor.cpu().contiguous().numpy()
    return array


def to_tensor(array: Array) -> torch.Tensor:
    """Return a result as a tensor of a type that the device has."""
    narrowed = array.astype(_NARROWED.get(array.dtype, array.dtype), copy=False)
    return torch.from_numpy(np.asarray(narrowed, order="C"))


def iter_named_tensors(module: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers of a module with all their names; functions have none."""
    if isinstance(module, torch.nn.Module):
        yield from module.named_parameters(remove_duplicate=False)
        yield from module.named_buffers(remove_duplicate=False)


def find_kind(options: Options) -> AnchorReturnType:
    """Return popart's name of the options' output mode."""
    return make_kind(options.output_mode, options.output_return_period)


def make_kind(mode: OutputMode, period: int) -> AnchorReturnType:
    """Return popart's name of an output mode."""
    if mode is OutputMode.EveryN:
        return AnchorReturnType(mode.name, period)
    return AnchorReturnType("All" if mode is OutputMode.Default else mode.name)


@contextmanager
def poplar_errors() -> Iterator[None]:
    """Raise errors of the device as PopTorch's.

    Yields:
        Nothing.

    Raises:
        Error: In place of an error of popart or Poplar.
    """
    try:
        yield
    except (popart.popart_exception, popart.poplar_exception) as error:
        raise Error(str(error), type=type(error).__name__) from error


@dataclass(slots=True)
class LoadedModel:
    """A captured and compiled module with its device."""

    captured: Captured
    compilation: Compilation
    device: DeviceInfo
    options: Options
    module: Any
    program: DeviceProgram | JointProgram = field(init=False)
    steps: Steps = field(init=False)
    clock: counters.Clock = field(init=False)
    anchors: dict[str, torch.Tensor] = field(init=False, default_factory=dict)
    """Values of the anchored tensors in the last call, by their short names."""
    _baked: dict[str, torch.Tensor] = field(init=False)
    """Values, at compilation, of parameters that are constants of the program."""

    def __post_init__(self) -> None:
        captured, executable = self.captured, self.compilation.executable
        effects = _make_effects(captured)
        joint = self.compilation.joint
        if joint is None or captured.joined is None:
            self.program = DeviceProgram(executable, effects)
        else:
            self.program = JointProgram(joint, captured.joined, captured.groups, effects)
        buffers = {state.input: state.output for state in captured.state if state.buffer}
        batching = make_batching(self.options)
        self.steps = Steps(
            self.program,
            batching,
            self._find_kinds(),
            DeviceState(buffers),
            {state.input: state.output for state in captured.state if not state.buffer},
        )
        self.clock = counters.Clock.of(executable, batching.replicas)
        streamed = {*self.program.weights, *buffers}
        # Clones: a module may change its parameters in place.
        self._baked = {
            name: tensor.detach().clone()
            for name, tensor in iter_named_tensors(self.module)
            if name not in streamed
        }

    def _find_kinds(self) -> dict[str, AnchorReturnType]:
        """Return which iterations each output and each anchored tensor returns."""
        usual = find_kind(self.options)
        kinds = {
            name: usual if as_outputs else make_kind(mode, period)
            for name, as_outputs, mode, period in self.options.anchored_tensors.values()
        }
        return {**kinds, **dict.fromkeys(filter(None, self.captured.outputs), usual)}

    @property
    def cycles(self) -> int:
        """Modelled cycles of a call, on one replica."""
        iterations = self.steps.batching.iterations
        return reports.count_cycles(self.compilation.executable, iterations).outer

    @property
    def is_attached(self) -> bool:
        """Whether the model holds its device and can run."""
        return self.device.isAttached and self.program.is_loaded

    @property
    def is_synthetic(self) -> bool:
        """Whether the device makes up the inputs."""
        return bool(self.options._Popart.options.get("syntheticDataMode"))  # noqa: SLF001

    def is_stale(self) -> bool:
        """Return whether a parameter that is a constant of the program has changed."""
        current = dict(iter_named_tensors(self.module))
        return any(
            name in current and not torch.equal(current[name], value)
            for name, value in self._baked.items()
        )

    def load(self, seed: int) -> None:
        """Load the program onto its device, with the module's weights and state."""
        self.copy_to_device()
        with poplar_errors():
            self.program.load(seed)

    def restart_random(self, seed: int) -> None:
        """Begin the random streams anew, if the program has any; weights and state stay."""
        if self.program.is_random and self.program.is_loaded:
            with poplar_errors():
                self.program.load(seed)

    def detach(self) -> None:
        """Unload the program and release its device."""
        self.program.unload()
        if self.device.isAttached:
            self.device.detach()

    def copy_to_device(self, names: frozenset[str] | None = None) -> None:
        """Copy the module's weights and state to the device.

        Args:
            names: Names of the tensors to copy; None means all of them.
        """
        arrays = {
            name: to_array(tensor)
            for name, tensor in iter_named_tensors(self.module)
            if names is None or name in names
        }
        weights = self.program.weights
        changed = {
            name: np.array(value, weights[name].dtype)
            for name, value in arrays.items()
            if name in weights and not np.array_equal(weights[name], value)
        }
        with poplar_errors():
            self.program.set_weights(changed)
        state = {name: value for name, value in arrays.items() if name in self.steps.state.outputs}
        self.steps.state.update(self._convert_state(state), self.steps.batching.replicas)

    def copy_to_host(self) -> None:
        """Copy the device's state into the module's buffers: the first replica's values."""
        values = self.steps.state.values[0]
        with torch.no_grad():
            for name, tensor in iter_named_tensors(self.module):
                if name in values:
                    tensor.copy_(torch.from_numpy(np.array(values[name])).reshape(tensor.shape))

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, dict[int, torch.Tensor]]:
        """Run a call.

        Args:
            tensors: The input tensors, flattened.

        Returns:
            The result's tensors, and the new values of changed inputs by their index.
        """
        captured = self.captured
        pairs = zip(captured.inputs, tensors, strict=True)
        inputs = {name: to_array(tensor) for name, tensor in pairs}
        if self.is_synthetic:
            inputs = {name: _generate(value) for name, value in inputs.items()}
        with poplar_errors():
            outputs, changed = self.steps.run(inputs)
        self.anchors = {
            short_name: to_tensor(outputs[name])
            for short_name, (name, *_) in self.options.anchored_tensors.items()
        }
        results = [
            captured.constants[index].clone() if name is None else to_tensor(outputs[name])
            for index, name in enumerate(captured.outputs)
        ]
        names = captured.inputs
        return results, {names.index(name): to_tensor(value) for name, value in changed.items()}

    def _convert_state(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """Return values of the state in the types of the device."""
        dtypes = {stream.tensor: stream.dtype for stream in self.program.inputs}
        return {name: value.astype(dtypes[name]) for name, value in state.items() if name in dtypes}


def make_batching(options: Options) -> Batching:
    """Return the numbers of iterations and replicas that options ask for."""
    return Batching(
        options.device_iterations,
        options.replication_factor,
        options.input_group_size,
        options.input_group_comm_type is CommGroupType.Orthogonal,
    )


def _generate(value: Array) -> Array:
    """Return a made-up input like another: normal draws, or zeros where it holds no reals."""
    if value.dtype.kind != "f":
        return np.zeros_like(value)
    return np.random.default_rng(0).standard_normal(value.shape).astype(value.dtype)


def _make_effects(captured: Captured) -> dict[str, Effect]:
    """Return the effects of tensors that are printed after each run."""
    return {
        name: Effect(EffectKind.PRINT, note.title, note.attributes)
        for name, note in captured.prints.items()
    }
