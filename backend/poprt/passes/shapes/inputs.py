"""Passes that fix the inputs of a model: their shapes, and inputs that are settings and become
constants. The IPU runs static graphs only."""

from __future__ import annotations

import copy
import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    GraphEditor,
    find_inputs,
    forget_values,
    infer_shapes,
    replace_inputs,
    replace_outputs,
    set_attribute,
    set_shape,
)
from onnxgraph.opsets import AXES_ARE_INPUTS
from simipu import CompileError
from simipu.rows import note_dependence

from popef._tools.arrays import Array
from poprt.passes.interface.surgery import check_known
from poprt.passes.shape_inference import infer_shapes as declare_shapes
from poprt.passes.shapes.batch_sizes import find_batch_arithmetic
from poprt.rewrite.base import Pass, Stage, register
from poprt.rewrite.explanations import describe_shape
from poprt.rewrite.rules import GraphRule

_EXAMPLE_SIZE = 128
"""Size that an error suggests for a variable dimension other than the batch."""
OPEN_SIZE = -1
"""Size in --input_shape of a dimension that it leaves as it is: the batch, which --batch_size
gives."""
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def check_names(model: onnx.ModelProto, input_shape: Collection[str]) -> None:
    """Check that the model has all inputs in `input_shape`. const_input_shape only warns of those
    beside a model's own, since published scripts have them.

    Raises CompileError for a name that the model lacks.
    """
    check_known("input_shape", input_shape, _inputs_by_name(model.graph), "inputs")


def _inputs_by_name(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    return {value.name: value for value in find_inputs(graph)}


def has_fixed_batch(model: onnx.ModelProto, batch_axis: int = 0) -> bool:
    """Return whether a model declares a batch of several rows for an input, which no option
    changes; a variable one and a batch of 1 can become another."""
    dims = (value.type.tensor_type.shape.dim for value in find_inputs(model.graph))
    return any(dim.dim_value > 1 for sizes in dims for dim in sizes[batch_axis:][:1])


@register(
    "fix_inputs",
    stage=Stage.INTERFACE,
    option="fix_inputs",
    takes="values=fix_inputs input_shape",
    is_ours=True,
    before="const_input_shape",
)
class FixInputs(Pass):
    """Turn inputs of a model into constants: `values` has numbers, arrays, or texts of numbers with
    commas, by name.

    An input's variable dimensions are those of `input_shape`, or else what the values leave open.
    """

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        input_shape: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self._values, self._input_shape = values or {}, input_shape or {}

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Replace the inputs by constants. Raise CompileError for an unknown input, and for values
        that do not match the input's type and shape."""
        inputs = _inputs_by_name(model.graph)
        check_known("fix_inputs", self._values, inputs, "inputs")
        for name, number in self._values.items():
            value = inputs[name]
            array = _shape(value, _parse(value, number), number, self._input_shape.get(name))
            model.graph.initializer.append(numpy_helper.from_array(array, name))
            model.graph.input.remove(value)
        return model


@register(
    "const_input_shape",
    stage=Stage.INTERFACE,
    default=True,
    takes="const_input_shape=shapes_left batch_size batch_axis widens",
)
class ConstInputShape(Pass):
    """Give each input of a model the shape asked for and forget every other shape.

    `const_input_shape` may fix variable dimensions only, among them those that the model says are
    0, which stay 0 otherwise; -1 leaves a dimension as it is, and names that the model lacks are
    warned of. `batch_size` fixes the dimension `batch_axis` (default 0) of every input where it is
    still variable. If one has a 1
    there and `widens`, all get, or keep, a batch of 1, and widen_batch makes it what is asked for.
    """

    def __init__(
        self,
        const_input_shape: Mapping[str, Sequence[int]] | None = None,
        batch_size: int | None = None,
        batch_axis: int | None = None,
        widens: bool = False,
    ) -> None:
        self._input_shape, self._batch_size = const_input_shape or {}, batch_size
        self._batch_axis, self._widens = batch_axis or 0, widens

    def _describe_missing(
        self, missing: Mapping[str, list[int | None]], inputs: Mapping[str, onnx.ValueInfoProto]
    ) -> str:
        """Return an error about all variable dimensions, with options that can be copied."""
        shapes = ", ".join(f"{name!r} {describe_shape(inputs[name])}" for name in missing)
        opens = [self._is_open(inputs[name]) for name in missing]
        batch = " --batch_size 1" if self._batch_size is None and any(opens) else ""
        reason = f"variable shapes must be fixed at compile time: {shapes}; use, with your"
        if batch and all(opens) and all(sizes.count(None) == 1 for sizes in missing.values()):
            return f"{reason} size,{batch}"
        examples = " ".join(
            _describe_option(name, sizes, self._batch_axis if is_open else None)
            for (name, sizes), is_open in zip(missing.items(), opens, strict=True)
        )
        return f"{reason} sizes, --input_shape {examples}{batch}"

    def _check_names(self, inputs: Collection[str]) -> None:
        """Raise CompileError for the name of an input that the model lacks.

        Published scripts give the shapes of all inputs of a family of models, and so of more than
        this model has: they are only warned of if every input of the model is among them.
        """
        if not set(inputs) <= set(self._input_shape):
            check_known("input_shape", self._input_shape, inputs, "inputs")
        for name in sorted(set(self._input_shape) - set(inputs)):
            names = ", ".join(inputs)
            self.logger.warning(
                "input_shape names %r, which is ignored; the model's inputs are %s", name, names
            )

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Fix the shapes. Raise CompileError for a contradiction, and for a dimension that stays
        variable."""
        inputs = _inputs_by_name(model.graph)
        if self._batch_size is not None and self._batch_size < 1:
            raise CompileError(f"batch_size must be at least 1, found {self._batch_size}")
        self._check_names(inputs)
        is_later = (
            self._widens
            and self._batch_size is not None
            and any(map(self._has_one, inputs.values()))
        )
        varying = [name for name, value in inputs.items() if self._is_open(value)]
        missing: dict[str, list[int | None]] = {}
        for name, value in inputs.items():
            size = self._batch_size
            if is_later:
                size = 1 if self._has_one(value) or self._is_open(value) else None
            sizes = _find_sizes(value, self._input_shape.get(name), size, self._batch_axis)
            if None in sizes:
                missing[name] = sizes
            else:
                if 0 in sizes:
                    self.logger.warning(
                        "input %r of shape %s is empty: the model says that a dimension is 0; give "
                        "another size with input_shape if it is to be variable",
                        name,
                        sizes,
                    )
                set_shape(value, [dim for dim in sizes if dim is not None])
        if missing:
            raise CompileError(self._describe_missing(missing, inputs))
        replace_inputs(model.graph, inputs.values())
        _settle_batch(model, [] if is_later else varying, self._batch_axis)
        return model

    def _has_one(self, value: onnx.ValueInfoProto) -> bool:
        """Return whether an input has a fixed batch of 1."""
        dims = value.type.tensor_type.shape.dim[self._batch_axis :][:1]
        return any(dim.dim_value == 1 for dim in dims)

    def _is_open(self, value: onnx.ValueInfoProto) -> bool:
        """Return whether the batch of an input is variable."""
        dims = value.type.tensor_type.shape.dim[self._batch_axis :][:1]
        return any(dim.dim_value < 1 for dim in dims)


def _settle_batch(model: onnx.ModelProto, fixed: Sequence[str], axis: int) -> None:
    """Infer shapes again, and record arithmetic with the size of the batch. `fixed` are the inputs
    whose batch, at `axis`, was variable and is fixed now."""
    _clear_shapes(model.graph)
    if fixed and (reason := find_batch_arithmetic(model, fixed, axis)):
        note_dependence(model, reason)
    replace_outputs(model.graph, infer_shapes(model).graph.output)


@register("const_batch_size", stage=Stage.INTERFACE)
class ConstBatchSize(Pass):
    """Give each input whose first dimension is variable that size there; other dimensions stay as
    they are."""

    def __init__(self, const_batch_size: int = 1) -> None:
        self._size = const_batch_size

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Fix the batch and infer the other tensors again. Raise CompileError for a size below
        1."""
        if self._size < 1:
            raise CompileError(f"const_batch_size must be at least 1, found {self._size}")
        changed = []
        for value in find_inputs(model.graph):
            dims = value.type.tensor_type.shape.dim
            if len(dims) and dims[0].dim_value < 1:
                dims[0].dim_value = self._size
                changed.append(value.name)
        if changed:
            _settle_batch(model, changed, 0)
        return model


@register("shape_inference", stage=Stage.INTERFACE)
class ShapeInference(Pass):
    """Write what can be inferred of the inner tensors into the model, bodies' too."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Declare the inferred shapes. Earlier declarations stay for tensors whose shapes cannot be
        inferred."""
        return declare_shapes(model)


@register("fill_squeeze_axes", stage=Stage.FOLDING, default=True)
class FillSqueezeAxes(GraphRule):
    """Give a Squeeze that names no axes those that it drops, which the shape of its operand
    says."""

    op_types = frozenset(("Squeeze",))

    def matches(self, node: onnx.NodeProto) -> bool:
        """Return whether a node is a Squeeze without axes."""
        return super().matches(node) and not any(node.input[1:]) and not node.attribute

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Fill in the axes. A Squeeze that drops no axis does not change: without axes it means all
        of size 1."""
        axes = [i for i, size in enumerate(view.shape(node.input[0]) or ()) if size == 1]
        if axes and view.opset < AXES_ARE_INPUTS:
            set_attribute(node, "axes", axes)
        elif axes:
            name = view.names.take(f"{node.output[0]}/axes")
            view.graph.initializer.append(numpy_helper.from_array(np.asarray(axes, np.int64), name))
            node.input[:] = [node.input[0], name]


@register("forget_declared_shapes", stage=Stage.INTERFACE, is_ours=True)
class ForgetDeclaredShapes(Pass):
    """Forget the shapes and types that a model declares of what it computes, but where nothing can
    be inferred: exporters and editors leave wrong ones behind."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Remove the declarations. The inferred shapes are not declared: see declare_outputs."""
        declared = [copy.deepcopy(info) for info in (*model.graph.value_info, *model.graph.output)]
        _clear_shapes(model.graph)
        for value in model.graph.output:
            value.type.tensor_type.ClearField("elem_type")
        inferred = infer_shapes(model).graph
        inferred_types = {
            value.name
            for value in (*inferred.value_info, *inferred.output)
            if value.type.tensor_type.HasField("shape")
        }
        types = {value.name: value.type.tensor_type.elem_type for value in inferred.output}
        outputs = {value.name: value for value in model.graph.output}
        for value in declared:
            if value.name in outputs:
                kind = types[value.name] or value.type.tensor_type.elem_type
                outputs[value.name].type.tensor_type.elem_type = kind
                value.type.tensor_type.elem_type = kind
            if value.name in inferred_types:
                continue
            if value.name in outputs:
                outputs[value.name].CopyFrom(value)
            else:
                model.graph.value_info.append(value)
        return model


@register("declare_outputs", stage=Stage.CHECKS, is_ours=True, depend="forget_declared_shapes")
class DeclareOutputs(Pass):
    """Write the inferred shapes of the outputs into the graph, and no others: whoever reads it
    infers those anew."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Declare the shapes and types of the outputs."""
        replace_outputs(model.graph, infer_shapes(model).graph.output)
        return model


def _clear_shapes(graph: onnx.GraphProto) -> None:
    forget_values(graph)
    inputs = {value.name: value for value in graph.input}
    for value in graph.output:
        if value.name in inputs:
            value.type.CopyFrom(inputs[value.name].type)
        else:
            value.type.tensor_type.ClearField("shape")


def _find_sizes(
    value: onnx.ValueInfoProto,
    wanted: Sequence[int] | None,
    batch_size: int | None,
    batch_axis: int,
) -> list[int | None]:
    """Return the size of each dimension from the model's and the requested one; None where neither
    is known."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        if wanted is None:
            raise CompileError(
                f"input {value.name!r} has no shape; give it with --input_shape "
                f"{value.name}=d0,d1,..."
            )
        for _ in wanted:
            tensor.shape.dim.add()
    dims = tensor.shape.dim
    if wanted is not None and len(wanted) != len(dims):
        raise CompileError(
            f"input {value.name!r} has shape {describe_shape(value)}, input_shape gives it "
            f"{len(wanted)} dimensions"
        )
    sizes: list[int | None] = []
    for axis, dim in enumerate(dims):
        requested = wanted[axis] if wanted is not None and wanted[axis] != OPEN_SIZE else None
        if axis == batch_axis and batch_size is not None:
            if requested not in (None, batch_size) and dim.dim_value < 1:
                raise CompileError(
                    f"input {value.name!r}: input_shape gives {requested} to axis {axis}, "
                    f"batch_size {batch_size}; use, with --batch_size, --input_shape "
                    f"{_describe_option(value.name, wanted or (), axis)}"
                )
            requested = batch_size
        sizes.append(_settle(value, axis, requested))
    return sizes


def _describe_option(name: str, sizes: Sequence[int | None], batch_axis: int | None) -> str:
    """Return the value of --input_shape for an input, as a word of the shell: unknown sizes get an
    example, the batch is left to --batch_size."""
    shown = [
        OPEN_SIZE if axis == batch_axis else _EXAMPLE_SIZE if size is None else size
        for axis, size in enumerate(sizes)
    ]
    return shlex.quote(f"{name}={','.join(map(str, shown))}")


def _settle(value: onnx.ValueInfoProto, axis: int, asked: int | None) -> int | None:
    """Return the size of one dimension from the model's and the requested one; None if neither is
    known. Raise CompileError if they differ."""
    dim = value.type.tensor_type.shape.dim[axis]
    declared = dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None
    if declared is not None and asked not in (None, declared):
        raise CompileError(
            f"input {value.name!r} has shape {describe_shape(value)}: dimension {axis} is fixed at "
            f"{declared} and cannot become {asked}; export the model with a variable dimension "
            "there"
        )
    is_empty = dim.HasField("dim_value") and dim.dim_value == 0
    size = declared if declared is not None else asked
    if size is None:
        return 0 if is_empty else None
    if size < 0 or (size == 0 and not is_empty):
        raise CompileError(
            f"input {value.name!r}: dimension {axis} must be at least 1, found {size}"
        )
    return size


def _parse(value: onnx.ValueInfoProto, given: Any) -> Array:
    """Return the given values in the input's type. Raise CompileError if they do not fit into
    it."""
    element = value.type.tensor_type.elem_type
    dtype = (
        helper.tensor_dtype_to_np_dtype(element)
        if element in helper.get_all_tensor_dtypes()
        else np.dtype(object)
    )
    if dtype.kind not in "fiub":
        raise CompileError(
            f"input {value.name!r} cannot be fixed: its type is {_type_name(value)}, and only "
            "numbers can be given"
        )
    if isinstance(given, str):
        words = given.strip().strip("[]").split(",")
        parsed = np.array(
            [_read(value, word.strip(), dtype, given) for word in words if word.strip()], dtype
        )
        return parsed if len(parsed) != 1 else parsed.reshape(())
    plain = np.asarray(given)
    with np.errstate(over="ignore", invalid="ignore"):
        array = plain.astype(dtype) if plain.dtype.kind in "fiub" else None
    if array is None or not (dtype.kind == "f" or np.array_equal(array, plain)):
        raise _wrong(value, f"found {given!r}")
    return array


def _read(value: onnx.ValueInfoProto, word: str, dtype: np.dtype[Any], given: str) -> Any:
    try:
        if dtype.kind == "b":
            return _BOOLEANS[word.lower()]
        number: float = float(word) if dtype.kind == "f" else int(word)
    except (ValueError, KeyError):
        raise _wrong(value, f"found {word!r} in {given!r}") from None
    if dtype.kind in "iu" and not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max:
        raise _wrong(value, f"found {word}, which is out of its range")
    return number


def _shape(
    value: onnx.ValueInfoProto, array: Array, given: Any, wanted: Sequence[int] | None
) -> Array:
    """Return the values in the input's shape, of which one dimension may be variable."""
    if not value.type.tensor_type.HasField("shape"):
        return array if wanted is None else _fit(value, array, given, list(wanted))
    dims = [dim.dim_value if dim.dim_value > 0 else -1 for dim in value.type.tensor_type.shape.dim]
    if wanted is not None:
        if len(wanted) != len(dims) or any(
            dim not in (-1, expected) for dim, expected in zip(dims, wanted, strict=False)
        ):
            raise CompileError(
                f"input {value.name!r} has shape {describe_shape(value)}, input_shape gives it "
                f"{list(wanted)}"
            )
        dims = list(wanted)
    return _fit(value, array, given, dims)


def _fit(value: onnx.ValueInfoProto, array: Array, given: Any, dims: list[int]) -> Array:
    fixed_size = math.prod(dim for dim in dims if dim >= 0)
    # A single number is not repeated to fill a larger shape: where two are needed, one was
    # forgotten.
    fits = (
        array.size == fixed_size
        if -1 not in dims
        else fixed_size and array.size and array.size % fixed_size == 0
    )
    if dims.count(-1) <= 1 and fits:
        return array.reshape(dims)
    raise _wrong(value, f"found {array.size} value{'s' * (array.size != 1)} in {given!r}")


def _wrong(value: onnx.ValueInfoProto, found: str) -> CompileError:
    return CompileError(
        f"input {value.name!r} cannot be fixed: expected {_type_name(value)} of shape "
        f"{describe_shape(value)}, {found}; give a number, or as many as the shape holds with "
        "commas between (--input_shape fixes open dimensions)"
    )


def _type_name(value: onnx.ValueInfoProto) -> str:
    return str(TensorProto.DataType.Name(value.type.tensor_type.elem_type))
