"""Passes: the registry, the order, the manager, and patterns of nodes."""

import dataclasses

import onnx
import poprt
import pytest
from onnx import TensorProto, helper
from poprt import Compiler, CompilerOptions, Converter, passes, pipeline
from poprt.cli import main
from poprt.options import ConverterOptions
from poprt.passes import Pass, PassManager, PatternMatcher, Stage, base_pass, find_pass, get_pass, register
from sample_models import linear_model, make_model
from simipu import TARGETS, CompileError
from simipu.cost import CostOptions

F, F16 = TensorProto.FLOAT, TensorProto.FLOAT16


@pytest.fixture
def registry(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(base_pass, "_PASSES", dict(base_pass._PASSES))


def make_pass(name, **facts):
    return register(name, **facts)(type("Made", (Pass,), {"run": lambda self, model: model}))


def names(listed):
    return [each.name for each in listed]


def test_every_pass_runs_in_some_pipeline():
    assert set(passes.get_registered_passes()) == {
        *pipeline.CONVERSION,
        *pipeline.PREPARATION,
        *pipeline.LOWERING,
    }


def test_the_order_of_the_pipelines_is_one_that_the_constraints_allow():
    for order in (pipeline.CONVERSION, pipeline.PREPARATION):
        manager = PassManager(order)
        manager.sort_passes()
        assert manager.get_all_pass_names() == list(order)


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        ("ipu2", {}, []),
        ("ipu21", {}, ["take_quarters"]),
        ("ipu2", {"num_ipus": 2}, ["place_nodes", "insert_copies"]),
        ("ipu21", {"virtual_graph_mode": "manual"}, ["take_quarters", "place_nodes", "insert_copies"]),
    ],
)
def test_a_graph_is_lowered_as_the_chip_and_its_number_ask_for(target, options, expected):
    found = pipeline.lowering(pipeline.LoweringOptions(TARGETS[target], CostOptions(**options)))
    assert names(found) == expected
    manager = PassManager(found)
    manager.sort_passes()
    assert manager.get_all_pass_names() == expected


def test_a_conversion_goes_from_stage_to_stage():
    stages = [find_pass(name).info.stage for name in pipeline.CONVERSION]
    assert stages == sorted(stages)


def test_what_passes_take_of_the_options_is_there():
    options = {
        pipeline.CONVERSION: ConverterOptions(),
        pipeline.PREPARATION: pipeline.PreparationOptions(),
        pipeline.LOWERING: pipeline.LoweringOptions(TARGETS["ipu21"], CostOptions()),
    }
    for order, given in options.items():
        for name in order:
            info = find_pass(name).info
            wanted = {*info.takes.values(), *filter(None, [info.option])}
            assert all(hasattr(given, each) for each in wanted), name


@pytest.mark.parametrize(
    ("options", "added"),
    [
        ({}, set()),
        ({"convert_version": 13}, {"convert_version"}),
        ({"remove_outputs": {"y"}}, {"remove_outputs"}),
        ({"fix_inputs": {"x": 1}}, {"fix_inputs"}),
        ({"precision": "fp16"}, {"half_to_float", "float_to_half"}),
        ({"precision": "fp8"}, {"half_to_float", "float_to_half", "float_to_fp8"}),
        ({"precision": "fp8_weight"}, {"half_to_float", "float_to_half", "float_to_fp8"}),
    ],
)
def test_an_option_switches_its_passes_on(options, added):
    always = {name for name in pipeline.CONVERSION if find_pass(name).info.default}
    found = names(pipeline.conversion(ConverterOptions(**options), linear_model()))
    assert set(found) == always | added
    assert found == [name for name in pipeline.CONVERSION if name in found]


def half_model(opset):
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    model = make_model(nodes, {"x": (F16, [2])}, {"y": (F16, [2])}, {})
    model.opset_import[0].version = opset
    return model


def test_a_model_in_half_stays_in_half_and_gets_an_opset_that_can_round():
    old, new = (names(pipeline.conversion(ConverterOptions(), half_model(opset))) for opset in (9, 17))
    assert {"half_to_float", "float_to_half"} < set(new)
    assert set(old) - set(new) == {"convert_version"}


def test_converter_and_compiler_announce_as_many_steps_as_are_counted():
    announced = []
    converter = Converter(batch_size=2, precision="fp16")
    model = linear_model()
    counted = [pipeline.count_steps(converter.options, model, compiling=each) for each in (False, True)]
    half, whole = converter.convert_beside_float(model, announced.append)
    assert len(announced) == counted[0]
    Compiler.compile(half, None, CompilerOptions(), float_model=whole, on_step=announced.append)
    assert len(announced) == counted[1]


def test_all_passes_are_listed_without_a_model(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--list_all_passes"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.split() == sorted(passes.get_registered_passes())


def test_passes_of_names_that_the_real_tool_lacks_are_called_ours():
    """PopRT 1.5.0's list of passes: graphcore.github.io/PopRT/1.5.0-en/python_api.html."""
    real = {name for name in passes.get_registered_passes() if not find_pass(name).info.is_ours}
    assert real == {
        "const_input_shape",
        "constant_folding",
        "eliminate_nop_if",
        "float_to_fp8",
        "float_to_half",
        "int64_to_int32",
        "remove_outputs",
    }


def test_a_name_is_registered_once(registry):
    make_pass("mine")
    with pytest.raises(CompileError, match="pass 'mine' is registered already"):
        make_pass("mine")


def test_an_unknown_pass_is_refused_with_the_known_ones():
    with pytest.raises(CompileError, match=r"pass 'fold' is not registered; known are admit, .*constant_f"):
        get_pass("fold")


def test_a_pass_without_facts_is_a_users_and_runs_only_when_asked_for(registry):
    info = make_pass("mine").info
    assert info.stage is Stage.CUSTOM
    assert not info.is_on(ConverterOptions())


def test_a_pass_that_does_not_say_what_it_does_is_refused():
    with pytest.raises(NotImplementedError, match="define run"):
        Pass()(linear_model())


def body_of(op_type):
    node = helper.make_node(op_type, ["x"], [f"{op_type}_y"])
    return helper.make_graph([node], op_type, [], [onnx.ValueInfoProto(name=f"{op_type}_y")])


def test_traversal_visits_bodies_and_says_which_graph_is_the_main_one():
    node = helper.make_node("If", ["c"], ["y"], then_branch=body_of("Neg"), else_branch=body_of("Abs"))
    model = make_model([node], {"x": (F, [2]), "c": (TensorProto.BOOL, [])}, {"y": (F, [2])}, {})
    seen = []

    def transform(graph, is_main):
        seen.append((graph.node[0].op_type, is_main))
        changed = onnx.GraphProto()
        changed.CopyFrom(graph)
        changed.node[0].doc_string = "seen"
        return changed

    model.graph.CopyFrom(Pass().traverse_graph(model.graph, transform))
    assert sorted(seen) == [("Abs", False), ("If", True), ("Neg", False)]
    assert {body.g.node[0].doc_string for body in model.graph.node[0].attribute} == {"seen"}


def test_a_pass_written_as_the_real_tools_users_write_them_runs(registry):
    @poprt.passes.register("replace_neg_with_abs")
    class ReplaceNegWithAbs(poprt.Pass):
        """No argument, and a run that puts back what traversal made."""

        def __init__(self):
            super().__init__()

        def run_transform(self, graph, is_main_graph):
            for node in graph.node:
                node.op_type = "Abs"
            return graph

        def run(self, onnx_model):
            onnx_model.graph.CopyFrom(self.traverse_graph(onnx_model.graph, self.run_transform))
            return onnx_model

    model = make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": (F, [2])}, {"y": (F, [2])}, {})
    changed = poprt.PassManager(["replace_neg_with_abs"]).run(model)
    assert [node.op_type for node in changed.graph.node] == ["Abs"]
    assert "replace_neg_with_abs" in poprt.get_registered_passes()


def test_passes_are_sorted_by_what_comes_before_and_what_is_needed(registry):
    make_pass("last", depend=("middle",))
    make_pass("first", before=("middle",))
    make_pass("middle")
    manager = PassManager(["last", "middle", "first"])
    manager.sort_passes()
    assert manager.get_all_pass_names() == ["first", "middle", "last"]


@pytest.mark.parametrize(
    ("facts", "listed", "reason"),
    [
        ({"depend": ("absent",)}, ["one"], "pass one needs absent; add it"),
        ({"against": ("admit",)}, ["one", "admit"], "pass one may not run together with admit"),
        ({"before": ("two",), "depend": ("two",)}, ["one", "two"], "passes one, two wait for each other"),
    ],
)
def test_passes_that_do_not_go_together_are_refused(registry, facts, listed, reason):
    make_pass("one", **facts)
    make_pass("two", depend=("one",))
    with pytest.raises(CompileError, match=reason):
        PassManager(listed).sort_passes()


def test_a_manager_runs_passes_in_order_and_says_which():
    told = []
    model = make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": (F, [2])}, {"y": (F, [2])}, {})
    assert PassManager(["limit_ir_version", get_pass("name_nodes")]).run(model, told.append) is model
    assert told == ["limit_ir_version", "name_nodes"]
    assert model.graph.node[0].name == "y"


def chain(*op_types, start="x"):
    ends = [start, *(f"{start}{i}" for i in range(len(op_types)))]
    return [
        helper.make_node(op_type, [ends[i]], [ends[i + 1]], name=ends[i + 1])
        for i, op_type in enumerate(op_types)
    ]


def graph_of(nodes):
    return helper.make_graph(nodes, "graph", [], [])


def matches(paths, graph):
    matcher, found = PatternMatcher(paths), []
    while (match := matcher.next_pattern(graph)) is not None:
        found.append({key: each.node.name for key, each in match.items()})
    return found


def test_a_path_finds_each_chain_once():
    graph = graph_of([*chain("Neg", "Abs", "Neg", "Abs"), *chain("Neg", "Relu", start="z")])
    assert matches(["s:0->Neg:first -> Abs:second->e:1"], graph) == [
        {"first": "x0", "second": "x1"},
        {"first": "x2", "second": "x3"},
    ]
    assert matches(["s:0->Relu:a->Neg:b->e:1"], graph) == []


def test_a_key_in_two_paths_is_one_node_and_two_keys_are_two():
    left, right = chain("Cast", "Neg", start="l"), chain("Cast", "Neg", start="r")
    add = helper.make_node("Add", ["l1", "r1"], ["y"], name="y")
    square = helper.make_node("Mul", ["l1", "l1"], ["z"], name="z")
    graph = graph_of([*left, *right, add, square])
    found = matches(["Cast:c->Neg:l->Add:join->e:0", "s:1->Neg:r->Add:join"], graph)
    assert {"c": "l0", "l": "l1", "r": "r1", "join": "y"} in found
    assert all(match["l"] != match["r"] for match in found)
    assert matches(["Neg:a->Mul:m", "Neg:b->Mul:m"], graph) == []


def test_a_match_says_where_the_nodes_are_in_a_graph_that_changes():
    graph = graph_of(chain("Neg", "Abs", "Neg", "Abs"))
    matcher = PatternMatcher(["Neg:n->Abs:a"])
    first = matcher.next_pattern(graph)
    assert [graph.node[each.index] for each in first.values()] == [each.node for each in first.values()]
    graph.node.remove(first["n"].node)
    assert matcher.next_pattern(graph)["n"].index == 1
    assert matcher.next_pattern(graph) is None


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("Neg->Abs:a", "expected Operator:key"),
        ("Neg:->Abs:a", "expected Operator:key"),
        ("Neg:a->Abs:a", "key 'a' is of Neg and of Abs"),
    ],
)
def test_what_is_no_path_is_refused(path, reason):
    with pytest.raises(CompileError, match=reason):
        PatternMatcher([path])


def test_what_is_known_of_a_pass_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        find_pass("admit").info.default = False
