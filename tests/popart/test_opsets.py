"""Tests of the methods that are generated from tables, and of how they take arguments."""

import make_popart_stubs
import numpy as np
import onnx
import popart
import pytest
from popart.builder.opsets import VERSIONS, find_methods, find_schemas, list_parameters

COUNTS = dict(zip(VERSIONS, (95, 102, 104, 123, 137, 156), strict=True))
"""Number of methods of each opset in PopART 3.4."""


@pytest.mark.parametrize("version", VERSIONS)
def test_each_opset_has_popart_s_methods(version):
    assert len(find_methods(version)) == COUNTS[version]


def test_the_stubs_are_those_of_the_tables():
    assert make_popart_stubs.FILE.read_text() == make_popart_stubs.make_text()


@pytest.mark.parametrize(
    ("version", "name", "names"),
    [
        (6, "add", "args axis broadcast debugContext"),
        (10, "add", "args debugContext"),
        (10, "conv", "args dilations group kernel_shape pads strides debugContext"),
        (
            10,
            "maxpool",
            "args num_outputs kernel_shape ceil_mode dilations pads storage_order strides debugContext",
        ),
        (10, "randomnormal", "shape dtype mean scale seed debugContext"),
        (10, "cast", "args to debugContext"),
        (11, "constant", "value is_value_sparse debugContext"),
        (8, "scan", "args num_outputs body num_scan_inputs directions debugContext"),
        (9, "logical_if", "args num_outputs else_branch then_branch name"),
        (11, "scatter", "args axis debugContext"),
    ],
)
def test_parameters_have_popart_s_order(version, name, names):
    assert [each.name for each in list_parameters(find_methods(version)[name])] == names.split()


@pytest.mark.parametrize("version", VERSIONS)
def test_operators_are_the_newest_of_their_opset(version):
    for name, schema in find_schemas(version).items():
        newest = onnx.defs.get_schema(name, version)
        if newest.deprecated or newest.support_level != newest.SupportType.COMMON:
            continue
        assert schema.since_version == newest.since_version


@pytest.mark.parametrize("sizes", [[1, 1], (1, 1), np.array([1, 1]), [np.int32(1), True]])
def test_lists_of_ints_can_be_any_sequence(sizes):
    builder = popart.Builder()
    image = builder.addInputTensor("FLOAT", [1, 1, 4, 4])
    pooled = builder.aiOnnx.averagepool([image], sizes)
    assert builder.getInt64VectorNodeAttribute("kernel_shape", [pooled]) == [1, 1]


@pytest.mark.parametrize(
    "arguments",
    [(), (0,), ("input",), (["input"], 1.5), (["input"], 0, 1, "", "more"), ({"input"},)],
)
def test_other_arguments_are_a_type_error_that_lists_the_signature(arguments):
    builder = popart.Builder()
    builder.addInputTensor("FLOAT", [2])
    with pytest.raises(TypeError) as caught:
        builder.aiOnnx.argmax(*arguments)
    text = str(caught.value)
    assert text.startswith("argmax(): incompatible function arguments. The following argument")
    assert "1. (args: Sequence[str], axis: int = 0, keepdims: int = 1, debugContext" in text


@pytest.mark.parametrize("names", [{"axes": 1}, {"args": ["input"]}])
def test_unknown_and_repeated_names_are_a_type_error(names):
    builder = popart.Builder()
    builder.addInputTensor("FLOAT", [2])
    with pytest.raises(TypeError, match="incompatible function arguments"):
        builder.aiOnnx.argmax(["input"], **names)


def test_methods_of_several_signatures_list_all():
    with pytest.raises(TypeError, match=r"(?s)1\. .*4\. \(dataType: str, shape"):
        popart.Builder().addInputTensor(5)


def test_attributes_that_are_left_out_are_not_written():
    builder = popart.Builder()
    builder.addInputTensor("FLOAT", [2, 4, 4])
    pooled, kept = builder.aiOnnx.averagepool(["input"], [2]), "kernel_shape count_include_pad"
    written = set(builder.getAllNodeAttributeNames([pooled])) - {"__debug_info_id"}
    assert written == {*kept.split(), "ceil_mode"}
    summed, empty = builder.aiOnnx.reducesum(["input"]), builder.aiOnnx.reducesum(["input"], [])
    assert not builder.nodeHasAttribute("axes", [summed])
    assert builder.getInt64VectorNodeAttribute("axes", [empty]) == []


def test_types_to_cast_to_are_names():
    builder = popart.Builder()
    builder.addInputTensor("FLOAT", [2])
    half = builder.aiOnnx.cast(["input"], "FLOAT16")
    assert builder.getTensorDtypeString(half) == "float16"
    with pytest.raises(popart.popart_exception, match="no ONNX type HALF, they're "):
        builder.aiOnnx.cast(["input"], "HALF")


def test_constants_that_say_they_are_sparse_are_refused():
    with pytest.raises(popart.popart_exception, match="is_value_sparse=True is not supported"):
        popart.Builder().aiOnnxOpset11.constant(np.ones(2, np.float32), True)


def test_supported_and_unsupported_operators_are_apart():
    supported = set(popart.getSupportedOperations(False))
    assert popart.OperatorIdentifier("ai.onnx", "MatMul", 9) in supported
    assert popart.OperatorIdentifier("ai.graphcore", "Subsample", 1) in supported
    for version in VERSIONS:
        unsupported = popart.getUnsupportedOperations(version)
        assert not supported & set(unsupported)
        assert all(each.version <= version for each in unsupported)
    assert "StringNormalizer" in {each.type for each in popart.getUnsupportedOperations(10)}


def test_operators_of_the_compiler_are_listed_on_request():
    offered = set(popart.getSupportedOperations(False))
    assert offered < set(popart.getSupportedOperations(True))


def test_definitions_tell_the_types_of_inputs():
    definitions = popart.getSupportedOperationsDefinition(False)
    gather = definitions[popart.OperatorIdentifier("ai.onnx", "Gather", 1)]
    assert [each.name for each in gather.inputs] == ["data", "indices"]
    assert gather.inputs[1].supportedTensors == [popart.DataType.INT32, popart.DataType.INT64]
    assert set(gather.attributes) == {"axis"}
