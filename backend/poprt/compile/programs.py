"""Construction of the program of an executable, with its streams, from a graph and its estimate.
All callers use this one way.

An executable holds the graph as it is before lowering. Merged 8-bit operands and copies between
IPUs change time and memory, which the estimate includes, but no value.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx
from simipu import CompileError, Program, ProgramKind, Stream
from simipu.cost import Estimate
from simipu.rows import take_rows

from popef._tools.arrays import Array

LOAD_PROGRAM, MAIN_PROGRAM = 0, 5
"""PopART's program indices of WeightsFromHost and Program."""


def make_main(
    index: int,
    model: onnx.ModelProto,
    streams: tuple[Stream, ...],
    cost: Estimate | None,
    *,
    batch_axis: int = 0,
    weights: Mapping[str, Array] = MappingProxyType({}),
) -> tuple[Program, onnx.ModelProto]:
    """Return the MAIN program that computes `model`, and its graph.

    The program accepts any number of rows if they are proven independent. `batch_axis` is the axis
    of the batch in the inputs. `weights` has the values of initializers that the model holds
    without data. Without an estimate the program takes no cycles. Raises CompileError for a graph
    that no file can hold.
    """
    graph, streams, dependence = take_rows(model, streams, batch_axis, weights)
    program = Program(
        index,
        "main_program",
        ProgramKind.MAIN,
        streams,
        _serialize(graph),
        not dependence,
        cost.cycles if cost else 0,
        cost.interval_cycles if cost and cost.options.enable_pipelining else 0,
        bool(cost and cost.overlapped),
        dependence,
    )
    return program, graph


def _serialize(model: onnx.ModelProto) -> bytes:
    for node in model.graph.node:
        node.doc_string = ""
    try:
        return bytes(model.SerializeToString(deterministic=True))
    except ValueError as error:
        raise CompileError(
            "the graph is larger than the 2 GiB that protobuf allows; compile with "
            "--compiler_options constant_weights=False"
        ) from error
