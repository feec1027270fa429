"""Tests of TensorInfo, of enumerations and exceptions, and of settings of variables."""

import itertools

import numpy as np
import popart
import pytest
from popart.errors import format_operator, format_shape


@pytest.mark.parametrize(
    ("arguments", "data_type", "shape"),
    [
        (("FLOAT", [2, 3]), "FLOAT", [2, 3]),
        ((np.float16, (4,)), "FLOAT16", [4]),
        ((np.dtype("int64"), []), "INT64", []),
        ((popart.DataType.BOOL, np.array([1, 2])), "BOOL", [1, 2]),
        (("INT8", "(5,6)"), "INT8", [5, 6]),
        ((np.zeros((2, 0), np.uint8),), "UINT8", [2, 0]),
        ((float, [1]), "DOUBLE", [1]),
    ],
)
def test_a_tensor_info_is_made_of_type_and_shape_or_of_an_array(arguments, data_type, shape):
    info = popart.TensorInfo(*arguments)
    assert (info.data_type(), info.shape()) == (data_type, shape)
    assert (info.rank(), info.nelms()) == (len(shape), int(np.prod(shape)))


@pytest.mark.parametrize("arguments", [(1,), ("FLOAT",), ("FLOAT", 3), (np.str_, [1]), ("a", 1, 2)])
def test_other_arguments_of_a_tensor_info_are_a_type_error(arguments):
    with pytest.raises(TypeError, match="Can not create TensorInfo"):
        popart.TensorInfo(*arguments)


@pytest.mark.parametrize("shape", ["2,3", "(2, 3)", "(a)"])
def test_texts_that_are_no_shape_are_refused(shape):
    with pytest.raises(popart.popart_exception, match="shape"):
        popart.TensorInfo("FLOAT", shape)


def test_sizes_are_in_bytes():
    sizes = {name: popart.TensorInfo(name, [3]).nbytes() for name in ("FLOAT16", "INT64", "BOOL")}
    assert sizes == {"FLOAT16": 6, "INT64": 24, "BOOL": 3}


def test_equal_infos_are_equal():
    assert popart.TensorInfo("FLOAT", [2]) == popart.TensorInfo(np.float32, (2,))
    assert popart.TensorInfo("FLOAT", [2]) != popart.TensorInfo("FLOAT16", [2])


def test_members_of_enumerations_convert_to_their_numbers():
    assert int(popart.VirtualGraphMode.Auto) == 2
    assert popart.VirtualGraphMode.Auto != 2
    assert str(popart.DeviceType.IpuModel) == "ipu-model"
    assert str(popart.SyncPattern.ReplicaAndLadder) == "replicaAndLadder"


def test_exceptions_are_caught_by_their_ancestors():
    assert issubclass(popart.popart_runtime_error, popart.popart_exception)
    assert issubclass(popart.poplar_recoverable_runtime_error, popart.poplar_runtime_error)
    assert not issubclass(popart.poplar_exception, popart.popart_exception)
    error = popart.OutOfMemoryException("too large", "report")
    assert isinstance(error, popart.popart_exception)
    assert (error.args[0], error.getSummaryReport()) == ("too large", "report")


def test_operators_and_shapes_have_popart_s_format():
    shown = format_operator("", "MatMul", 9, ["a", ""], ["MatMul:0"])
    assert shown == "Op(ai.onnx.MatMul:9, inputs=[a], outputs=[MatMul:0])"
    assert format_operator("x", "Y", 1, [], [], "name").startswith("Op(name (x.Y:1), ")
    assert format_shape([3, 4]) == "[3 4]"


@pytest.mark.parametrize(
    ("stride", "size"),
    [(s, g) for s, g in itertools.product((1, 2, 3, 4, 6), repeat=2) if 12 % (s * g) == 0],
)
def test_groups_of_replicas_are_a_partition(stride, size):
    grouping = popart.ReplicaGrouping(12, stride, size)
    groups = [grouping.getReplicasAt(group) for group in range(grouping.getNumGroups())]
    assert sorted(itertools.chain(*groups)) == list(range(12))
    for number, group in enumerate(groups):
        for index, replica in enumerate(group):
            assert (grouping.getGroupAt(replica), grouping.getIndexInGroupAt(replica)) == (
                number,
                index,
            )


def test_groups_that_do_not_fit_are_refused():
    with pytest.raises(popart.popart_exception, match="must be divisible by the product"):
        popart.ReplicaGrouping(4, 3, 1)
    with pytest.raises(popart.popart_exception, match="group index is outside the valid range"):
        popart.ReplicaGrouping(4).getReplicaAt(1)


@pytest.mark.parametrize(
    ("kind", "size", "groups"),
    [
        ("All", 0, [[0, 1, 2, 3]]),
        ("Consecutive", 2, [[0, 1], [2, 3]]),
        ("Orthogonal", 2, [[0, 2], [1, 3]]),
        ("Ungrouped", 0, [[0], [1], [2], [3]]),
    ],
)
def test_settings_of_variables_say_which_replicas_share_them(kind, size, groups):
    settings = popart.VariableSettings(popart.CommGroup(popart.CommGroupType[kind], size))
    assert settings.groups(4) == groups
    assert [settings.getGroupRepresentative(i) for i in range(len(groups))] == [
        g[0] for g in groups
    ]
    on_host = settings.shapeOnHost([5], 4)
    assert settings.shapeOnReplica(on_host, 4, "w") == [5]
    grouping = popart.CommGroup(settings.getReplicaGrouping(4))
    assert grouping.type.name == kind


def test_all_replicas_return_a_variable_when_asked():
    settings = popart.VariableSettings(popart.VariableRetrievalMode.AllReplicas)
    assert settings.numReplicasReturningVariable(4) == 4
    assert popart.VariableSettings().numReplicasReturningVariable(4) == 1


def test_a_variable_without_the_axis_of_its_groups_is_refused():
    group = popart.CommGroup(popart.CommGroupType.Consecutive, 2)
    with pytest.raises(popart.popart_exception, match='of Tensor: "w"'):
        popart.VariableSettings(group).shapeOnReplica([3, 5], 4, "w")


def test_operators_whose_pattern_is_disabled_are_refused():
    builder = popart.Builder()
    made = builder.aiOnnx.cosh([builder.addInputTensor("FLOAT", [2])])
    given = {
        "fnModel": builder.getModelProto(),
        "dataFlow": popart.DataFlow(1, [made]),
        "deviceInfo": popart.DeviceManager().createCpuDevice(),
    }
    patterns = popart.Patterns(popart.PatternsLevel.Minimal)
    popart.InferenceSession(**given, patterns=patterns)
    with pytest.raises(popart.popart_exception, match=r"Cosh:9'.* removed by pattern CoshOp$"):
        popart.InferenceSession(**given, patterns=patterns.enablePattern("CoshOp", False))


def test_reserved_prefixes_have_popart_names():
    assert popart.reservedAccl2Prefix() == "Accl2___"
    prefixes = [name for name in popart.__all__ if name.startswith("reserved")]
    assert len(prefixes) == 50
    texts = [getattr(popart, name)() for name in prefixes]
    assert len(set(texts)) == len(texts)
    for name, text in zip(prefixes, texts, strict=True):
        if "Default" in name:
            assert text.endswith("___default___")
            twin = name.replace("Default", "Specific")
            assert getattr(popart, twin)() == text.replace("default", "specific")
