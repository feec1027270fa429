"""Binding, flattening and comparison of arguments."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

from poptorch.arguments import bind, iter_tensors, rebuild  # noqa: E402
from poptorch.errors import Error  # noqa: E402

Pair = namedtuple("Pair", "left right")


@dataclass
class Boxed:
    held: object
    number: int


def forward(a, b, *c, y=None, u=3, **w):
    pass


def test_defaults_are_filled_in_and_names_say_where_a_tensor_is():
    one = torch.ones(1)
    bound = bind(forward, (2, [one], one), {"m": {"k": one}})
    assert [name for name, _ in bound.iter_tensors()] == ["b[0]", "*c[0]", "m[k]"]
    assert bound.keywords == {"y": None, "u": 3, "m": {"k": one}}


def test_a_missing_parameter_and_a_wrong_one_are_errors():
    with pytest.raises(Error, match="Mandatory parameter b missing"):
        bind(forward, (1,), {})
    with pytest.raises(AssertionError, match="q is not a valid parameter"):
        bind(lambda x: x, (1,), {"q": 1})
    with pytest.raises(AssertionError, match="Too many arguments"):
        bind(lambda x: x, (1, 2), {})


@pytest.mark.parametrize(
    "value",
    [
        (1, [torch.ones(1), None]),
        Pair(torch.ones(1), "x"),
        OrderedDict(b=torch.ones(1), a=torch.zeros(1)),
        Boxed(torch.ones(1), 3),
    ],
)
def test_a_rebuilt_value_has_the_types_and_constants_of_the_first(value):
    tensors = [tensor * 5 for _, tensor in iter_tensors(value)]
    made = rebuild(value, iter(tensors))
    assert type(made) is type(value)
    assert [tensor for _, tensor in iter_tensors(made)] == tensors
    assert rebuild(made, (tensor / 5 for tensor in tensors)) == value


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (torch.ones(1), torch.ones(2), r"Shape mismatch for b: .*\[1\].*\[2\]"),
        (torch.ones(1), torch.ones(1).int(), "Data type mismatch for b: expected torch.float32"),
        (5, 3, "Value mismatch for b: expected 5 but got 3"),
        (torch.ones(1), None, "Type mismatch for b: expected .*Tensor.* but got .*None"),
        ({"x": 1}, {}, "Missing arguments: x."),
        ({}, {"z": 1}, "Unexpected arguments: z."),
        ([1], [1, 2], "Length mismatch for b"),
    ],
)
def test_a_later_call_with_other_arguments_is_an_error(first, second, text):
    bound = bind(forward, (1, first), {})
    with pytest.raises(Error, match=text) as error:
        list(bound.iter_matching(bind(forward, (1, second), {})))
    assert "destroy()" in str(error.value)


def test_tensors_come_in_the_first_calls_order():
    x, y = torch.ones(1), torch.zeros(1)
    bound = bind(forward, (1, {"x": x, "y": y}), {})
    later = bind(forward, (1, {"y": y, "x": x}), {})
    assert list(bound.iter_matching(later)) == [x, y]
