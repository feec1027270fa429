"""Test that an ordinary operator is added by its entry alone: an operator of the standard is taken
out of the table, is known nowhere, and is put back by one entry."""

from types import MappingProxyType

import onnx
import pytest
from cost_models import C600, one_node
from exported_graphs import Exporter
from onnx import TensorProto, helper
from poprt.passes import get_pass
from poprt.passes.admission.ipu_operators import describe_missing
from poprt.pipeline import estimate
from poprt.profile import Profiler
from simipu import CompileError
from simipu.numerics import lower
from simipu.numerics.options import Numerics
from simipu.operators import Family, Operator, Rounding, names_where, operator_of, table
from simipu.operators.formulas.elementwise import Elementwise
from simipu.operators.formulas.vertices import InnerLoop
from simipu.operators.rules import computing
from simipu.rows import NotIndependent, make_row_independent

NAME = "Softsign"
LOOP = Elementwise(InnerLoop(7, 4), InnerLoop(7, 2))
ENTRY = Operator(
    rows=computing.elementwise, cost=LOOP, rounding=Rounding.BOUNDED, in_place=(0,), sdk="yes"
)
"""The entry that a person writes for a new operator."""


@pytest.fixture
def put(monkeypatch):
    """Return a function that gives the operator another entry, or none."""

    def change(entry):
        others = {name: each for name, each in table.OPERATORS.items() if name != NAME}
        monkeypatch.setattr(
            table, "OPERATORS", MappingProxyType(others | ({NAME: entry} if entry else {}))
        )

    return change


def chain(element=TensorProto.FLOAT):
    """Return a model whose only node with several elements for each row is the operator."""
    value = helper.make_tensor_value_info
    nodes = [helper.make_node(NAME, ["x"], ["y"], name="new")]
    graph = helper.make_graph(
        nodes, "chain", [value("x", element, [4, 8])], [value("y", element, [4, 8])]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def tokens():
    net = Exporter(17)
    return net.model({net.add(NAME, net.input("x", [2, 8, 4])): [2, 8, 4]})


def pack(model):
    return get_pass("packed_transformer", pack_args={"max_valid_num": 3, "segment_max_size": 8})(
        model
    )


def memory_of(entry, put):
    """Return the memory of the fullest tile for two such nodes, one after the other."""
    put(entry)
    model = one_node(NAME, [[2048, 2048]])
    model.graph.node[0].output[0] = "h"
    model.graph.node.append(helper.make_node(NAME, ["h"], ["y"], name="last"))
    return estimate(onnx.shape_inference.infer_shapes(model), C600).fullest.fullest_tile_bytes


def test_an_operator_without_an_entry_is_always_computed_correctly(put):
    put(None)
    with pytest.raises(NotIndependent, match="no rule for this operator"):
        make_row_independent(chain(), 4)
    with pytest.raises(CompileError, match="no rule for this operator"):
        pack(tokens())
    assert estimate(one_node(NAME, [[64, 64]]), C600).fallback_operators == {NAME: 1}
    assert NAME in describe_missing(chain().graph)


def test_an_entry_is_all_that_an_operator_needs(put):
    put(ENTRY)
    node = chain().graph.node[0]
    # Rows and packing.
    assert (
        make_row_independent(chain(), 4).graph.output[0].type.tensor_type.shape.dim[0].dim_param
        == "rows"
    )
    packed = pack(tokens())
    assert [each.op_type for each in packed.graph.node] == [NAME, "Unpack", "Identity"]
    # Cost, arithmetic, and the real SDK's compiler.
    assert not estimate(one_node(NAME, [[64, 64]]), C600).fallback_operators
    assert Profiler.get_profiler(NAME)(node, [(4, 8)], [(4, 8)]) == 4 * 8
    assert not describe_missing(chain().graph)
    # Names that satisfy a condition, for passes that are about several operators.
    assert NAME in names_where(lambda entry: entry.is_elementwise)
    assert not operator_of(node).is_view


def test_precision_follows_the_entry(put):
    put(ENTRY)
    rounded = lower(chain(TensorProto.FLOAT16), Numerics())
    put(Operator(rows=computing.elementwise, rounding=Rounding.EXACT))
    exact = lower(chain(TensorProto.FLOAT16), Numerics())
    assert len(exact.graph.node) < len(rounded.graph.node)


def test_cost_follows_the_entry(put):
    put(ENTRY)
    computed = estimate(one_node(NAME, [[512, 512]]), C600).cycles
    put(Operator(rows=computing.elementwise, cost=Elementwise(InnerLoop(70, 4), InnerLoop(70, 2))))
    assert estimate(one_node(NAME, [[512, 512]]), C600).cycles > computed
    put(Operator(rows=computing.elementwise, cost=None))
    assert estimate(one_node(NAME, [[512, 512]]), C600).cycles < computed


def test_the_family_gives_the_arithmetic(put):
    put(Operator(family=Family.NORM))
    assert Profiler.get_profiler(NAME)(chain().graph.node[0], [(4, 8)], [(4, 8)]) == 8 * 4 * 8


def test_a_result_that_overwrites_its_operand_needs_less_memory(put):
    apart = Operator(rows=computing.elementwise, cost=LOOP)
    assert memory_of(ENTRY, put) < memory_of(apart, put)
