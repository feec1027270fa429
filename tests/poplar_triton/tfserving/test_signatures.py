"""A model's signature as TensorFlow describes it."""

import numpy as np
import pytest
from poplar_triton.tfserving.check import describe_signature
from poplar_triton.tfserving.models import TYPES, Signature, TensorSpec
from tensor_protos import NUMBERS


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_each_tensor_has_its_name_type_and_shape(kind):
    signature = Signature(
        {"a": TensorSpec(kind.dtype, (-1, 2)), "b": TensorSpec(np.dtype(np.int32), ())},
        {"c": TensorSpec(np.dtype(np.float16), (3,))},
        frozenset("b"),
    )
    described = describe_signature(signature)
    (name,) = described.signature_def
    found = described.signature_def[name]
    assert (name, found.method_name) == ("serving_default", "tensorflow/serving/predict")
    infos = {
        name: (info.name, info.dtype, [dim.size for dim in info.tensor_shape.dim])
        for tensors in (found.inputs, found.outputs)
        for name, info in tensors.items()
    }
    assert infos == {
        "a": ("a:0", NUMBERS[kind.name], [-1, 2]),
        "b": ("b:0", 3, []),
        "c": ("c:0", 19, [3]),
    }
    assert found.inputs["b"].HasField("tensor_shape")  # a scalar's is known, and has no axes
    assert list(found.outputs) == ["c"]


def test_the_order_of_names_does_not_matter():
    spec = TensorSpec(np.dtype(np.float32), (-1,))
    one, other = (dict.fromkeys(names, spec) for names in ("abc", "cba"))
    assert describe_signature(Signature(one, one)) == describe_signature(Signature(other, other))
