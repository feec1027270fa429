"""Registration of custom-operator libraries: entries in the operator table, and shapes of results,
which are found by running an operator."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnxgraph import CHIP_DOMAIN, STANDARD_DOMAINS, register_domain_shapes

from simipu.demand import Spec, find_specs
from simipu.engines.libraries import LIBRARIES, OperatorLibrary, registered_libraries
from simipu.errors import LoadError
from simipu.numerics.kernels import KERNELS
from simipu.operators import Operator
from simipu.operators.formulas.elementwise import guess
from simipu.operators.formulas.vertices import InnerLoop
from simipu.operators.formulas.work import Context, Work
from simipu.operators.graphcore_domain import KERNEL_DOMAIN
from simipu.operators.table import register_domain

_TAKEN = (*STANDARD_DOMAINS, CHIP_DOMAIN, KERNEL_DOMAIN, KERNELS)


def register_library(library: OperatorLibrary) -> None:
    """Register the operators of `library` for all graphs of this process.

    Raises LoadError for a file that is missing or that ONNX Runtime does not load, for a domain
    that is not the library's own, and for a second library for a domain.
    """
    library = replace(library, path=str(Path(library.path).absolute()))
    registered = LIBRARIES.get(library.domain)
    if registered == library:
        return
    if library.domain in _TAKEN:
        raise LoadError(
            f"custom operators: the domain {library.domain!r} is reserved; use another domain"
        )
    if registered is not None and registered.path != library.path:
        raise LoadError(
            f"custom operators of domain {library.domain!r}: this process has them from "
            f"{registered.path}, found {library.path}; a process can have one library for a domain"
        )
    if not Path(library.path).is_file():
        raise LoadError(
            f"custom operators of domain {library.domain!r}: {library.path}: no such file"
        )
    try:
        onnxruntime.SessionOptions().register_custom_ops_library(library.path)
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise LoadError(
            f"custom operators of domain {library.domain!r}: ONNX Runtime cannot load "
            f"{library.path}: {error}"
        ) from error
    LIBRARIES[library.domain] = library
    register_domain(library.domain, _make_entry(library))
    register_domain_shapes(library.domain, infer_by_running)


def _make_entry(library: OperatorLibrary) -> Operator:
    def cost(context: Context) -> Work:
        compute = context.pass_over(context.result, InnerLoop(library.cycles_per_element, 1))
        moved = context.bytes_per_tile(context.source) + context.bytes_per_tile(context.result)
        return context.spread("custom", compute, context.exchange_cycles(moved), steps=1)

    return Operator(
        whole_batch="a custom-operator library computes it",
        cost=cost if library.cycles_per_element else guess,
    )


def infer_by_running(model: onnx.ModelProto, node: onnx.NodeProto) -> tuple[onnx.ModelProto, bool]:
    """Add the types and shapes of a library node's results to the model, and return whether they
    are known. The node is run on zeros to find them."""
    values = find_specs(model.graph)
    specs = [values.get(name) if name else (0, ()) for name in node.input]
    known_specs = [spec for spec in specs if spec is not None]
    if len(known_specs) < len(specs):
        return model, False
    in_half = any(element == TensorProto.FLOAT16 for element, _ in known_specs)
    imports = {entry.domain: entry.version for entry in model.opset_import}
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    plain.name = plain.doc_string = ""
    data = plain.SerializeToString(deterministic=True)
    results = _run_on_zeros(data, tuple(known_specs), json.dumps(imports))
    outputs = {value.name: value for value in model.graph.output}
    for name, (element, shape) in results.items():
        kind = TensorProto.FLOAT16 if in_half and element == TensorProto.FLOAT else element
        info = helper.make_tensor_value_info(name, kind, shape)
        if name in outputs:
            outputs[name].CopyFrom(info)
        else:
            model.graph.value_info.append(info)
    return model, True


@cache
def _run_on_zeros(data: bytes, specs: Sequence[Spec], imports: str) -> Mapping[str, Spec]:
    """Return the types and shapes of a node's results, by name."""
    node, feeds, inputs = onnx.NodeProto.FromString(data), dict[str, Any](), []
    for name, (element, shape) in zip(node.input, specs, strict=True):
        if name and name not in feeds:
            kind = TensorProto.FLOAT if element == TensorProto.FLOAT16 else element
            feeds[name] = np.zeros(shape, helper.tensor_dtype_to_np_dtype(kind))
            inputs.append(helper.make_tensor_value_info(name, kind, shape))
    names = [name for name in node.output if name]
    outputs = [onnx.ValueInfoProto(name=name) for name in names]
    graph = helper.make_graph([node], "alone", inputs, outputs)
    opsets = [helper.make_opsetid(*entry) for entry in json.loads(imports).items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # it is small, and the sandbox forbids pinning threads
    for library in registered_libraries():
        options.register_custom_ops_library(library.path)
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        results = session.run(names, feeds)
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise LoadError(
            f"custom operator {node.domain}.{node.op_type}: ONNX Runtime cannot run it on zeros of "
            f"shapes {[list(shape) for _, shape in specs]}: {error}"
        ) from error
    return {
        name: (helper.np_dtype_to_tensor_dtype(array.dtype), tuple(array.shape))
        for name, array in zip(names, results, strict=True)
    }


_IR_VERSION = 8
