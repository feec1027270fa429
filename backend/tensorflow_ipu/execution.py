"""Runs computations: plans them for given shapes, compiles their segments, and runs the plan.

A computation is planned anew for each combination of shapes, and of values that its operators need
when they are compiled (axes, sizes, k).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import tensorflow as tf

from popef._tools.arrays import Array
from tensorflow_ipu import names, placement
from tensorflow_ipu.errors import IpuError
from tensorflow_ipu.feeds import queues
from tensorflow_ipu.flattening import make_plan
from tensorflow_ipu.host_steps import STEPS
from tensorflow_ipu.operators.pipeline_arguments import check_iterations
from tensorflow_ipu.plan import (
    Assertion,
    Branch,
    Check,
    Dequeue,
    Enqueue,
    HostStep,
    Loop,
    Plan,
    Segment,
    Slot,
    VariableKey,
)
from tensorflow_ipu.values import Bound, Value, Variable, input_value


@dataclass(slots=True)
class Counters:
    """What this process has compiled and run; tests and reports read it."""

    compiled: int = 0
    """Number of programs that were compiled for the IPU."""
    loaded: int = 0
    """Number of programs that a cache had."""
    runs: int = 0
    """Number of runs of such programs."""
    cycles: int = 0
    """Modelled cycles of these runs on the chip, one after the other."""


counters: Final = Counters()
_lock = threading.RLock()
"""One computation at a time has the device."""


class VariableValues:
    """Values of a computation's variables, as its programs have them."""

    def __init__(self, values: Mapping[str, Array]) -> None:
        self.values: dict[str, Array] = dict(values)
        self.changed: dict[str, Array] = {}

    def __getitem__(self, key: VariableKey) -> Array:
        try:
            return self.values[key.name]
        except KeyError:
            raise IpuError(f"variable {key.name!r} has no value: it is not initialized") from None

    def __setitem__(self, key: VariableKey, value: Array) -> None:
        self.values[key.name] = self.changed[key.name] = value


@dataclass(slots=True)
class Input:
    """An input of a computation."""

    name: str
    tensor: tf.Tensor
    """The placeholder of the traced graph."""
    variable: VariableKey | None = None


@dataclass(slots=True)
class Computation:
    """A traced graph, with its plans.

    Attributes:
        graph: The FuncGraph.
        inputs: Its inputs, in order; those of variables have a key.
        output_names: Names of its outputs.
        ordinal: Number of the device, `/device:IPU:ordinal`.
    """

    graph: Any
    inputs: list[Input]
    output_names: list[str]
    ordinal: int = 0
    freeze_variables: bool = False
    _plans: dict[Any, PlannedComputation] = field(default_factory=dict)
    _constant_inputs: set[int] = field(default_factory=set)
    _constant_variables: set[str] = field(default_factory=set)

    def fix_input(self, number: int) -> None:
        """Compile the value of an input in: it is a constant."""
        self._constant_inputs.add(number)

    def run(self, values: Sequence[Array], variables: VariableValues) -> list[Array]:
        """Compute.

        Args:
            values: An array for each input that is no variable.
            variables: Values of the variables, which are changed.

        Returns:
            An array for each output.

        Raises:
            IpuError: If the computation cannot be compiled or run.
        """
        with _lock:
            planned = self.find_plan(values, variables)
            return planned.run(values, variables)

    def find_plan(self, values: Sequence[Array], variables: VariableValues) -> PlannedComputation:
        """Return the plan for values of these shapes."""
        while True:
            key = tuple(
                (value.shape, value.dtype, value.tobytes() if n in self._constant_inputs else None)
                for n, value in enumerate(values)
            ) + tuple(variables.values[name].tobytes() for name in self._constant_variables)
            planned = self._plans.get(key)
            if planned is not None:
                return planned
            planned = self._make_plan(values, variables)
            inputs, changing = planned.find_constant_inputs()
            if inputs <= self._constant_inputs and not changing:
                self._plans[key] = planned
                return planned
            _check_constants(changing & self._constant_variables)
            self._constant_inputs |= inputs
            self._constant_variables |= changing

    def _make_plan(self, values: Sequence[Array], variables: VariableValues) -> PlannedComputation:
        bound: list[Bound] = []
        taken = iter(enumerate(values))
        for item in self.inputs:
            if item.variable is not None:
                key = item.variable
                if not key.shape.is_fully_defined() and key.name in variables.values:
                    shape = tf.TensorShape(variables[key].shape)
                    key = VariableKey(key.name, key.dtype, shape)
                is_constant = key.name in self._constant_variables
                bound.append(Variable(key, variables[key] if is_constant else None))
                continue
            number, value = next(taken)
            if number in self._constant_inputs:
                bound.append(Value(constant=np.asarray(value)))
            else:
                bound.append(input_value(number, item.tensor.dtype, value.shape))
        plan = make_plan(self.graph, bound)
        plan.feed_whole_elements()
        tensors = [item.name for item in self.inputs if item.variable is None]
        return PlannedComputation(
            self, plan, len(tensors), names.name_slots(plan, tensors, self.output_names)
        )


def _check_constants(changed: Iterable[str]) -> None:
    """Raise InvalidArgumentError for variables that change before operators need their values."""
    for name in changed:
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            "operators need concrete values at compile time (sizes, axes, ...) of variable "
            f"{name!r}, which the computation has changed before",
        )


@dataclass(slots=True)
class PlannedComputation:
    """A plan for given shapes."""

    computation: Computation
    plan: Plan
    num_inputs: int
    names: Mapping[int, str]
    device: Any = None
    """Device of the configuration, found by the first run."""

    @property
    def constant_inputs(self) -> set[int]:
        """Numbers of inputs whose values are compiled in."""
        return self.computation._constant_inputs  # noqa: SLF001

    def find_constant_inputs(self) -> tuple[set[int], set[str]]:
        """Return the numbers of inputs that have to be known when the plan is compiled, and the
        names of such variables."""
        from tensorflow_ipu.conversion.constants import find_constant_placeholders

        found: set[int] = set()
        variables: set[str] = set()
        for segment in self.plan.iter_segments():
            sources = {tensor.name: source for source, tensor in segment.inputs}
            for name in find_constant_placeholders(segment.graph):
                source = sources.get(name)
                if isinstance(source, Slot) and source.number < self.num_inputs:
                    found.add(source.number)
                elif isinstance(source, VariableKey):
                    variables.add(source.name)
        return found, variables

    def written_variables(self) -> set[str]:
        """Return the names of variables that the plan changes."""
        return {
            source.name
            for segment in self.plan.iter_segments()
            for source, _ in segment.outputs
            if isinstance(source, VariableKey)
        }

    def count_ipus(self) -> int:
        """Return the number of IPUs of a replica, a power of 2: shards are numbered from 0."""
        shards = [
            shard
            for segment in self.plan.iter_segments()
            for shard, _ in placement.find_places(segment.graph).values()
        ]
        shards += [item.num_ipus - 1 for item in self.plan.iter_items() if isinstance(item, Check)]
        return 1 << max(shards, default=0).bit_length()

    def find_device(self) -> Any:
        """Return the device of the configuration that the computation runs on."""
        if self.device is None:
            from tensorflow_ipu.config.devices import find_device

            self.device = find_device(self.computation.ordinal, self.count_ipus())
        return self.device

    def run(self, values: Sequence[Array], variables: VariableValues) -> list[Array]:
        """Run the plan once, for all replicas; returned are the results of the first one."""
        device = self.find_device()
        replicas = [_Slots(dict(enumerate(values))) for _ in range(device.replicas)]
        _Run(self, replicas, variables).run_plan(self.plan)
        return [replicas[0].get(slot) for slot in self.plan.outputs]


class _Slots(dict[int, Array]):
    """Values of a replica by the numbers of their slots."""

    def get(self, slot: Slot) -> Array:  # type: ignore[override]
        """Return the value of a slot."""
        return slot.constant if slot.constant is not None else self[slot.number]


@dataclass(slots=True)
class _Run:
    """One run of a plan."""

    planned: PlannedComputation
    replicas: Sequence[_Slots]
    variables: VariableValues
    iterations: list[int] = field(default_factory=lambda: [0])
    """Numbers of the iterations of the loops that run, the innermost last."""

    def run_plan(self, plan: Plan) -> None:
        """Run the items of a plan in order."""
        for item in plan.items:
            _RUNNERS[type(item)](self, item)

    def _run_segment(self, segment: Segment) -> None:
        if segment.program is None:
            from tensorflow_ipu.programs import prepare

            segment.program = prepare(self.planned, segment, self.variables)
        inputs = [
            [
                self.variables[source] if isinstance(source, VariableKey) else slots.get(source)
                for source, _ in segment.inputs
            ]
            for slots in self.replicas
        ]
        results = segment.program.run(inputs)
        for slots, values in zip(self.replicas, results, strict=True):
            for (target, _), value in zip(segment.outputs, values, strict=True):
                if isinstance(target, Slot):
                    slots[target.number] = value
        for (target, _), value in zip(segment.outputs, results[0], strict=True):
            if isinstance(target, VariableKey):
                self.variables[target] = value

    def _run_dequeue(self, item: Dequeue) -> None:
        infeed = queues.find_infeed(item.queue)
        for slots in self.replicas:
            for slot, value in zip(item.slots, infeed.take(), strict=True):
                slots[slot.number] = value

    def _run_enqueue(self, item: Enqueue) -> None:
        values = [[slots.get(slot) for slot in item.slots] for slots in self.replicas]
        if len(values) > 1:
            values = [[np.stack(parts) for parts in zip(*values, strict=True)]]
        queues.find_outfeed(item.queue).put(values[0])

    def _run_check(self, item: Check) -> None:
        check_iterations(int(self.replicas[0].get(item.count)), item.overlapping)

    def _run_assertion(self, item: Assertion) -> None:
        if not all(np.all(slots.get(item.condition)) for slots in self.replicas):
            raise tf.errors.InternalError(
                None,
                None,
                "[Poplar][Execute engine] application_runtime_error: the assertion "
                f"{item.name!r} is not true",
            )

    def _run_loop(self, item: Loop) -> None:
        self._move(item.initial, item.carried)
        self.iterations.append(0)
        while True:
            self.run_plan(item.condition)
            if not self.replicas[0].get(item.condition.outputs[0]):
                self.iterations.pop()
                return
            self.run_plan(item.body)
            self._move(item.body.outputs, item.carried)
            self.iterations[-1] += 1

    def _run_step(self, item: HostStep) -> None:
        for replica, slots in enumerate(self.replicas):
            values = [slots.get(slot) for slot in item.inputs]
            results = STEPS[item.name](item, replica, values, self.iterations[-1])
            for slot, value in zip(item.outputs, results, strict=True):
                slots[slot.number] = value

    def _move(self, sources: Sequence[Slot], targets: Sequence[Slot]) -> None:
        for slots in self.replicas:
            values = [slots.get(slot) for slot in sources]
            for slot, value in zip(targets, values, strict=True):
                slots[slot.number] = value

    def _run_branch(self, item: Branch) -> None:
        chosen = int(self.replicas[0].get(item.index))
        if not 0 <= chosen < len(item.branches):
            chosen = len(item.branches) - 1
        branch = item.branches[chosen]
        self.run_plan(branch)
        self._move(branch.outputs, item.results)


_RUNNERS: Final[Mapping[type, Callable[[_Run, Any], None]]] = {
    HostStep: _Run._run_step,  # noqa: SLF001
    Segment: _Run._run_segment,  # noqa: SLF001
    Dequeue: _Run._run_dequeue,  # noqa: SLF001
    Assertion: _Run._run_assertion,  # noqa: SLF001
    Check: _Run._run_check,  # noqa: SLF001
    Enqueue: _Run._run_enqueue,  # noqa: SLF001
    Loop: _Run._run_loop,  # noqa: SLF001
    Branch: _Run._run_branch,  # noqa: SLF001
}
