"""Triton configuration of a compiled model: made, written as text, and compared with one that a
user may have edited.

The texts are protobuf's own text format, so names may contain quotes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from simipu import CompileError

import popef
from popef._tools.text import decode_text, escape
from poprt.compile.executable import Executable

BATCHES_PER_REQUEST = 1_000
"""Number of compiled batches in max_batch_size, from the guide's example; the backend splits and
joins requests."""
MAX_BATCH_SIZE = 2**31 - 1
"""Maximum of max_batch_size, which is an int32."""
KINDS = {"input": popef.TensorType.INPUT, "output": popef.TensorType.OUTPUT}
"""Kind of tensors, by the configuration's field."""
_MAX_BYTES = 16 << 20
"""Maximum size of a config.pbtxt that is read."""
_ORDER = (
    "name backend max_batch_size dynamic_batching input output parameters instance_group".split()
)
_BLOCKS = ("input", "output")
"""Fields that are written on several lines, to be readable."""

ModelConfig = Any
"""Type of tritonclient's message, which has no type annotations."""


def new_config(**fields: Any) -> ModelConfig:
    """Return an inference.ModelConfig with these fields.

    The module, and gRPC with it, is imported only when it is needed.
    """
    from tritonclient.grpc import model_config_pb2

    return model_config_pb2.ModelConfig(**fields)


def user_anchors(compiled: Executable) -> list[popef.Anchor]:
    """Return the anchors of inputs and outputs, without those of streamed weights."""
    return [
        anchor for anchor in compiled.metadata.anchors() if anchor.name() not in compiled.weights
    ]


def make_config(
    name: str, compiled: Executable, names: Mapping[str, str], queue_timeout_ms: int | None = None
) -> ModelConfig:
    """Return the configuration of a compiled model, with the friendly `names` of its anchors.

    Requests are batched only if rows are proven independent and Triton can batch them, along the
    first axis. Otherwise dims are the compiled shape, with -1 along another axis of independent
    rows. Raises CompileError for a `queue_timeout_ms` if Triton has no queue for the model.
    """
    batch, rows = _batch_size(compiled), compiled.rows
    batched = rows.dependence is None and not rows.batch_axes and batch > 0
    config = new_config(
        name=name,
        backend="poplar",
        max_batch_size=min(batch * BATCHES_PER_REQUEST, MAX_BATCH_SIZE) if batched else 0,
        parameters={"synchronous_execution": {"string_value": "1"}},
        instance_group=[{"kind": "KIND_CPU"}],
    )
    if batched:
        config.dynamic_batching.SetInParent()
    if batched and queue_timeout_ms is not None:
        # Only on request: with any queue policy Triton prepares no call while it computes another.
        policy = make_queue_policy(queue_timeout_ms)
        config.MergeFrom(new_config(dynamic_batching={"default_queue_policy": policy}))
    elif queue_timeout_ms is not None:
        raise CompileError(
            "--queue_timeout_ms needs a model whose requests Triton batches, but the rows of this "
            "one are "
            "not proven to be independent, or do not lie along the first axis; leave the option out"
        )
    is_open = rows.dependence is None and rows.batch_axes
    _add_tensors(config, compiled, names, -1 if is_open else _rows_per_run(compiled))
    return config


def _batch_size(compiled: Executable) -> int:
    anchors = user_anchors(compiled)
    if not any(anchor.type() == popef.TensorType.INPUT for anchor in anchors):
        return 0
    axes = [compiled.rows.axis(anchor.name()) for anchor in anchors]
    return popef.batch_size([anchor.tensorInfo().shape() for anchor in anchors], axes)


def _rows_per_run(compiled: Executable) -> int:
    return _batch_size(compiled) * max(1, compiled.metadata.deviceIterations())


def _add_tensors(
    config: ModelConfig, compiled: Executable, names: Mapping[str, str], batch: int
) -> None:
    """Add inputs and outputs in the form that max_batch_size requires; if it is 0, dims include the
    batch of size `batch`."""
    is_fused = bool(popef.fused_models(compiled.metadata))
    for anchor in user_anchors(compiled):
        field = next(field for field, kind in KINDS.items() if kind == anchor.type())
        info, name = anchor.tensorInfo(), anchor.name()
        dims, axis = list(info.shape()), compiled.rows.axis(name)
        if config.max_batch_size and _batch_size(compiled):
            del dims[axis]
        elif batch and dims:
            dims[axis] = batch
        dims = [size or -1 for size in dims]  # Triton has sizes of 0 in requests only
        entry = getattr(config, field).add(
            name=names.get(name, name), data_type=_triton_type(info), dims=dims or [1]
        )
        if is_fused and field == "input":  # a request has the inputs of one of the models
            entry.optional = True
        # Triton supports scalars only in batches; without one a scalar is a tensor of one element.
        if config.max_batch_size and not dims:
            entry.reshape.SetInParent()


def _triton_type(info: popef.TensorInfo) -> str:
    """Return Triton's name of a type, such as TYPE_FP16 (float16), TYPE_INT8 or TYPE_BOOL."""
    name = popef.popefTypeToNumpyDType(info.dataType()).name
    return f"TYPE_{name.upper().replace('FLOAT', 'FP')}"


def encode_config(config: ModelConfig) -> str:
    """Return the text of config.pbtxt, with the fields in a readable order."""
    others = [field.name for field, _ in config.ListFields() if field.name not in _ORDER]
    return "".join(_encode_field(config, field) for field in (*_ORDER, *others))


def _encode_field(config: ModelConfig, field: str) -> str:
    part = new_config()
    part.CopyFrom(config)
    for other, _ in config.ListFields():
        if other.name != field:
            part.ClearField(other.name)
    text: str = text_format.MessageToString(
        part, True, field not in _BLOCKS, use_short_repeated_primitives=True
    ).strip()
    return f"{text}\n" if text else ""


def read_config(file: Path) -> ModelConfig:
    """Read a config.pbtxt.

    Raises CompileError, in one line that names the position, for a file that Triton could not read
    either.
    """
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise ValueError(f"more than {_MAX_BYTES} bytes")
        # Triton may be newer than tritonclient, with more fields.
        return text_format.Parse(
            decode_text(file.read_bytes()), new_config(), allow_unknown_field=True
        )
    except (text_format.ParseError, ValueError, RecursionError) as error:
        text = f"{file}: expected a model configuration in protobuf's text format, found {error}"
        raise CompileError(escape(text)) from error


def iter_policy_differences(kept: ModelConfig, queue_timeout_ms: int) -> Iterator[str]:
    """Yield the differences between a kept configuration's queue policy and the requested one."""
    policy = kept.dynamic_batching.default_queue_policy
    for field, expected in make_queue_policy(queue_timeout_ms).items():
        value = getattr(policy, field)
        if field == "timeout_action":
            value = policy.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number[value].name
        if value != expected:
            yield (
                f"--queue_timeout_ms {queue_timeout_ms} asks for {field} {expected} in its "
                f"dynamic_batching.default_queue_policy, which has {value}"
            )


def iter_differences(
    kept: ModelConfig, compiled: Executable, names: Mapping[str, str]
) -> Iterator[str]:
    """Yield the differences between the tensors of a kept configuration and those of the new
    executable.

    `names` are the friendly names. Everything else belongs to the user: instances, batching,
    parameters, omitted outputs. If a configuration lists no inputs or no outputs, they are filled
    in.
    """
    expected_config = new_config(max_batch_size=max(0, kept.max_batch_size))
    _add_tensors(expected_config, compiled, names, _rows_per_run(compiled))
    axes = {
        names.get(anchor.name(), anchor.name()): compiled.rows.axis(anchor.name())
        for anchor in user_anchors(compiled)
    }
    holds_batch = not expected_config.max_batch_size and _batch_size(compiled)
    for field in KINDS:
        expected = {entry.name: entry for entry in getattr(expected_config, field)}
        entries = {entry.name: entry for entry in getattr(kept, field)}
        for name, entry in entries.items():
            if name not in expected:
                yield (
                    f"{field} {name!r} is not the executable's, which has "
                    f"{', '.join(map(repr, expected))}"
                )
                continue
            for what, actual, right in _iter_facts(
                entry, expected[name], axes[name] if holds_batch else None
            ):
                if actual != right:
                    yield f"{field} {name!r} has {what} {actual}, in the executable {right}"
        for name in expected if entries and field == "input" else ():
            if name not in entries:
                yield f"{field} {name!r} of the executable is missing"


def _iter_facts(
    entry: ModelConfig, expected: ModelConfig, batch_axis: int | None
) -> Iterator[tuple[str, object, object]]:
    """Yield each fact of a tensor with its found and expected value.

    Dims may leave the size of a batch open.
    """
    types = entry.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
    yield "type", types[entry.data_type].name, types[expected.data_type].name
    dims, right = _dims(entry), _dims(expected)
    if batch_axis is not None and dims[batch_axis : batch_axis + 1] == [-1]:
        right[batch_axis] = -1
    yield "dims", dims, right


def _dims(entry: ModelConfig) -> list[int]:
    return list(entry.reshape.shape if entry.HasField("reshape") else entry.dims)


def make_queue_policy(timeout_ms: int) -> dict[str, Any]:
    """Return the fields of `dynamic_batching.default_queue_policy`.

    Requests that wait longer than `timeout_ms` are rejected. A request's own `timeout` counts where
    it is shorter.
    """
    return {
        "timeout_action": "REJECT",
        "default_timeout_microseconds": timeout_ms * 1000,
        "allow_timeout_override": True,
    }
