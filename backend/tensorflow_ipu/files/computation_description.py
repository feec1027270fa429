"""Description of a traced computation for its file: which tensors of the executable are what.

The host runs loops with feeds, so the executable is one iteration. A value that the loop carries
is an input and an output of the executable. It is described as the argument that it begins with and
the result that it ends as, if it is one; the rest is state, which begins with its constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from poprt.compile import LOAD_PROGRAM, Executable

from popef._tools.arrays import Array
from tensorflow_ipu.files.executable_description import (
    UNHASHED,
    EntryDescription,
    EntryKind,
    ExecutableDescription,
    FeedDescription,
    TensorDescription,
)
from tensorflow_ipu.names import slot_name
from tensorflow_ipu.plan import Dequeue, Enqueue, Loop, Plan, Slot, VariableKey

if TYPE_CHECKING:
    from tensorflow_ipu.config.devices import Device
    from tensorflow_ipu.execution import Input, PlannedComputation

_ARGUMENTS: Final = "XLA_Args/"
NEW_VALUE: Final = "/new_value"
"""Suffix of the output with a variable's new value."""
_RESULTS: Final = "XLA_Retvals/"
Streams = Mapping[str, TensorDescription]
"""Tensors of the executable by name."""


def describe_computation(
    planned: PlannedComputation, executable: Executable, name: str, device: Device
) -> ExecutableDescription:
    """Return the description of a computation for the file of one of its segments.

    Args:
        planned: The computation.
        executable: The executable of the segment.
        name: Name of the executable; "" if it was not hashed.
        device: The device that it is compiled for.

    Returns:
        The description: feeds that the segment exchanges tensors with, all arguments and results.
    """
    streams = {
        stream.tensor: TensorDescription(stream.tensor, stream.shape, stream.dtype)
        for program in executable.executable.programs
        for stream in program.streams
    }
    loaded = {stream.tensor for stream in executable.executable.program(LOAD_PROGRAM).streams}
    infeeds = _describe_feeds(planned, Dequeue, streams)
    outfeeds = _describe_feeds(planned, Enqueue, streams)
    inputs = _describe_inputs(planned, streams, loaded)
    outputs = _describe_outputs(planned, streams)
    described = {tensor.name for feed in (*infeeds, *outfeeds) for tensor in feed.tensors}
    described |= {entry.tensor.name for entry in (*inputs, *outputs)}
    return ExecutableDescription(
        infeeds,
        outfeeds,
        inputs,
        outputs,
        replicas=device.replicas,
        num_ipus=executable.executable.target.num_ipus * device.replicas,
        options=dict(device.session_options().engineOptions),
        name=name or UNHASHED,
        state=tuple(tensor for name, tensor in streams.items() if name not in described),
    )


def find_state_values(
    planned: PlannedComputation, description: ExecutableDescription
) -> dict[str, Array]:
    """Return the values that the state of a computation begins with, as far as they are constant.

    Args:
        planned: The computation.
        description: Its description.
    """
    names = {tensor.name for tensor in description.state}
    values = {}
    for carried, initial in _find_initial(planned.plan).items():
        name = slot_name(planned.names, carried)
        if name in names and initial.constant is not None:
            values[name] = np.asarray(initial.constant)
    return values


def _iter_loops(plan: Plan) -> Any:
    return (item for item in plan.iter_items() if isinstance(item, Loop))


def _find_initial(plan: Plan) -> dict[Slot, Slot]:
    """Return what each slot that a loop carries begins with; outer loops are followed."""
    direct: dict[int, Slot] = {}
    carried: dict[int, Slot] = {}
    for loop in _iter_loops(plan):
        for initial, slot in zip(loop.initial, loop.carried, strict=True):
            direct[slot.number], carried[slot.number] = initial, slot
    found = {}
    for number, slot in carried.items():
        initial = direct[number]
        while initial.constant is None and initial.number in direct:
            initial = direct[initial.number]
        found[slot] = initial
    return found


def _find_final(plan: Plan) -> dict[int, Slot]:
    """Return what each slot that a loop carries is at the end of an iteration, by its number."""
    return {
        slot.number: result
        for loop in _iter_loops(plan)
        for slot, result in zip(loop.carried, loop.body.outputs, strict=True)
    }


def _describe_feeds(
    planned: PlannedComputation, kind: type[Dequeue] | type[Enqueue], streams: Streams
) -> tuple[FeedDescription, ...]:
    feeds = []
    for item in planned.plan.iter_items():
        if not isinstance(item, kind):
            continue
        names = [slot_name(planned.names, slot) for slot in item.slots]
        if any(name in streams for name in names):
            pairs = zip(names, item.slots, strict=True)
            tensors = [streams.get(name) or _describe_slot(name, slot) for name, slot in pairs]
            feeds.append(FeedDescription(tuple(tensors)))
    return tuple(feeds)


def _describe_slot(name: str, slot: Slot) -> TensorDescription:
    value = slot.constant
    shape = slot.shape.as_list() if value is None else value.shape
    return TensorDescription(name, tuple(shape), np.dtype(slot.dtype.as_numpy_dtype))


def _describe_variable(key: VariableKey, streams: Streams, name: str) -> TensorDescription:
    described = streams.get(name)
    shape = tuple(key.shape.as_list())
    return described or TensorDescription(name, shape, np.dtype(key.dtype.as_numpy_dtype))


def _describe_inputs(
    planned: PlannedComputation, streams: Streams, loaded: set[str]
) -> tuple[EntryDescription, ...]:
    computation, written = planned.computation, planned.written_variables()
    starts = {
        initial.number: slot_name(planned.names, slot)
        for slot, initial in _find_initial(planned.plan).items()
        if initial.constant is None and slot_name(planned.names, slot) in streams
    }
    entries: list[EntryDescription] = []
    numbers = iter(range(planned.num_inputs))
    for item in computation.inputs:
        key = item.variable
        if key is not None:
            if not computation.freeze_variables:
                is_main = key.name in streams and key.name not in loaded
                modified = key.name in written or is_main
                kind = EntryKind.MODIFIED_VARIABLE if modified else EntryKind.VARIABLE
                tensor = _describe_variable(key, streams, key.name)
                entries.append(EntryDescription(f"{_ARGUMENTS}{key.name}", tensor, kind))
            continue
        number = next(numbers)
        if number not in planned.constant_inputs:
            name = planned.names[number]
            tensor = _describe_argument(item, name, streams.get(starts.get(number, name)))
            entries.append(EntryDescription(f"{_ARGUMENTS}{item.name}", tensor))
    return tuple(entries)


def _describe_argument(
    item: Input, name: str, stream: TensorDescription | None
) -> TensorDescription:
    if stream is not None:
        return stream
    # No operator of the main segment reads it. A batch of unknown size is none then.
    shape = [size or 0 for size in item.tensor.shape.as_list()]
    return TensorDescription(name, tuple(shape), np.dtype(item.tensor.dtype.as_numpy_dtype))


def _describe_outputs(
    planned: PlannedComputation, streams: Streams
) -> tuple[EntryDescription, ...]:
    finals = _find_final(planned.plan)
    entries, used = [], set()
    for number, slot in enumerate(planned.plan.outputs):
        label = f"{_RESULTS}{planned.computation.output_names[number]}"
        names = [slot_name(planned.names, slot)]
        if slot.number in finals:
            names.insert(0, slot_name(planned.names, finals[slot.number]))
        name = next((name for name in names if name in streams and name not in used), "")
        # A tensor that is also in an outfeed, or that another result is, has no stream of its own.
        is_own = bool(name) and not name.startswith(("infeed_", "outfeed_"))
        tensor = streams[name] if is_own else _describe_slot(f"result_{number}", slot)
        used.add(tensor.name)
        entries.append(EntryDescription(label, tensor))
    written = {
        f"{target.name}{NEW_VALUE}": target
        for segment in planned.plan.iter_segments()
        for target, _ in segment.outputs
        if isinstance(target, VariableKey)
    }
    entries += [
        EntryDescription(
            f"{_RESULTS}{key.name}",
            _describe_variable(key, streams, name),
            EntryKind.MODIFIED_VARIABLE,
        )
        for name, key in written.items()
    ]
    return tuple(entries)
