"""Tests of packed_transformer: packed samples get the same answers as single ones."""

import numpy as np
import onnx
import pytest
from exported_graphs import I32, I64, Exporter, F, bert_like
from onnx import TensorProto, helper
from onnxgraph import collect_values
from poprt import Compiler, CompilerOptions, Converter, pipeline, runtime
from poprt.cli import main
from poprt.passes import get_pass
from poprt.passes.packing.packed_transformer import PackArgs
from simipu import TARGETS, CompileError

TOKENS = 8
LENGTHS = [8, 3, 1, 5, 2, 4]
ARGS = {"max_valid_num": 7, "segment_max_size": TOKENS}


def convert(model, **options):
    return Converter(disable_progress_bar=True, **options).convert(model)


def open_runner(model):
    options = CompilerOptions()
    options.show_compilation_progress_bar = False
    return runtime.Runner(Compiler.compile(model, None, options))


def run(model, **feeds):
    """Compile and run the model and return its outputs by name."""
    return execute(open_runner(model), **feeds)


def execute(runner, **feeds):
    found = {
        each.name: np.zeros(each.shape, each.numpy_data_type())
        for each in runner.get_execute_outputs()
    }
    runner.execute(feeds, found)
    return found


def sentences(lengths=LENGTHS, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 19, length).astype(np.int32) for length in lengths]


def pad(samples, count, tokens=TOKENS):
    """Return an array with one row for each sample, as models without packing take them."""
    rows = np.zeros((count, tokens), np.int32)
    for row, sample in zip(rows, samples, strict=False):
        row[: len(sample)] = sample
    return rows


def lay(samples, batch, tokens=TOKENS):
    """Return the samples end to end."""
    flat = np.zeros(batch * tokens, np.int32)
    flat[: sum(map(len, samples))] = np.concatenate(samples)
    return flat.reshape(batch, tokens)


def count(samples, most):
    return np.array([len(each) for each in samples] + [0] * (most - len(samples)), np.int32)[
        :, None
    ]


def numbered(samples):
    return [np.full(len(each), number) for number, each in enumerate(samples, 1)]


def shown(samples):
    return [np.ones(len(each), int) for each in samples]


def bert(batch, *, positions=False, pooled=False, **options):
    """Return BERT with positions as weights or as an input. An output is the first token's row, or
    the mean."""
    model = bert_like(batch, TOKENS, **options)
    if positions:
        give_positions(model)
    if pooled:
        pool(model, batch)
    return model


def give_positions(model):
    """Change the model to look up the table of positions instead of adding it."""
    graph = model.graph
    table = next(tensor for tensor in graph.initializer if list(tensor.dims) == [1, TOKENS, 16])
    table.dims[:] = [TOKENS, 16]
    batch = graph.input[0].type.tensor_type.shape.dim[0].dim_value
    graph.input.append(helper.make_tensor_value_info("positions", I64, [batch, TOKENS]))
    looked_up = helper.make_node("Gather", [table.name, "positions"], ["placed"], name="placed")
    graph.node.insert(0, looked_up)
    for node in graph.node[1:]:
        node.input[:] = ["placed" if name == table.name else name for name in node.input]


def pool(model, batch):
    graph, last = model.graph, model.graph.output[0].name
    first = onnx.numpy_helper.from_array(np.array(0), "first")
    graph.initializer.append(first)
    graph.node.append(helper.make_node("Gather", [last, "first"], ["pooled"], name="pool", axis=1))
    graph.output.append(helper.make_tensor_value_info("pooled", F, [batch, 2]))


@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("rotary", ["", "half", "interleaved"])
def test_packed_answers_are_those_of_samples_alone(precision, positions, rotary):
    """The mask may number the samples, or only show where there are tokens."""
    kinds = {"positions": positions, "pooled": True, "rotary": rotary}
    samples = sentences()
    places = [np.arange(len(each)) for each in samples]
    feeds = {"ids": pad(samples, 6), "mask": pad(shown(samples), 6)}
    together = {"ids": lay(samples, 3), "unpack_info": count(samples, 7)}
    if positions:
        feeds["positions"], together["positions"] = pad(places, 6), lay(places, 3)
    expected = run(convert(bert(len(LENGTHS), **kinds), precision=precision), **feeds)
    packed = open_runner(convert(bert(3, **kinds), precision=precision, pack_args=ARGS))
    step = 2.0**-9 if precision == "fp16" else 1e-5
    for mask in (numbered, shown):
        found = execute(packed, **together, mask=lay(mask(samples), 3))
        assert_same_samples(samples, expected, found, step)


def assert_same_samples(samples, expected, found, step):
    assert expected.keys() == found.keys()
    last = next(name for name in expected if name != "pooled")
    assert found[last].shape == (7, TOKENS, 2)
    for row, sample in enumerate(samples):
        size = np.abs(expected[last]).max()
        off = expected[last][row, : len(sample)] - found[last][row, : len(sample)]
        assert np.abs(off).max() <= step * size
    np.testing.assert_allclose(found["pooled"][:6], expected["pooled"], atol=step * size)


def test_a_sample_may_be_shorter_than_a_row():
    """The positions in the model are cut."""
    packed = convert(bert(3), pack_args={"max_valid_num": 8, "segment_max_size": 5})
    samples = sentences([5, 2, 4, 5])
    alone = run(convert(bert(4)), ids=pad(samples, 4), mask=pad(shown(samples), 4))
    found = run(
        packed, ids=lay(samples, 3), mask=lay(shown(samples), 3), unpack_info=count(samples, 8)
    )
    (expected,), (answer,) = alone.values(), found.values()
    assert answer.shape == (8, 5, 2)
    for row, sample in enumerate(samples):
        np.testing.assert_allclose(
            answer[row, : len(sample)], expected[row, : len(sample)], atol=1e-5
        )


def test_attention_alone_is_unpacked():
    model = convert(bert(3, positions=True, layers=2), pack_args=ARGS)
    shapes = collect_values(model)
    for node in model.graph.node:
        if node.op_type == "MatMul" and len(shapes[node.input[1]].shape) == 2:
            assert shapes[node.output[0]].shape[:2] == (3, TOKENS), (
                "products with weights are of packed tokens"
            )
        if node.op_type == "Softmax":
            assert shapes[node.output[0]].shape[0] == 7
    operators = [node.op_type for node in model.graph.node]
    assert operators.count("Repack") == 2
    assert operators.count("Unpack") == 2 * 3 + 2, (
        "queries, keys and values, the mask and the output"
    )


def test_packing_pays_by_how_full_rows_are():
    """With rows half full, twice as many samples take less than twice the time."""
    plain = pipeline.estimate(
        convert(bert_like(8, 64, 2, 4, 64), precision="fp16"), TARGETS["ipu2"]
    ).cycles
    args = {"max_valid_num": 16, "segment_max_size": 64}
    packed = convert(bert_like(8, 64, 2, 4, 64), precision="fp16", pack_args=args)
    assert pipeline.estimate(packed, TARGETS["ipu2"]).cycles < 2 * plain


def test_two_segments_follow_one_another_in_each_sample():
    net = Exporter()
    x = net.input("x", [2, 6], I32)
    wide = net.unsqueeze(net.add("Cast", x, to=F), 2)
    model = net.model({net.axes("ReduceSum", wide, [1], keepdims=0): [2, 1]})
    packed = convert(model, pack_args={"max_valid_num": "3", "segment_max_size": "2+3"})
    assert [dim.dim_value for dim in packed.graph.input[-1].type.tensor_type.shape.dim] == [3, 2]
    info = np.array([[2, 1], [1, 3], [0, 2]], np.int32)
    (found,) = run(packed, x=np.arange(12, dtype=np.int32).reshape(2, 6), unpack_info=info).values()
    np.testing.assert_array_equal(found[:, 0], [0 + 1 + 2, 3 + 4 + 5 + 6, 7 + 8])


def test_a_head_is_computed_of_unpacked_tokens():
    """The pattern is that of packed_bert_example, as its command line writes it."""
    net = Exporter()
    x = net.add("Gather", net.weight(19, 16), net.input("ids", [2, 8], I64))
    parts = net.linear(net.add("Tanh", x), 16, 2)
    net.nodes.append(helper.make_node("Split", [parts], ["start", "end"], name="parts", axis=2))
    start, end = (net.axes("Squeeze", name, [2]) for name in ("start", "end"))
    model = net.model({start: [2, 8], end: [2, 8]})
    pattern = "s:0->MatMul:1->Add:2->Split:3->Squeeze:4->e:5,Split:3->Squeeze:6->e:7"
    args = {**ARGS, "head_pattern": pattern, "dynamic_groups": "[[ids,]]"}
    packed = convert(model, pack_args=args)
    shapes = collect_values(packed)
    (product,) = [node for node in packed.graph.node if node.op_type == "MatMul"]
    (squash,) = [node for node in packed.graph.node if node.op_type == "Tanh"]
    assert shapes[product.output[0]].shape == (7, 8, 2)
    assert shapes[squash.output[0]].shape == (2, 8, 16)
    assert sum(node.op_type == "Unpack" for node in packed.graph.node) == 1
    samples = sentences([8, 3, 5])
    alone = run(convert(net.model({start: [2, 8], end: [2, 8]})), ids=pad(samples[:2], 2))
    found = run(packed, ids=lay(samples, 2), unpack_info=count(samples, 7))
    for name, expected in alone.items():
        for row in range(2):
            seen = slice(len(samples[row]))
            np.testing.assert_allclose(found[name][row, seen], expected[row, seen], atol=1e-5)


def test_the_command_line_packs(tmp_path):
    onnx.save(bert(2, positions=True), tmp_path / "m.onnx")
    args = f"-i {tmp_path}/m.onnx --output_dir {tmp_path} --output_model packed.onnx --pack_args"
    words = (
        "max_valid_num=4 segment_max_size=8 enable_double_batch_unpack=false "
        "efficiency_priority=True"
    )
    assert main([*args.split(), *words.split(), "dynamic_groups=[[ids,]]"]) == 0
    packed = onnx.load(tmp_path / "packed.onnx")
    assert [value.name for value in packed.graph.input] == [
        "ids",
        "mask",
        "positions",
        "unpack_info",
    ]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"segment_max_size": 8}, "expected max_valid_num"),
        ({"max_valid_num": 8}, "expected segment_max_size"),
        ({**ARGS, "batch": 1}, "there is no 'batch'"),
        ({**ARGS, "max_valid_num": 0}, "max_valid_num: expected a number"),
        ({**ARGS, "max_valid_num": "many"}, "found 'many'"),
        ({**ARGS, "max_valid_num": 2**31}, "max_valid_num: expected a number"),
        ({**ARGS, "max_valid_num": True}, "found True"),
        ({**ARGS, "segment_max_size": "13+"}, "segment_max_size: expected"),
        ({**ARGS, "segment_max_size": []}, "segment_max_size: expected"),
        ({**ARGS, "efficiency_priority": "perhaps"}, "expected true or false"),
        ({**ARGS, "dynamic_groups": "a,b"}, "dynamic_groups: expected inputs in groups"),
        ({**ARGS, "dynamic_groups": [[]]}, "dynamic_groups: expected inputs in groups"),
        ({**ARGS, "dynamic_groups": 5}, "dynamic_groups: expected inputs in groups"),
        ({**ARGS, "head_pattern": 5}, "head_pattern: expected paths"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(given, told):
    with pytest.raises(CompileError, match="pack_args") as error:
        Converter(pack_args=given)
    assert told in str(error.value)


def test_groups_are_read_with_quotes_and_without():
    for text in ("[[a,b],[c]]", "[['a','b'],['c']]", [["a", "b"], ["c"]], "[[a, b], [c,]]"):
        assert PackArgs.read({**ARGS, "dynamic_groups": text}).dynamic_groups == (
            ("a", "b"),
            ("c",),
        )


def refused(build):
    net = Exporter()
    return net, build(net)


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (
            lambda net, x: net.add("ReduceMean", x, axes=[1]),
            "mixes tokens, padding too: with them as rows, it reduces over the rows",
        ),
        (
            lambda net, x: net.add("Softmax", x, axis=0),
            "mixes samples: with them as rows, it normalises along the rows",
        ),
        (lambda net, x: net.add("Add", x, net.weight(2, 8, 4)), "tells samples apart"),
        (lambda net, x: net.add("Concat", x, x, axis=1), "joins rows"),
        (lambda net, x: net.add("Concat", x, net.weight(2, 8, 1), axis=2), "tells samples apart"),
        (
            lambda net, x: net.add("Reshape", x, net.integers(4, 4, 4)),
            "mixes rows with other axes",
        ),
        (
            lambda net, x: net.add("Gather", x, net.constant(-1, np.int64), axis=1),
            "picks among the rows",
        ),
        (lambda net, x: net.slice(x, 1, 2), "slices the rows"),
        (
            lambda net, x: net.add("MatMul", net.weight(3, 8), x),
            "rows lie along the summed dimension",
        ),
        (lambda net, x: net.add("Conv", x, net.weight(8, 8, 1)), "rows lie along axis 1, not 0"),
        (
            lambda net, x: net.add("CumSum", x, net.constant(1, np.int64), reverse=1),
            "sums along the rows",
        ),
    ],
)
def test_a_node_that_mixes_samples_is_rejected_by_name(build, told):
    net = Exporter()
    made = build(net, net.add("Tanh", net.input("x", [2, 8, 4])))
    model = net.model({made: None})
    with pytest.raises(CompileError, match="packed_transformer: node") as error:
        get_pass("packed_transformer", pack_args=ARGS)(model)
    assert told in str(error.value)
    assert repr(net.nodes[-1].name) in str(error.value)


@pytest.mark.parametrize(
    ("inputs", "groups", "told"),
    [
        ({"a": [2, 8], "b": [2]}, "[[a]]", "expected input 'b' to be [2, 8] like 'a'"),
        ({"a": [2, 8], "b": [2, 9]}, "[[a]]", "found [2, 9]"),
        ({"a": [2]}, "", "found none"),
        ({"a": [2, 8]}, "[[c]]", "dynamic_groups names 'c'"),
        ({"a": [2, 8], "unpack_info": [2, 8]}, "", "the name of the lengths"),
        ({"a": [None, 8]}, "", "is not known"),
    ],
)
def test_inputs_that_are_not_of_tokens_are_refused(inputs, groups, told):
    net = Exporter()
    made = [net.add("Tanh", net.input(name, shape)) for name, shape in inputs.items()]
    args = {**ARGS, "dynamic_groups": groups} if groups else ARGS
    with pytest.raises(CompileError) as error:
        get_pass("packed_transformer", pack_args=args)(net.model(dict.fromkeys(made)))
    assert told in str(error.value)


def test_an_output_of_no_sample_is_refused():
    net = Exporter()
    made = net.add("Tanh", net.input("x", [2, 8]))
    other = net.add("Neg", net.weight(3))
    with pytest.raises(CompileError, match="does not come of samples"):
        get_pass("packed_transformer", pack_args=ARGS)(net.model({made: [2, 8], other: [3]}))


def test_lengths_of_strangers_lead_nowhere():
    packed = Compiler.compile(convert(bert(2), pack_args=ARGS))
    runner = runtime.Runner(packed)
    rng = np.random.default_rng(0)
    ids, mask = (np.ones((2, TOKENS), np.int32) for _ in range(2))
    for _ in range(20):
        info = rng.integers(-(2**31), 2**31, (7, 1)).astype(np.int32)
        found = {
            each.name: np.zeros(each.shape, np.float32) for each in runner.get_execute_outputs()
        }
        runner.execute({"ids": ids, "mask": mask, "unpack_info": info}, found)
        assert all(np.isfinite(value).all() for value in found.values())


def newest(batch):
    """Return a layer as transformers 5 writes it: the mask is boolean, and Where selects the scores
    by it."""
    net, width = Exporter(17), 16
    x = net.add("Gather", net.weight(19, width), net.input("ids", [batch, TOKENS], I64))
    x = net.add(
        "Add",
        x,
        net.add("Gather", net.weight(TOKENS, width), net.input("at", [batch, TOKENS], I64)),
    )
    truth = net.add("Cast", net.input("mask", [batch, TOKENS], I64), to=TensorProto.BOOL)
    seen = net.add("Reshape", net.add("Flatten", truth, axis=2), net.integers(batch, 1, 1, TOKENS))
    both = net.add("And", net.constant(np.ones((1, 1, TOKENS, 1), bool), bool), seen)
    lowest = net.constant(np.finfo(np.float32).min)
    x = net.attention(x, batch, TOKENS, 2, 8, net.add("Where", both, net.constant(0.0), lowest))
    return net.model({net.linear(x, width, 2): [batch, TOKENS, 2]})


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"pack_args": ARGS}, {"used_passes": "insert_attention_mask"}])
def test_masks_of_the_newest_exporters_are_known(options):
    samples = sentences([5, 3, 8, 2])
    places = [np.arange(len(each)) for each in samples]
    alone = run(
        convert(newest(4), precision="fp16"),
        ids=pad(samples, 4),
        at=pad(places, 4),
        mask=pad(shown(samples), 4),
    )
    # The first two fill a row, so that they lie as well side by side as end to end.
    feeds = {"ids": lay(samples, 3), "at": lay(places, 3), "mask": lay(numbered(samples), 3)}
    if "pack_args" in options:
        feeds["unpack_info"] = count(samples, 7)
    (found,) = run(convert(newest(3), precision="fp16", **options), **feeds).values()
    (expected,) = alone.values()
    rows = found if "pack_args" in options else [found[0][:5], found[0][5:], found[1], found[2]]
    for row, sample in enumerate(samples):
        seen = slice(len(sample))
        np.testing.assert_allclose(rows[row][seen], expected[row][seen], atol=4e-3)


def test_a_model_without_a_known_mask_is_warned_of(caplog):
    net = Exporter()
    model = net.model({net.add("Mul", net.input("x", [2, 8]), net.constant(2.0)): [2, 8]})
    convert(model, used_passes="insert_attention_mask")
    assert "insert_attention_mask found no mask" in caplog.text


def test_attention_without_a_mask_is_warned_of(caplog):
    net = Exporter()
    x = net.input("x", [2, 8, 4])
    scores = net.add("MatMul", x, net.add("Transpose", x, perm=[0, 2, 1]))
    y = net.add("MatMul", net.add("Softmax", net.add("Mul", scores, net.constant(0.5)), axis=-1), x)
    get_pass("packed_transformer", pack_args=ARGS)(net.model({y: [2, 8, 4]}))
    assert "node 'Softmax_3' takes tokens together without a mask" in caplog.text


def test_attention_with_a_mask_is_not_warned_of(caplog):
    for model in (bert(3), newest(3)):
        get_pass("packed_transformer", pack_args=ARGS)(model)
    assert "without a mask" not in caplog.text
