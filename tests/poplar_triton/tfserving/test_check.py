"""Checks of requests: names, shapes and types, in TensorFlow Serving's own words if it has some."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from poplar_triton.tfserving.check import answer, check_outputs, describe_array, fit
from poplar_triton.tfserving.models import Code, ModelSpec, ServingError, Signature, TensorSpec
from rest_servers import FLOATS, FakeModels, FakeServable
from serving_calls import PlayedCall

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int32)
IDS, MASK = TensorSpec(INT, (-1, 2)), TensorSpec(FLOAT, (-1, 1))
SIGNATURE = Signature({"ids": IDS, "mask": MASK}, {"ids": IDS, "mask": MASK}, frozenset({"mask"}))
MODELS = FakeModels(
    {"m": [FakeServable("m", 7, SIGNATURE), FakeServable("m", 3, SIGNATURE)]}, {"old": 3}
)
ONE = np.array([[1, 2]], np.int32)


def ask(inputs, outputs=(), spec=None):
    spec, call = spec or ModelSpec("m"), PlayedCall()
    servable = MODELS.find(spec, call)
    return servable, answer(servable, spec.signature, inputs, describe_array, outputs, call)


def fit_array(array, spec):
    return fit("x", spec, array.dtype, array.shape, lambda _: array)


@pytest.mark.parametrize(
    ("spec", "version"),
    [
        (ModelSpec("m"), 7),
        (ModelSpec("m", version=3), 3),
        (ModelSpec("m", label="old"), 3),
        (ModelSpec("m", signature="serving_default"), 7),
    ],
)
def test_a_request_goes_to_the_version_that_it_names(spec, version):
    servable, outputs = ask({"ids": ONE}, spec=spec)
    assert servable.version == version
    np.testing.assert_array_equal(outputs["ids"], ONE)


def test_another_signature_is_refused_with_the_one_there_is():
    with pytest.raises(ServingError) as refused:
        ask({"ids": ONE}, spec=ModelSpec("m", signature="tune"))
    assert refused.value.code is Code.FAILED_PRECONDITION
    assert str(refused.value) == (
        'Serving signature key "tune" not found. Model \'m\' has "serving_default" only.'
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), "0!=2 len({}) != len({ids,mask}). Sent extra: {}. Missing but required: {ids}."),
        (
            ("mask",),
            "1!=2 len({mask}) != len({ids,mask}). Sent extra: {}. Missing but required: {ids}.",
        ),
        (
            ("ids", "b", "a"),
            "3!=2 len({a,b,ids}) != len({ids,mask}). Sent extra: {a,b}. Missing but required: {}.",
        ),
    ],
)
def test_inputs_that_are_not_the_models_are_named(given, words):
    with pytest.raises(
        ServingError, match=re.escape(f"input size does not match signature: {words}")
    ) as refused:
        ask(dict.fromkeys(given, ONE))
    assert refused.value.code is Code.INVALID_ARGUMENT


def test_optional_inputs_may_come_or_not():
    assert ask({"ids": ONE})[1].keys() == {"ids"}
    assert ask({"ids": ONE, "mask": np.zeros((1, 1), FLOAT)})[1].keys() == {"ids", "mask"}


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (
            ["z"],
            "output tensor alias not found in signature: z Outputs expected to be in the set "
            "{ids,mask}.",
        ),
        (
            ["ids", ""],
            "output tensor alias not found in signature:  Outputs expected to be in the set",
        ),
        (["ids", "mask", "ids"], "duplicate output tensor alias: ids"),
    ],
)
def test_outputs_that_the_model_does_not_have_or_are_asked_for_twice_are_refused(outputs, words):
    with pytest.raises(ServingError, match=re.escape(words)) as refused:
        ask({"ids": ONE}, outputs)
    assert refused.value.code is Code.INVALID_ARGUMENT


def test_a_million_outputs_are_refused_at_the_first_that_comes_again():
    class Counted(list):
        looked = 0

        def __getitem__(self, place):
            self.looked += 1
            return super().__getitem__(place)

    names = Counted(["ids", "mask"] * 500_000)
    with pytest.raises(ServingError, match="duplicate output tensor alias: ids"):
        check_outputs(SIGNATURE, names)
    assert names.looked <= 3


def test_single_values_may_come_without_the_axis_that_triton_gives_them():
    assert fit_array(np.zeros(5, FLOAT), MASK).shape == (5, 1)
    assert fit_array(np.zeros((5, 1), FLOAT), MASK).shape == (5, 1)
    assert fit_array(np.zeros(0, FLOAT), MASK).shape == (0, 1)


@pytest.mark.parametrize(
    ("shape", "wanted", "found"),
    [
        ((), (-1, 1), "expected shape [-1, 1] (-1: any size), found []"),
        ((5, 2), (-1, 1), "expected shape [-1, 1] (-1: any size), found [5, 2]"),
        ((5, 1, 1), (-1, 1), "found [5, 1, 1]"),
        ((5,), (-1, 2), "expected shape [-1, 2] (-1: any size), found [5]"),
        ((2,), (2, 1), "expected shape [2, 1], found [2]"),
        ((3, 2), (2, 3), "expected shape [2, 3], found [3, 2]"),
        ((1,), (), "expected shape [], found [1]"),
    ],
)
def test_another_shape_is_refused(shape, wanted, found):
    with pytest.raises(ServingError, match=re.escape(found)) as refused:
        fit_array(np.zeros(shape, FLOAT), TensorSpec(FLOAT, wanted))
    assert refused.value.code is Code.INVALID_ARGUMENT
    assert str(refused.value).startswith("input 'x': ")


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=8))
def test_numbers_of_64_bits_that_fit_become_the_models_32(values):
    fitted = fit_array(np.array(values, np.int64)[:, None], TensorSpec(INT, (-1, 1)))
    assert fitted.dtype == INT
    assert fitted.ravel().tolist() == values


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**32, 2**63 - 1, -(2**63)])
def test_a_number_that_does_not_fit_is_an_error_that_names_its_row(number):
    words = f"expected numbers that fit DT_INT32, the model's type; found {number}"
    with pytest.raises(ServingError, match=re.escape(f"input 'x', row 2: {words}")) as refused:
        fit_array(np.array([[0, 1], [2, 3], [4, number]], np.int64), IDS)
    assert refused.value.code is Code.INVALID_ARGUMENT
    with pytest.raises(ServingError, match=re.escape(f"input 'x', the value: {words}")):
        fit_array(np.array(number, np.int64), TensorSpec(INT, ()))


@pytest.mark.parametrize(
    ("given", "wanted", "words"),
    [
        (
            np.float64,
            np.float32,
            "expected DT_FLOAT, found DT_DOUBLE; convert it to DT_FLOAT before sending",
        ),
        (np.float32, np.int32, "expected DT_INT32, found DT_FLOAT"),
        (np.int32, np.int64, "expected DT_INT64, found DT_INT32"),
        (np.int64, np.int16, "expected DT_INT16, found DT_INT64"),
        (np.uint64, np.int32, "expected DT_INT32, found DT_UINT64"),
        (np.int64, np.uint32, "expected DT_UINT32, found DT_INT64"),
        (np.float32, np.float16, "expected DT_HALF, found DT_FLOAT"),
        (np.uint8, np.bool_, "expected DT_BOOL, found DT_UINT8"),
        (np.object_, np.float32, "expected DT_FLOAT, found DT_STRING"),
        (np.complex64, np.float32, "expected DT_FLOAT, found complex64"),
    ],
)
def test_another_type_is_refused_by_both_names(given, wanted, words):
    with pytest.raises(ServingError, match=re.escape(words)) as refused:
        fit_array(np.zeros(3, given), TensorSpec(np.dtype(wanted), (-1,)))
    assert refused.value.code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("dtype", "shape"), [(FLOAT, (2**40, 3)), (np.dtype(np.float64), (2**40, 2)), (INT, (2,) * 32)]
)
def test_values_are_not_read_of_what_does_not_fit(dtype, shape):
    reads = []
    with pytest.raises(ServingError):
        fit("x", TensorSpec(FLOAT, (-1, 2)), dtype, shape, reads.append)
    assert reads == []


def test_an_error_of_a_model_is_passed_on():
    said = ServingError(Code.ABORTED, "not now")
    servable = FakeServable("m", 1, SIGNATURE, error=said)
    with pytest.raises(ServingError) as raised:
        answer(servable, "", {"ids": ONE}, describe_array, [], PlayedCall())
    assert raised.value is said


def test_names_of_strangers_are_cut_and_few_in_errors():
    names = {f"{number:06}" + "n" * 10_000: np.zeros(1, np.float32) for number in range(1000)}
    with pytest.raises(ServingError) as refusal:
        answer(FakeServable("m", 1, FLOATS), "", names, describe_array, (), PlayedCall())
    assert len(str(refusal.value)) < 40_000
    assert "and 950 more" in str(refusal.value)
    for signature, outputs in (("s" * 10**6, ()), ("", ("o" * 10**6,))):
        with pytest.raises(ServingError) as refusal:
            answer(
                FakeServable("m", 1, FLOATS),
                signature,
                {"x": np.zeros(1, np.float32)},
                describe_array,
                outputs,
                PlayedCall(),
            )
        assert len(str(refusal.value)) < 1000
