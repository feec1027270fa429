"""Random graphs of all operators, opsets 7 to 25, with coinciding sizes; the same seed gives the
same graph.

`drawing` is a graph in progress. `elementwise`, `shaping` and `windows` add one operator each.
`judging` finds the outcome of a graph, and `running` does so in a child process that may crash or
hang.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from random_graphs import bodies, elementwise, shaping, windows
from random_graphs.drawing import Array, Drawing, Tensor, iter_read, make_model, make_value_info
from random_graphs.growing import BUILDERS, grow

OLDEST_OPSET, NEWEST_OPSET = 7, 25

BUILDERS.update({**elementwise.BUILDERS, **shaping.BUILDERS, **windows.BUILDERS, **bodies.BUILDERS})


@dataclass(frozen=True, slots=True)
class Drawn:
    """A random model, its inputs, and its expected outputs."""

    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    outputs: Mapping[str, Tensor]


def draw(seed: int, opset: int | None = None) -> Drawn:
    """Draw the graph of a seed."""
    rng = np.random.default_rng([seed, 29])
    chosen = int(rng.integers(OLDEST_OPSET, NEWEST_OPSET + 1))
    drawing = Drawing(rng, opset or chosen, int(rng.integers(1, 5)))
    drawing.allows_empty = drawing.chance(0.03)
    drawing.add_input(
        drawing.choice(["float32"] * 6 + ["int32", "uint8"]), drawing.shape(drawing.integer(1, 4))
    )
    grow(drawing, drawing.integer(2, 9))
    return finish(drawing)


def finish(drawing: Drawing) -> Drawn:
    """Return the model.

    Its last results are outputs, and sometimes earlier results, inputs and initializers.
    """
    if not drawing.own:
        drawing.add("Identity", drawing.inputs[0])
    read = {name for node in drawing.nodes for name in node.input}
    ends = [name for name in drawing.own if name not in read]
    outputs = ends if drawing.chance(0.7) else ends[-1:]
    outputs += [name for name in drawing.own if drawing.chance(drawing.output_chance)]
    outputs += [name for name in drawing.inputs if drawing.chance(0.03)]
    of_numpy = [name for name, value in drawing.constants.items() if value.dtype.kind != "V"]
    outputs += [name for name in of_numpy if drawing.chance(0.01)]
    outputs = list(dict.fromkeys(outputs))
    constants = [numpy_helper.from_array(value, name) for name, value in drawing.constants.items()]
    kept = [each for each in constants if each.name in used_names(drawing) | set(outputs)]
    inputs = [make_value_info(name, drawing[name].value) for name in drawing.inputs]
    if drawing.chance(0.03):
        inputs += [make_value_info(each.name, drawing[each.name].value) for each in kept]
    graph = helper.make_graph(
        drawing.nodes,
        "random",
        inputs,
        [make_value_info(name, drawing[name].value) for name in outputs],
        kept,
    )
    feeds = {name: drawing[name].value for name in drawing.inputs}
    return Drawn(make_model(graph, drawing.opset), feeds, {name: drawing[name] for name in outputs})


def used_names(drawing: Drawing) -> set[str]:
    """Return the names that nodes and their bodies read."""
    return {name for node in drawing.nodes for name in iter_read(node)}
