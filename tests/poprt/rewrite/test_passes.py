"""Tests of passes: the registry, the order, the manager, and patterns of nodes."""

import dataclasses

import onnx
import poprt
import pytest
from onnx import TensorProto, helper
from poprt import Compiler, CompilerOptions, Converter, passes, pipeline
from poprt.cli import main
from poprt.options import ConverterOptions
from poprt.passes import (
    Pass,
    PassManager,
    PatternMatcher,
    Stage,
    base_pass,
    find_pass,
    get_pass,
    register,
)
from sample_models import linear_model, make_model
from simipu import TARGETS, CompileError
from simipu.cost import CostOptions

F, F16 = TensorProto.FLOAT, TensorProto.FLOAT16


def make_pass(name, **facts):
    return register(name, **facts)(type("Made", (Pass,), {"run": lambda self, model: model}))


def names(listed):
    return [each.name for each in listed]


def test_every_pass_of_ours_runs_in_some_pipeline():
    ours = {name for name, found in passes.get_registered_passes().items() if found.info.is_ours}
    assert ours <= {*pipeline.CONVERSION, *pipeline.PREPARATION, *pipeline.LOWERING}


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
        (
            "ipu21",
            {"virtual_graph_mode": "manual"},
            ["take_quarters", "place_nodes", "insert_copies"],
        ),
    ],
)
def test_a_graph_is_lowered_as_the_chip_and_its_number_ask_for(target, options, expected):
    found = pipeline.lowering(pipeline.PlacementOptions(TARGETS[target], CostOptions(**options)))
    assert names(found) == expected
    manager = PassManager(found)
    manager.sort_passes()
    assert manager.get_all_pass_names() == expected


def test_a_conversion_goes_from_stage_to_stage():
    stages = [find_pass(name).info.stage for name in pipeline.CONVERSION]
    assert stages == sorted(stages)


def test_fields_that_passes_take_exist_in_the_options():
    options = {
        pipeline.CONVERSION: ConverterOptions(),
        pipeline.PREPARATION: pipeline.PreparationOptions(),
        pipeline.LOWERING: pipeline.PlacementOptions(TARGETS["ipu21"], CostOptions()),
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
        ({"precision": "fp16"}, {"half_to_float", "replace_half_reducemean", "float_to_half"}),
        (
            {"precision": "fp8"},
            {"half_to_float", "replace_half_reducemean", "float_to_half", "float_to_fp8"},
        ),
        (
            {"precision": "fp8_weight"},
            {"half_to_float", "replace_half_reducemean", "float_to_half", "float_to_fp8"},
        ),
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
    old, new = (
        names(pipeline.conversion(ConverterOptions(), half_model(opset))) for opset in (9, 17)
    )
    assert {"half_to_float", "float_to_half"} < set(new)
    assert set(old) - set(new) == {"convert_version"}


def test_the_converter_announces_five_steps_and_the_compiler_how_far_it_is():
    announced, told = [], []
    half, whole = Converter(batch_size=2, precision="fp16").convert_beside_float(
        linear_model(), announced.append
    )
    assert announced == [text for _, text in pipeline.STEPS]
    options = CompilerOptions(
        compilation_progress_logger=lambda done, whole: told.append((done, whole))
    )
    Compiler.compile(half, None, options, float_model=whole)
    assert told[0] == (0, 100)
    assert told[-1] == (100, 100)
    assert told == sorted(told)


def test_the_warnings_of_half_come_at_the_third_step():
    third, stage = pipeline.STEPS[2][0], find_pass("float_to_half").info.stage
    assert third <= stage < pipeline.STEPS[3][0]


def test_all_passes_are_listed_without_a_model(capsys):
    assert main(["--list_all_passes"]) == 0
    assert capsys.readouterr().out.split() == sorted(passes.get_registered_passes())


REAL = """add_checkpoints apply_host_concat_split apply_ir_pass attention_padding auto_insert_remap
batchnorm_workaround check_unsupported_attribute check_with_fake_data compress_pattern const_batch_size
const_input_shape constant_folding cumsum_workaround double_to_float eight_bits_io eliminate_deadend
eliminate_duplicate_initializer eliminate_duplicate_nodes eliminate_identity eliminate_nop_arithmetic
eliminate_nop_cast eliminate_nop_expand eliminate_nop_flatten eliminate_nop_if eliminate_nop_pad
eliminate_nop_reshape eliminate_nop_transpose eliminate_unused_initializer erf_gelu_pattern expand_if
extract_constant_to_initializer fill_squeeze_axes final_check float_ops_workaround float_to_fp8 float_to_half
float_to_int8 float_to_mixed fold_periodic_initializer fuse_bn_into_conv fuse_bn_into_gemm
fuse_cast_into_onehot fuse_consecutive_arithmetic fuse_consecutive_cast fuse_consecutive_reshape
fuse_consecutive_squeeze fuse_consecutive_transpose fuse_consecutive_unsqueeze fuse_mul_into_matmul
fused_attention gelu_pattern indices_workaround insert_attention_mask int64_to_int32 layer_norm_pattern
layer_precision_compare manual_sharding matmul_rotary_embedding merge_if_with_same_cond merge_matmul
merge_matmul_add merge_moe merge_multi_slice merge_variant_if model_io_info_stat model_overview
move_subgraph_initializer onehot_workaround overlap_io packed_transformer post_expand pre_scale
remove_duplicated_initializer remove_empty_concat_inputs remove_initializer_from_input remove_input_cast
remove_outputs replace_bn_with_mul_add replace_castlike replace_clip_empty_inputs
replace_consecutive_cast_with_notzero replace_div_with_mul replace_einsum_with_matmul
replace_erf_with_erfv2 replace_gemm_with_matmul replace_greater_or_equal replace_groupnorm_with_fast_norm
replace_half_reducemean replace_hardswish replace_isinf replace_less_or_equal replace_nonzero replace_pow
replace_round replace_softmax replace_where_mask replace_where_with_mul_add replace_where_with_wherev2
serialize_matmul serialize_matmul_add shape_inference sort_graph topk_workaround trace_folding
unique_name_for_nodes""".split()
"""PopRT 1.5.0's list of passes: graphcore.github.io/PopRT/1.5.0-en/python_api.html."""


def test_all_passes_of_the_real_tool_are_there_and_the_others_are_called_ours():
    assert len(set(REAL)) == len(REAL) == 105
    real = {name for name in passes.get_registered_passes() if not find_pass(name).info.is_ours}
    assert real == set(REAL)


def test_a_refused_pass_can_be_made_and_says_why_when_it_runs():
    refused = [name for name in REAL if find_pass(name).info.refusal]
    assert refused
    for name in refused:
        with pytest.raises(CompileError, match=f"pass '{name}' does not run here: "):
            get_pass(name)(linear_model())


def test_a_name_is_registered_once(registry):
    make_pass("mine")
    with pytest.raises(CompileError, match="pass 'mine' is registered already"):
        make_pass("mine")


def test_an_unknown_pass_is_refused_with_the_nearest_one():
    text = r"pass 'eliminate_dead_end' is not registered; did you mean eliminate_deadend\?; `poprt"
    with pytest.raises(CompileError, match=text):
        get_pass("eliminate_dead_end")


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
    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=body_of("Neg"), else_branch=body_of("Abs")
    )
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
        """Pass without arguments whose run copies the traversed graph back into the model."""

        def __init__(self):
            super().__init__()

        def run_transform(self, graph, is_main_graph):
            for node in graph.node:
                node.op_type = "Abs"
            return graph

        def run(self, onnx_model):
            onnx_model.graph.CopyFrom(self.traverse_graph(onnx_model.graph, self.run_transform))
            return onnx_model

    model = make_model(
        [helper.make_node("Neg", ["x"], ["y"])], {"x": (F, [2])}, {"y": (F, [2])}, {}
    )
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
        (
            {"before": ("two",), "depend": ("two",)},
            ["one", "two"],
            "passes one, two wait for each other",
        ),
    ],
)
def test_passes_that_do_not_go_together_are_refused(registry, facts, listed, reason):
    make_pass("one", **facts)
    make_pass("two", depend=("one",))
    with pytest.raises(CompileError, match=reason):
        PassManager(listed).sort_passes()


def test_a_manager_runs_passes_in_order_and_says_which():
    told = []
    model = make_model(
        [helper.make_node("Neg", ["x"], ["y"])], {"x": (F, [2])}, {"y": (F, [2])}, {}
    )
    manager = PassManager(["limit_ir_version", get_pass("unique_name_for_nodes")])
    assert manager.run(model, told.append) is model
    assert told == ["limit_ir_version", "unique_name_for_nodes"]
    assert model.graph.node[0].name == "y"


def test_passes_of_a_users_win_and_skipped_ones_are_left_out():
    options = ConverterOptions(
        used_passes=["constant_folding"], skip_passes=frozenset(["int64_to_int32"])
    )
    found = names(pipeline.conversion(options, linear_model()))
    assert "int64_to_int32" not in found
    assert found.count("constant_folding") == 1
    assert found.index("constant_folding") > found.index("unique_name_for_nodes")


def test_shapes_are_inferred_ahead_of_all_else_and_nothing_is_left_out():
    plain, ahead = (
        names(pipeline.conversion(ConverterOptions(infer_shape_ahead=each), linear_model()))
        for each in (False, True)
    )
    place = ahead.index("shape_inference")
    assert ahead[:place] == [*plain[: place - 1], "constant_folding"]
    assert ahead[place + 1 :] == plain[place - 1 :]
    assert plain[-1] == "final_check"
    converted = Converter(batch_size=2, infer_shape_ahead=True).convert(linear_model())
    assert {value.name for value in converted.graph.value_info} == {"product", "sum"}


def test_required_passes_cannot_be_skipped():
    with pytest.raises(CompileError, match="skip_passes: 'admit' is a check or step"):
        pipeline.conversion(ConverterOptions(skip_passes=frozenset(["admit"])), linear_model())


def test_decorators_say_what_passes_have_to_do_with_each_other(registry):
    @register("mine")
    @Pass.property_register("type", "rewriting")
    @Pass.constraint_passes("before", ["constant_folding"])
    @Pass.against_passes(["float_to_fp8"])
    class Mine(Pass):
        """Pass with a type and constraints."""

    assert Mine.info.against == {"float_to_fp8"}
    assert Mine.info.before == {"constant_folding"}
    assert Pass.get_typed_registered_passes("rewriting") == {"mine": Mine}
    with pytest.raises(CompileError, match="no constraint 'after'"):
        Pass.constraint_passes("after", [])


def test_a_registered_pass_can_be_overridden(registry):
    @Pass.override_register_pass("constant_folding")
    class Mine(Pass):
        """Pass that overrides constant folding."""

    assert Pass.get_registered_passes()["constant_folding"] is Mine


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "place_nodes",
            [],
            "pass 'place_nodes': missing a required argument: 'target'; its arguments are target, ",
        ),
        (
            "insert_copies",
            [],
            "missing a required argument: 'num_ipus'.*are num_ipus; it is a step of the compiler",
        ),
        ("constant_folding", [1, 2], "pass 'constant_folding': too many positional arguments"),
    ],
)
def test_arguments_that_a_pass_lacks_or_does_not_take_are_named(name, arguments, message):
    with pytest.raises(CompileError, match=message):
        get_pass(name, *arguments)


def test_a_replaced_lookup_of_passes_is_used(monkeypatch):
    class Mine(base_pass.ImmutablePass):
        """Pass of the same kind as ByteMLPerf's."""

        name = "final_check"

        def run(self, model):
            ran.append(self.name)
            return model

    ran = []
    found = base_pass.get_all_named_subclasses(Pass)
    monkeypatch.setattr(
        base_pass, "get_all_named_subclasses", lambda cls: {**found, "final_check": Mine}
    )
    assert isinstance(get_pass("final_check"), Mine)
    Converter(batch_size=2).convert(linear_model())
    assert ran == ["final_check"]


def test_passes_are_found_by_walking_over_the_classes_too():
    """ByteMLPerf finds passes this way. Classes of other tests may still exist."""

    def walk(cls):
        found = {}
        for each in cls.__subclasses__():
            if each.__module__.startswith("poprt."):
                found |= {each.name: each} | walk(each)
        return found

    walked = walk(Pass)
    registered = base_pass.get_all_named_subclasses(Pass)
    ours = {name: each for name, each in registered.items() if each.__module__.startswith("poprt.")}
    assert {name: walked[name] for name in ours} == ours


@pytest.mark.parametrize("name", ["final_check", "constant_folding", "float_to_half", "admit"])
def test_a_pass_of_the_user_runs_in_the_place_of_a_default_one(registry, name):
    before = names(pipeline.conversion(ConverterOptions(precision="fp16"), linear_model()))
    replaced, ran = find_pass(name), []

    @Pass.override_register_pass(name)
    @Pass.property_register("type", "mine")
    class Mine(Pass):
        """Pass without arguments, like published ones."""

        def __init__(self):
            super().__init__()

        def run(self, model):
            ran.append(self.name)
            return replaced().run(model)

    assert names(pipeline.conversion(ConverterOptions(precision="fp16"), linear_model())) == before
    assert (Mine.info.stage, Mine.info.properties) == (replaced.info.stage, {"type": "mine"})
    Converter(batch_size=2, precision="fp16").convert(linear_model())
    assert ran == [name]


def test_a_pass_of_the_user_in_the_place_of_a_refused_one_runs_when_asked_for(registry):
    refused = next(
        name for name, each in base_pass.get_registered_passes().items() if each.info.refusal
    )
    ran = []

    @Pass.override_register_pass(refused)
    class Mine(Pass):
        """Pass that overrides a refused one."""

        def run(self, model):
            ran.append(self.name)
            return model

    Converter(batch_size=2, used_passes=[refused]).convert(linear_model())
    assert ran == [refused]


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
    assert [graph.node[each.index] for each in first.values()] == [
        each.node for each in first.values()
    ]
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
def test_an_invalid_pattern_path_is_rejected(path, reason):
    with pytest.raises(CompileError, match=reason):
        PatternMatcher([path])


def test_the_information_of_a_pass_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        find_pass("admit").info.default = False
