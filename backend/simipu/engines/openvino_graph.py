"""A graph in OpenVINO, whose package is optional: only `accelerated` imports this module.

OpenVINO reads the weights in place while it compiles the graph, and keeps copies of many, some of
them in its own layout. A compiled graph that is imported from a file has only the latter; other
weights stay in the file. OpenVINO computes 64-bit whole numbers in 32 bits, so inputs beyond that
are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from popef._tools.arrays import Array
from popef._tools.text import escape
from simipu import errors
from simipu.engines.computed import GraphOptions, Lowered
from simipu.engines.openvino_package import openvino
from simipu.processes.watchdog import WATCHDOG, EndedBy

if TYPE_CHECKING:
    import onnx

_IN_MEMORY = "*/_ORT_MEM_ADDR_/*"
"""Location of external data that are at an address of this process. ONNX Runtime and OpenVINO share
this convention."""
_MISSING = re.compile(r"No conversion rule found for operations: ([^\n]+)")
_MAX_REASON = 500
"""Maximum number of characters of an error of OpenVINO in ours."""
_READS_OF_SHAPES = (("Convert", 0), ("Reshape", 1))
"""Operators and inputs that are shapes, of no size for a scalar."""
_MULTIPLIES_CODES = "LP_TRANSFORMS_MODE"
"""Setting that allows products of codes instead of float products of quantized tensors. OpenVINO's
documentation omits it."""
_INT32 = np.iinfo(np.int32)
_WIDE_TYPES = (openvino.Type.i64, openvino.Type.u64, openvino.Type.u32)
Settings = Mapping[str, object]


@cache
def _find_core() -> openvino.Core:
    """Return this process's OpenVINO, whose plug-ins are loaded once."""
    return openvino.Core()


class OpenVinoGraph:
    """A graph in OpenVINO. A run that exceeds its limit is ended at the next node."""

    kernels = "openvino"

    def __init__(self, lowered: Lowered, options: GraphOptions, title: str) -> None:
        settings = {**_make_settings(options), **options.accelerators[0].settings()}
        self._lowered = lowered  # OpenVINO reads weights in it in place, without a reference
        self.reads_weights = bool(lowered.weights)
        if lowered.compiled:
            self._compiled = _import(lowered.compiled, settings, title)
        else:
            self._compiled = _compile(lowered, settings, title)
        self._request = self._compiled.create_infer_request()
        inputs = self._compiled.inputs
        self._inputs = {name: at for at, port in enumerate(inputs) for name in port.names}
        self._outputs = {name: at for at, name in enumerate(lowered.outputs)}
        self._wide = {
            name for port in inputs if port.element_type in _WIDE_TYPES for name in port.names
        }
        self._given: list[tuple[int, Array]] = []
        self._limit_seconds, self._memory_bytes = options.limit_seconds, options.memory_bytes
        self._run = EndedBy(self._request.cancel)
        self._cancelled = False
        self._unwanted: EndedBy | None = None

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Compute the outputs called `names`."""
        for name in self._wide.intersection(feeds):
            _check_range(name, feeds[name])
        # OpenVINO reads the arrays in place, and keeps no reference to them.
        self._given = [
            (at, np.require(feeds[name], requirements=("C", "W")))
            for name, at in self._inputs.items()
            if name in feeds
        ]
        for at, value in self._given:
            self._request.set_input_tensor(at, openvino.Tensor(value, shared_memory=True))
        while not self._compute():
            pass
        get = self._request.get_output_tensor
        return [get(self._outputs[name]).data.copy() for name in names]

    def cancel(self) -> None:
        """Cancel the run at its next node."""
        # The order matters: a run that has not seen the flag yet stored itself before it checked.
        self._cancelled = True
        self._run.terminate = True

    def end_run(self, is_unwanted: Callable[[], bool]) -> None:
        """End the run at its next node if it is unwanted."""

        def find_run() -> EndedBy | None:
            run = self._run
            if not is_unwanted():
                return None
            self._unwanted = run
            return run

        WATCHDOG.end_soon(find_run)

    def close(self) -> None:
        """Do nothing: the compiled graph ends with its last reference."""

    def export(self) -> bytes:
        """Return the compiled graph with its weights, which a later load imports."""
        stream = BytesIO()
        self._compiled.export_model(stream)
        return stream.getvalue()

    def _compute(self) -> bool:
        """Compute once, and return whether the results are there: the end of an earlier run may
        come late and end this one, which is then repeated."""
        run = self._run = EndedBy(self._request.cancel)
        WATCHDOG.begin(run, self._limit_seconds)
        try:
            self._check_cancelled()
            # `infer` cannot be cancelled; this takes 15 us more.
            self._request.start_async()
            if run.terminate:  # before the start, when there was nothing to cancel
                self._request.cancel()
            self._request.wait()
        except MemoryError as error:
            raise errors.RunMemoryError(errors.describe_memory(self._memory_bytes)) from error
        except RuntimeError as error:
            self._check_cancelled()
            if run is self._unwanted:
                raise errors.RunUnwantedError(errors.UNWANTED) from error
            if run.terminate:
                raise errors.RunTimeoutError(errors.describe_limit(self._limit_seconds)) from error
            if "cancel" in str(error).lower():
                return False
            raise errors.RunError(f"OpenVINO: {_shorten(error)}") from error
        except BaseException:  # an interrupt from the keyboard: the run still reads the arrays
            self._request.cancel()
            with suppress(RuntimeError):
                self._request.wait()
            raise
        finally:
            WATCHDOG.end(run)
        return True

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise errors.RunCancelledError(errors.CANCELLED)


def _make_settings(options: GraphOptions) -> dict[str, object]:
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": options.num_cores,
        "EXECUTION_MODE_HINT": "ACCURACY",
        # Its default is the fastest that the CPU has, for example bf16.
        "INFERENCE_PRECISION_HINT": "f32",
        # Instances are processes: each would pin its threads to the same cores.
        "ENABLE_CPU_PINNING": False,
        # Else the calling thread's arithmetic would flush denormals from then on.
        "CPU_DENORMALS_OPTIMIZATION": False,
    }


def _compile(lowered: Lowered, settings: Settings, title: str) -> openvino.CompiledModel:
    # Imported here: a process that imports a compiled graph does not need it.
    import onnx
    from onnxgraph import iter_nodes

    model = onnx.load_model_from_string(lowered.model)
    _give_addresses(model, lowered)
    operators = {node.op_type for node in iter_nodes(model.graph)}
    if "QuantizeLinear" in operators:
        # Its ConvTranspose of int8 and of a weight with a zero point is wrong (docs/upstream.md).
        is_exact = "ConvTranspose" not in operators and not _products_saturate()
        settings = {**settings, _MULTIPLIES_CODES: is_exact}
    try:
        read = _find_core().read_model(model.SerializeToString())
        _reject_empty(read, title)
        return _find_core().compile_model(read, "CPU", settings)
    except RuntimeError as error:
        raise errors.AcceleratorError(f"{title} {_explain(error, model)}") from error


@cache
def _products_saturate() -> bool:
    """Return whether OpenVINO's products of codes saturate on this machine, as ONNX Runtime's do
    (`saturation`), found out once per process. Its library, oneDNN, has its own kernels, and its
    own limit of the instructions that they use, ONEDNN_MAX_CPU_ISA."""
    from onnx import TensorProto, helper, numpy_helper

    size = 64
    values = {
        "scale": np.float32(1),
        "zero": np.uint8(0),
        "codes": np.full((size, size), 127, np.int8),
        "middle": np.int8(0),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["a"]),
        helper.make_node("DequantizeLinear", ["codes", "scale", "middle"], ["b"]),
        helper.make_node("MatMul", ["a", "b"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, size]) for name in ("x", "y")
    )
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "product", [x], [y], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    read = _find_core().read_model(model.SerializeToString())
    product = _find_core().compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    total = product.create_infer_request().infer({"x": np.full((size, size), 255, np.float32)})[0]
    return bool((total != 255 * 127 * size).any())


def _reject_empty(model: openvino.Model, title: str) -> None:
    """Raise AcceleratorError for a node that reads an empty tensor, except as the shape of a
    scalar: the results of many are memory that was not written."""
    for node in model.get_ops():
        kind = node.get_type_name()
        for place in range(node.get_input_size()):
            is_shape = (kind, place) in _READS_OF_SHAPES
            if _is_empty(node.get_input_partial_shape(place)) and not is_shape:
                raise errors.AcceleratorError(
                    f"{title}: {kind} (node {escape(node.get_friendly_name())!r}) reads an empty "
                    "tensor, which it does not check; remove the accelerator"
                )


def _is_empty(shape: openvino.PartialShape) -> bool:
    if shape.rank.is_dynamic:
        return False
    return any(size.is_static and size.get_length() == 0 for size in shape)


def _import(compiled: bytes | memoryview, settings: Settings, title: str) -> openvino.CompiledModel:
    """Return a compiled graph whose weights stay in the file from which `compiled` is mapped."""
    data = openvino.Tensor(np.frombuffer(compiled, np.uint8), shared_memory=True)
    try:
        return _find_core().import_model(data, "CPU", settings)
    except RuntimeError as error:
        raise errors.AcceleratorError(
            f"{title} cannot load its compiled graph: {_shorten(error)}"
        ) from error


def _give_addresses(model: onnx.ModelProto, lowered: Lowered) -> None:
    """Have the graph read its weights where they are in memory."""
    for tensor in model.graph.initializer:
        value = lowered.weights.get(tensor.name)
        if value is not None:
            del tensor.external_data[:]
            for key, text in _describe_place(value):
                tensor.external_data.add(key=key, value=text)


def _describe_place(value: Array) -> Iterator[tuple[str, str]]:
    yield "location", _IN_MEMORY
    yield "offset", str(value.ctypes.data)
    yield "length", str(value.nbytes)


def _check_range(name: str, value: Array) -> None:
    if value.size and not (_INT32.min <= value.min() and value.max() <= _INT32.max):
        raise errors.RunError(
            f"input {name!r}: expected whole numbers from {_INT32.min} to {_INT32.max}, as "
            f"OpenVINO computes them in 32 bits, found {value.min()} to {value.max()}"
        )


def _explain(error: Exception, model: onnx.ModelProto) -> str:
    """Return what OpenVINO lacks, with the node, from the text of its error."""
    match = _MISSING.search(str(error))
    if match is None:
        return f"cannot load the graph: {_shorten(error)}"
    from onnxgraph import iter_nodes

    # Each is the operator, behind its domain, or before the opset.
    missing = [part.strip().split(".")[-1].partition("-")[0] for part in match[1].split(",")]
    node = next(
        (candidate for candidate in iter_nodes(model.graph) if candidate.op_type in missing), None
    )
    shown = f" (node {node.name or node.output[0]!r})" if node is not None else ""
    return f"has no operator {missing[0]}{shown}; remove the accelerator, or let it fall back"


def _shorten(error: Exception) -> str:
    """Return the last lines of an error of OpenVINO: the first ones are places in its sources."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return escape(" ".join(lines[-3:]), _MAX_REASON)
