"""Tests of shape inference: the standard's operators, other operators, and cached results."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    collect_values,
    infer_shapes,
    inference,
    register_stand_in,
    remember_inferences,
)

F = TensorProto.FLOAT
DOMAIN = "test.onnxgraph"


def model_of(nodes, shape=(2, 3), weights=()):
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_tensor_value_info("x", F, shape)],
        [helper.make_tensor_value_info("y", F, None)],
        list(weights),
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def neg(source, result):
    return helper.make_node("Neg", [source], [result])


@pytest.fixture
def doubled(monkeypatch):
    """Register an operator whose result has twice the rows."""
    monkeypatch.setattr(inference, "_STAND_INS", dict(inference._STAND_INS))

    @register_stand_in(DOMAIN, "Double")
    def double(op, site):
        return op.Neg(op.Concat(site.x, site.x, axis=0))


def double(source, result):
    return helper.make_node("Double", [source], [result], domain=DOMAIN)


def test_stand_ins_say_what_other_domains_make(doubled):
    nodes = [double("x", "a"), neg("a", "b"), double("b", "c"), double("c", "d"), neg("d", "y")]
    values = collect_values(model_of(nodes))
    assert [values[name].shape for name in "abcdy"] == [(4, 3), (4, 3), (8, 3), (16, 3), (16, 3)]


def test_stand_ins_leave_nothing_behind(doubled):
    model = model_of([double("x", "a"), neg("a", "y")])
    inferred = infer_shapes(model)
    assert [node.op_type for node in inferred.graph.node] == ["Double", "Neg"]
    assert inferred.graph.node[0] == model.graph.node[0]
    assert [value.name for value in inferred.graph.value_info] == ["a"]


def test_stand_ins_stand_inside_bodies_too(doubled):
    body = helper.make_graph(
        [double("x", "inner")], "body", [], [onnx.ValueInfoProto(name="inner")]
    )
    other = helper.make_graph(
        [double("x", "other")], "other", [], [onnx.ValueInfoProto(name="other")]
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=other)
    model = model_of([node])
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    inferred = infer_shapes(model)
    assert collect_values(model)["y"].shape == (4, 3)
    assert [each.g.node[0].op_type for each in inferred.graph.node[0].attribute] == [
        "Double",
        "Double",
    ]


def test_a_fault_leaves_the_graph_as_it_was(doubled):
    model = model_of([double("x", "a"), helper.make_node("Add", ["a", "x"], ["y"])])
    with remember_inferences(), pytest.raises(onnx.shape_inference.InferenceError):
        infer_shapes(model, strict=True)
    assert collect_values(model)["a"].shape == (4, 3)


def test_a_users_function_is_asked_for_what_nothing_else_says(monkeypatch):
    monkeypatch.setattr(inference, "_FUNCTIONS", {})

    def function(model, node):
        model.graph.value_info.append(helper.make_tensor_value_info(node.output[0], F, (7, 3)))
        return model, True

    inference.register_shape_function(function, "Mine")
    nodes = [helper.make_node("Mine", ["x"], ["a"], domain=DOMAIN), neg("a", "y")]
    assert collect_values(model_of(nodes))["y"].shape == (7, 3)


def test_an_operator_without_a_rule_leaves_shapes_open():
    assert "y" not in collect_values(model_of([double("x", "a"), neg("a", "y")]))


def test_a_rule_waits_for_what_its_node_takes(doubled):
    model = model_of([double("x", "a"), neg("a", "y")], shape=("n", 3))
    assert "y" not in collect_values(model)


@pytest.fixture
def inferences(monkeypatch):
    """Count the calls of ONNX's inference."""
    calls, infer = [], onnx.shape_inference.infer_shapes

    def counted(model, **options):
        calls.append(options["strict_mode"])
        return infer(model, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", counted)
    return calls


def test_the_same_graph_is_inferred_once_while_inferences_are_remembered(inferences):
    model = model_of([neg("x", "y")])
    with remember_inferences():
        first = infer_shapes(model)
        with remember_inferences():
            assert infer_shapes(model) == first
        model.graph.node[0].op_type = "Abs"
        infer_shapes(model)
    assert len(inferences) == 2
    infer_shapes(model)
    assert len(inferences) == 3


def test_one_inference_serves_those_who_are_strict_and_those_who_are_not(inferences):
    with remember_inferences():
        for strict in (False, True, False):
            infer_shapes(model_of([neg("x", "y")]), strict=strict)
    assert inferences == [True]


def test_strict_inference_raises_again_on_a_remembered_model(inferences):
    wrong = model_of([helper.make_node("MatMul", ["x", "x"], ["y"])])
    with remember_inferences():
        for _ in range(2):
            with pytest.raises(onnx.shape_inference.InferenceError):
                infer_shapes(wrong, strict=True)
            assert infer_shapes(wrong).graph.node[0].op_type == "MatMul"
    assert inferences == [True, False]


def test_a_remembered_result_is_not_shared_between_callers():
    model = model_of([neg("x", "y")])
    with remember_inferences():
        infer_shapes(model).graph.node[0].op_type = "Abs"
        assert infer_shapes(model).graph.node[0].op_type == "Neg"


def test_only_the_values_that_shapes_depend_on_travel(inferences):
    large = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    sizes = numpy_helper.from_array(np.array([3, 2]), "s")
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"]), helper.make_node("Neg", ["w"], ["z"])]
    inferred = infer_shapes(model_of(nodes, weights=[large, sizes]))
    assert [bool(tensor.raw_data) for tensor in inferred.graph.initializer] == [False, True]
    assert collect_values(model_of(nodes, weights=[large, sizes]))["y"].shape == (3, 2)


def loop(trips="trips", state=None, grows=False):
    """Return a Loop whose body declares no shape: it negates a state, or adds rows to it, and
    stacks a result."""
    made = helper.make_node("Concat", ["h", "h"], ["r"], axis=0) if grows else neg("h", "r")
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), made, helper.make_node("Abs", ["r"], ["s"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h", F, state),
        ],
        [
            helper.make_tensor_value_info("d", TensorProto.BOOL, []),
            helper.make_tensor_value_info("r", F, None),
            helper.make_tensor_value_info("s", F, None),
        ],
    )
    return helper.make_node("Loop", [trips, "", "x"], ["y", "all"], body=body)


def trips(count):
    return numpy_helper.from_array(np.array(count), "trips")


@pytest.mark.parametrize(
    ("count", "stacked"), [(5, (5, 2, 3)), (10**6, (10**6, 2, 3)), (0, (0, 2, 3)), (-4, (0, 2, 3))]
)
def test_a_loop_keeps_carried_shapes_and_stacks_scan_outputs(count, stacked):
    values = collect_values(model_of([loop()], weights=[trips(count)]))
    assert values["y"].shape == (2, 3)
    assert values["all"].shape == stacked


def test_the_trips_of_a_loop_may_be_a_constant_of_the_graph():
    constant = helper.make_node("Constant", [], ["trips"], value=trips(5))
    assert collect_values(model_of([constant, loop()]))["all"].shape == (5, 2, 3)


def test_of_a_loop_without_a_known_end_only_the_state_has_a_shape():
    for weights in ([trips(2**63 - 1)], []):
        values = collect_values(model_of([loop("trips" if weights else "")], weights=weights))
        assert values["y"].shape == (2, 3)
        assert "all" not in values


def test_a_state_that_grows_has_no_shape():
    assert "y" not in collect_values(model_of([loop(grows=True)], weights=[trips(5)]))


def test_a_loop_that_is_given_more_than_its_body_takes_is_no_loop():
    node = loop()
    node.input.append("x")
    with pytest.raises(ValueError, match="longer"):
        infer_shapes(model_of([node], weights=[trips(5)]))


def test_loops_that_follow_one_another_are_followed():
    first, second = loop(), loop()
    first.output[:] = ["m", "more"]
    second.input[2] = "m"
    last = [first, second, helper.make_node("Concat", ["all", "more"], ["z"], axis=0)]
    values = collect_values(model_of(last, weights=[trips(3)]))
    assert values["y"].shape == values["m"].shape == (2, 3)
    assert values["z"].shape == (6, 2, 3)


def test_loops_in_branches_are_followed():
    made = loop()
    result = helper.make_tensor_value_info("all", F, None)
    branch = helper.make_graph([made], "branch", [], [result])
    condition = numpy_helper.from_array(np.array(True), "condition")
    node = helper.make_node("If", ["condition"], ["y"], then_branch=branch, else_branch=branch)
    values = collect_values(model_of([node], weights=[trips(3), condition]))
    assert values["y"].shape == (3, 2, 3)


def test_a_loop_that_says_its_own_shapes_is_believed():
    values = collect_values(model_of([loop(state=(2, 3))], shape=("n", 3), weights=[trips(4)]))
    assert values["y"].shape == (2, 3)
    assert values["all"].shape == (4, 2, 3)


def test_no_tensor_is_declared_twice(doubled):
    model = model_of([double("x", "a"), loop()], weights=[trips(3)])
    model.graph.value_info.add(name="a").type.tensor_type.elem_type = F
    inferred = infer_shapes(model).graph
    names = [each.name for each in (*inferred.input, *inferred.value_info, *inferred.output)]
    assert sorted(names) == ["a", "all", "x", "y"]


def test_only_as_many_inferences_are_kept_as_are_asked_for_soon(inferences):
    models = [model_of([neg("x", "y")], shape=(rows, 2)) for rows in (1, 2, 3)]
    with remember_inferences():
        for model in (*models, models[2], models[1], models[0], models[0]):
            infer_shapes(model)
    assert len(inferences) == 4, "the first is gone when the third comes, and is kept again"


def test_a_value_has_a_size_and_bytes_of_the_chips_types():
    """The chip has no 64 bits. Text, and a value without a type, count as 32 bits."""
    widths = {
        TensorProto.DOUBLE: 4,
        TensorProto.INT64: 4,
        TensorProto.FLOAT16: 2,
        TensorProto.BFLOAT16: 2,
        TensorProto.INT8: 1,
        TensorProto.FLOAT8E5M2: 1,
        TensorProto.STRING: 4,
        TensorProto.UNDEFINED: 4,
    }
    for data_type, width in widths.items():
        value = inference.value_of(TensorProto(data_type=data_type, dims=[3, 5]))
        assert (value.shape, value.size, value.bytes) == ((3, 5), 15, 15 * width)


def test_a_stand_in_for_the_standards_own_operators_is_a_mistake():
    with pytest.raises(AssertionError, match="ONNX infers"):
        register_stand_in("ai.onnx", "Neg")(lambda op, site: site.x)


@pytest.mark.parametrize("given", [{}, {"dtype": TensorProto.INT32}])
def test_a_diagonal_of_something_unknown_does_not_end_the_process(given):
    """The inference of onnx (1.23) reads the type of the node's input, which is missing here."""
    nodes = [
        helper.make_node("Unknown", ["x"], ["a"], domain="elsewhere"),
        helper.make_node("EyeLike", ["a"], ["y"], **given),
        helper.make_node("EyeLike", ["x"], ["z"], **given),
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in "yz"]
    graph = helper.make_graph(
        nodes, "eye", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])], outputs
    )
    domains = [helper.make_opsetid("", 20), helper.make_opsetid("elsewhere", 1)]
    inferred = infer_shapes(helper.make_model(graph, opset_imports=domains, ir_version=8))
    found = inferred.graph.output[1].type.tensor_type
    assert [dim.dim_value for dim in found.shape.dim] == [2, 3]
    assert found.elem_type == given.get("dtype", TensorProto.FLOAT)
    assert [node.op_type for node in inferred.graph.node] == ["Unknown", "EyeLike", "EyeLike"]
