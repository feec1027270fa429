from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from poplar_triton.tfserving.json_answers import print_floats, write_predictions
from poplar_triton.tfserving.json_tensors import Format
from poplar_triton.tfserving.models import Code, ServingError

ROW, COLUMN = Format.ROW, Format.COLUMN
INTEGERS = np.array([[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 0], [1, 2]]], np.int32)
TEXTS = np.array([[b"hello", b"world"], [b"tf", b"serving"]], object)
SEVERAL = {
    "floats": np.float32([[1], [2]]),
    "ints": INTEGERS,
    "one": np.float64([8, 9]),
    "text": TEXTS,
    "text_bytes": TEXTS,
    "yes": np.array([True, False]),
}
BYTES = [[{"b64": "aGVsbG8="}, {"b64": "d29ybGQ="}], [{"b64": "dGY="}, {"b64": "c2VydmluZw=="}]]


def write(outputs, format: Format) -> str:
    return write_predictions(outputs, format).decode()


def refuse(outputs, format: Format) -> str:
    with pytest.raises(ServingError) as caught:
        write_predictions(outputs, format)
    assert caught.value.code is Code.INVALID_ARGUMENT
    return str(caught.value)


def test_one_output_has_no_name():
    assert json.loads(write({"y": INTEGERS}, ROW)) == {"predictions": INTEGERS.tolist()}
    assert json.loads(write({"y": INTEGERS}, COLUMN)) == {"outputs": INTEGERS.tolist()}


def test_an_answer_is_laid_out_as_there():
    assert (
        write({"y": np.float32([2.5, 3, 4.5])}, ROW)
        == '{\n    "predictions": [2.5, 3.0, 4.5\n    ]\n}'
    )
    assert write({"a": np.int8([1]), "b": np.int8([[2, 3]])}, ROW).splitlines() == [
        "{",
        '    "predictions": [',
        "        {",
        '            "a": 1,',
        '            "b": [2, 3]',
        "        }",
        "    ]",
        "}",
    ]


def test_rows_of_several_outputs_are_objects():
    rows = json.loads(write(SEVERAL, ROW))["predictions"]
    assert rows == [
        {
            "floats": [float(row + 1)],
            "ints": INTEGERS[row].tolist(),
            "one": 8.0 + row,
            "text": [text.decode() for text in TEXTS[row]],
            "text_bytes": BYTES[row],
            "yes": row == 0,
        }
        for row in range(2)
    ]


def test_columns_of_several_outputs_are_an_object():
    columns = json.loads(write(SEVERAL, COLUMN))["outputs"]
    assert columns["ints"] == INTEGERS.tolist()
    assert columns["text_bytes"] == BYTES
    assert columns["yes"] == [True, False]


def test_a_column_may_be_a_single_value():
    assert json.loads(write({"y": np.array(7)}, COLUMN)) == {"outputs": 7}


def test_no_rows_are_an_empty_list():
    empty = np.zeros((0, 2), np.int32)
    assert json.loads(write({"y": empty}, ROW)) == {"predictions": []}
    assert json.loads(write({"y": empty, "z": np.zeros((0, 3, 4), np.float32)}, ROW)) == {
        "predictions": []
    }
    assert json.loads(write({"y": np.zeros((2, 0, 3), np.float32)}, ROW)) == {
        "predictions": [[], []]
    }
    assert json.loads(write({"y": np.zeros((2, 0, 3), np.float32)}, COLUMN)) == {
        "outputs": [[], []]
    }


def test_rows_are_as_many_in_every_output():
    assert "Cannot convert empty tensor map to JSON" in refuse({}, ROW)
    assert "Cannot convert empty tensor map to JSON" in refuse({}, COLUMN)
    assert refuse({"y": np.array(1)}, ROW) == "Tensor name: y has no shape information "
    for rows in (1, 2):
        assert refuse({"y": np.zeros((0, 2)), "z": np.zeros((rows, 2))}, ROW) == (
            f"Tensor name: z has inconsistent batch size: {rows} expecting: 0"
        )


def test_names_and_texts_are_escaped():
    name = 'q"\\\n\u2028é'
    text = np.array([name.encode()], object)
    for format, key in ((ROW, "predictions"), (COLUMN, "outputs")):
        found = json.loads(write({name: text, "z": text}, format))[key]
        assert (found[0][name] if format is ROW else found[name][0]) == name


def test_bytes_that_are_no_text_are_base64():
    assert json.loads(write({"y": np.array([b"a", b"\xff\0"], object)}, ROW)) == {
        "predictions": ["a", {"b64": "/wA="}]
    }


def show(dtype: type, *numbers: float) -> list[str]:
    return print_floats(np.array(numbers, dtype))


def test_six_digits_are_printed_where_they_do():
    assert show(np.float32, 9000000, 999999, 0.5, 0.0003, 0.00003, 555557.5) == [
        "9e+06",
        "999999.0",
        "0.5",
        "0.0003",
        "3e-05",
        "555557.5",
    ]
    assert show(
        np.float32, 0.1, 1 / 3, 16777216, 1e-45, 3.4028235e38, 1.5e-20, 100000, 1000000
    ) == [
        "0.1",
        "0.333333343",
        "16777216.0",
        "1.4013e-45",
        "3.40282347e+38",
        "1.5e-20",
        "100000.0",
        "1e+06",
    ]
    assert show(np.float64, 0.1, 1 / 3, 1e-300, 1e22, 123456789, 2.0**60) == [
        "0.1",
        "0.33333333333333331",
        "1e-300",
        "1e+22",
        "123456789.0",
        "1.152921504606847e+18",
    ]
    assert show(np.float16, 0.1, 65504, 1 / 3, 6e-8) == [
        "0.0999756",
        "65504.0",
        "0.333252",
        "5.96046e-08",
    ]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_nan_and_infinities_are_written_by_name(dtype):
    assert show(dtype, np.nan, np.inf, 3, -np.inf, 0, -0.0) == [
        "NaN",
        "Infinity",
        "3.0",
        "-Infinity",
        "0.0",
        "-0.0",
    ]
    assert show(dtype) == []


def spell(value: float, dtype: type, digits: int) -> str:
    """Return one number as WriteDecimal prints it."""
    text = f"{value:g}"
    if dtype(float(text)) != dtype(value):
        text = f"{value:.{digits}g}"
    return text if "." in text or "e" in text else text + ".0"


FINITE = {"allow_nan": False, "allow_infinity": False}
SHORT = st.builds(
    lambda digits, power: float(f"{digits}e{power}"),
    st.integers(-999999, 999999),
    st.integers(-45, 32),
)


@given(
    numbers=st.lists(
        st.floats(width=32, **FINITE) | SHORT.map(lambda value: float(np.float32(value))),
        min_size=1,
    )
)
@example(
    numbers=[
        float(np.float32(value)) for value in (0.3, 1e10, 1e11, 8388608.0, 16777217.0, 1e-17, 1e-18)
    ]
)
def test_float32_is_spelt_as_one_at_a_time(numbers):
    assert show(np.float32, *numbers) == [spell(value, np.float32, 9) for value in numbers]


@given(numbers=st.lists(st.floats(**FINITE) | SHORT, min_size=1))
@example(numbers=[1e16, 1e17, 12345678901234567.0, 4503599627370495.5, 5e-324, 1.7e308])
def test_float64_is_spelt_as_one_at_a_time(numbers):
    assert show(np.float64, *numbers) == [spell(value, np.float64, 17) for value in numbers]


def test_every_half_reads_back():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[~np.isnan(halves)]
    texts = print_floats(halves)
    assert (
        np.array([json.loads(text) for text in texts]).astype(np.float16).tobytes()
        == halves.tobytes()
    )


def test_many_float32_read_back():
    bits = np.random.default_rng(7).integers(0, 1 << 32, 100_000, np.uint64).astype(np.uint32)
    numbers = bits.view(np.float32)
    numbers = numbers[np.isfinite(numbers)]
    read = np.array(json.loads(f"[{','.join(print_floats(numbers))}]"))
    assert read.astype(np.float32).tobytes() == numbers.tobytes()
