from __future__ import annotations

import base64
import json
from contextlib import suppress

import numpy as np
import pytest
from example_counts import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from poplar_triton.tfserving.json_answers import write_predictions
from poplar_triton.tfserving.json_tensors import MAX_LISTS, Format, parse_predict
from poplar_triton.tfserving.models import Code, ServingError, Signature, TensorSpec

TYPES = {
    "bool": np.bool_,
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "string": np.object_,
}
DEEP = 100_000


def sign(optional: tuple[str, ...] = (), **inputs: str) -> Signature:
    specs = {name: TensorSpec(np.dtype(TYPES[kind]), (-1,)) for name, kind in inputs.items()}
    return Signature(specs, {}, frozenset(optional))


def read(text: str | bytes, optional: tuple[str, ...] = (), **inputs: str):
    body = text if isinstance(text, bytes) else text.encode()
    return parse_predict(body, sign(optional, **(inputs or {"x": "int32"})))


def read_one(text: str | bytes, kind: str) -> np.ndarray:
    _, name, inputs = read(text, x=kind)
    assert name == ""
    return inputs["x"]


def read_rows(values: str, kind: str) -> np.ndarray:
    return read_one(f'{{"instances": {values}}}', kind)


def refuse(text: str | bytes, optional: tuple[str, ...] = (), **inputs: str) -> str:
    with pytest.raises(ServingError) as caught:
        read(text, optional, **inputs)
    assert caught.value.code is Code.INVALID_ARGUMENT
    message = str(caught.value)
    assert len(message) < 2000
    return message


def check(found: np.ndarray, expected, kind: str) -> None:
    wanted = np.array(expected, TYPES[kind])
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.tolist() == wanted.tolist()


def test_rows_of_one_input_need_no_name():
    format, name, inputs = read('{"instances": [[1,2],[3,4],[5,6]]}')
    assert (format, name) == (Format.ROW, "")
    check(inputs["x"], [[1, 2], [3, 4], [5, 6]], "int32")


def test_rows_may_have_names():
    _, _, inputs = read(
        """{"instances": [
            {"ints": [[1,2],[3,4]], "texts": ["foo", "bar"], "floats": [1.0, NaN], "one": 1},
            {"one": 2, "floats": [2, -Infinity], "texts": ["baz", {"b64": "AP8="}], "ints": [[7,8],[9,0]]}
        ]}""",
        ints="int32",
        texts="string",
        floats="float32",
        one="float64",
    )
    check(inputs["ints"], [[[1, 2], [3, 4]], [[7, 8], [9, 0]]], "int32")
    check(inputs["texts"], [[b"foo", b"bar"], [b"baz", b"\0\xff"]], "string")
    check(inputs["one"], [1, 2], "float64")
    np.testing.assert_array_equal(inputs["floats"], np.float32([[1, np.nan], [2, -np.inf]]))


def test_a_column_of_one_input_needs_no_name():
    for text in ('{"inputs": [[[1,2],[3,4]]]}', '{"inputs": {"x": [[[1,2],[3,4]]]}}'):
        format, _, inputs = read(text)
        assert format is Format.COLUMN
        check(inputs["x"], [[[1, 2], [3, 4]]], "int32")


def test_columns_need_not_be_equally_long():
    _, _, inputs = read(
        '{"inputs": {"ints": [[1], [2]], "texts": ["a", "b", "c"], "one": {"b64": "aGVsbG8="}, '
        '"more": 7}}',
        ints="uint8",
        texts="string",
        one="string",
    )
    check(inputs["ints"], [[1], [2]], "uint8")
    check(inputs["texts"], [b"a", b"b", b"c"], "string")
    check(inputs["one"], b"hello", "string")
    assert list(inputs) == ["ints", "texts", "one"]


def test_unknown_keys_of_a_request_are_ignored():
    deep = "[" * 500 + "]" * 500
    text = f'\ufeff \r\n\t{{"nested": {deep}, "instances": [1], "parameters": {{}}}} what follows'
    check(read_one(text, "int32"), [1], "int32")


def test_the_default_signature_may_be_named():
    assert read('{"signature_name": "serving_default", "instances": [1]}')[1] == "serving_default"
    assert read('{"signature_name": "", "instances": [1]}')[1] == ""
    assert refuse('{"signature_name": "other", "instances": [1]}') == (
        'Serving signature name: "other" not found in signature def'
    )


@pytest.mark.parametrize("value", ["5", "null", "[]", '{"a": 1}', "[" * 800 + "]" * 800])
def test_names_of_signatures_are_strings(value):
    assert "'signature_name' key must be a string value." in refuse(
        f'{{"signature_name": {value}, "instances": [1]}}'
    )


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_floats_may_be_written_as_whole_numbers(kind):
    check(
        read_rows("[1, 2.0, 3, 4e0, 5.003, 0.007, 0.0, -0.0]", kind),
        [1, 2, 3, 4, 5.003, 0.007, 0, 0],
        kind,
    )


def test_floats_are_rounded():
    check(read_rows("[1435774380, 1435774380.0]", "float32"), [1435774336, 1435774336], "float32")
    check(read_rows("[18446744073709551616, 1e30]", "float32"), [2**64, 1e30], "float32")
    check(read_rows("[2049, 2051]", "float16"), [2048, 2052], "float16")


def test_floats_that_their_type_has_no_place_for_are_infinite_or_zero():
    for kind, large, small in (("float32", "1.7e308", "2e-308"), ("float16", "65520", "1e-9")):
        check(read_rows(f"[{large}, -{large}, {small}]", kind), [np.inf, -np.inf, 0], kind)
        assert np.signbit(read_rows(f"[-{small}]", kind)[0])


@pytest.mark.parametrize(
    "number", ["1e309", "-1e400", "1" + "0" * 309, "-1" + "0" * 4000, "1" * 5000, "9e99999999"]
)
def test_numbers_that_no_double_has_are_refused(number):
    for text in (f"[{number}]", f"[Infinity, {number}]"):
        assert "Number too big to be stored in double." in refuse(
            f'{{"instances": {text}}}', x="float32"
        )


def test_infinity_and_nan_have_all_their_names():
    values = read_rows("[NaN, Infinity, -Infinity, Inf, -Inf, -NaN, 1]", "float32")
    np.testing.assert_array_equal(values, [np.nan, np.inf, -np.inf, np.inf, -np.inf, np.nan, 1])
    text = r'{"texts": ["Inf", "\"-NaN", "\\", "-Inf\\\"Inf"], "inputs": Inf}'
    assert read_one(text, "float32") == np.inf
    _, _, inputs = read(
        r'{"inputs": {"a": ["\"Inf, -NaN", "\\"], "x": [Inf]}}', a="string", x="float32"
    )
    check(inputs["a"], [b'"Inf, -NaN', b"\\"], "string")
    for name in ("Infi", "-Infinit", "nan", "inf", "+Inf", "--Inf", "-"):
        assert "JSON Parse error: " in refuse(f'{{"instances": [{name}]}}', x="float32")


@pytest.mark.parametrize("kind", [kind for kind in TYPES if "int" in kind])
def test_whole_numbers_have_to_fit(kind):
    limits = np.iinfo(TYPES[kind])
    check(read_rows(f"[{limits.min}, 0, {limits.max}]", kind), [limits.min, 0, limits.max], kind)
    for number in (limits.min - 1, limits.max + 1, 10**300, -(10**300)):
        message = refuse(f'{{"instances": [[1], [2], [{number}]]}}', x=kind)
        assert message.startswith(
            "Failed to process element: 2 of 'instances' list. Error: INVALID_ARGUMENT: "
        )
        assert (
            f"does not fit {kind}: expected a whole number from {limits.min} to {limits.max}"
            in message
        )
        message = refuse(f'{{"inputs": [[1, 1], [2, {number}]]}}', x=kind)
        assert message.endswith("(input 'x', row 1)")


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("int32", "1.0", "JSON Value: 1.0 Type: Number is not of expected type: int32"),
        ("int32", "1e2", "JSON Value: 100.0 Type: Number is not of expected type: int32"),
        ("int32", "NaN", "JSON Value: NaN Type: Number is not of expected type: int32"),
        ("int64", "true", "JSON Value: true Type: True is not of expected type: int64"),
        ("float32", "false", "JSON Value: false Type: False is not of expected type: float"),
        ("float32", '"1"', 'JSON Value: "1" Type: String is not of expected type: float'),
        ("float64", "null", "JSON Value: null Type: Null is not of expected type: double"),
        ("float16", "{}", "JSON Value: {} Type: Object is not of expected type: half"),
        ("bool", "1", "JSON Value: 1 Type: Number is not of expected type: bool"),
        ("string", "1", "JSON Value: 1 Type: Number is not of expected type: string"),
        ("string", "true", "JSON Value: true Type: True is not of expected type: string"),
        (
            "uint8",
            '{"b64": "AA=="}',
            'JSON Value: {"b64": "AA=="} Type: Object is not of expected type: uint8',
        ),
    ],
)
def test_values_have_the_types_of_the_signature(kind, value, shown):
    fine = {"bool": "true", "string": '"a"'}.get(kind, "1")
    text = f'{{"instances": [[{fine}], [{value}]]}}'
    assert refuse(text, x=kind) == (
        f"Failed to process element: 1 of 'instances' list. Error: INVALID_ARGUMENT: {shown}"
    )
    assert refuse(f'{{"inputs": [{fine}, {value}]}}', x=kind) == f"{shown} (input 'x', row 1)"


def test_strings_are_utf_8():
    values = read_rows(r'["", "h\u00e9", "\ud83d\ude00", "a\u0000", {"b64": ""}]', "string")
    check(values, [b"", "hé".encode(), "😀".encode(), b"a\0", b""], "string")


@pytest.mark.parametrize("text", ["aGVsbG8=", "aGVsbG8", "aGVs\\nbG8=", " aGVs bG8 = "])
def test_base64_may_lack_its_padding_and_have_spaces(text):
    check(read_rows(f'[[{{"b64": "{text}"}}]]', "string"), [[b"hello"]], "string")


@pytest.mark.parametrize(
    "text", ["a", "aGVsbG8==", "aGV=sbG8=", "-_-_", "aGVsbG8=é", "=", "a\u2028b="]
)
def test_invalid_base64_is_rejected(text):
    assert "Unable to base64 decode" in refuse(
        json.dumps({"instances": [{"b64": text}]}), x="string"
    )


@pytest.mark.parametrize(
    "value", ['{"b64": 1}', '{"b64": "AA==", "c": 1}', "{}", '{"B64": "AA=="}']
)
def test_bytes_have_one_key(value):
    assert "not formatted correctly for base64 data" in refuse(
        f'{{"instances": [[{value}]]}}', x="string"
    )


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ("[[1,2],[3,4],[5,6,7]]", "Expecting tensor size: 2 but got: 3"),
        ("[[1,2],[3,4],[]]", "Expecting tensor size: 2 but got: 0"),
        ("[[1,2],[3,4],[[5,6]]]", "Expecting shape [2] but got: [1,2]"),
        ("[1,2,[3]]", "Expecting shape [] but got: [1]"),
        ("[[3],[3],4]", "Expecting shape [1] but got: []"),
        (
            "[[[1],[2]],[[1],[2]],[[1],[2,3]]]",
            "Encountered list at unexpected size: 2 at level: 1 expected size: 1",
        ),
        ("[[1,2],[3,4],[5,[6]]]", "Encountered list at unexpected level: 1 expected < 1"),
        (
            "[[[1],[2]],[[1],[2]],[[1],2]]",
            "JSON Value: 2 found at incorrect level: 2 in the JSON DOM.",
        ),
    ],
)
def test_rows_have_one_shape(rows, error):
    where = "Failed to process element: 2 of 'instances' list. Error: INVALID_ARGUMENT: "
    assert refuse(f'{{"instances": {rows}}}').startswith(where + error)
    named = json.dumps([{"x": row} for row in json.loads(rows)])
    where = "Failed to process element: 2 key: x of 'instances' list. Error: INVALID_ARGUMENT: "
    assert refuse(f'{{"instances": {named}}}').startswith(where + error)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("[[1,2],[3]]", "Encountered list at unexpected size: 1 at level: 1 expected size: 2"),
        (
            "[[1,2],3]",
            "JSON Value: 3 found at incorrect level: 2 in the JSON DOM. Expected at level: 2",
        ),
        ("[1,[2]]", "Encountered list at unexpected level: 1 expected < 1"),
    ],
)
def test_columns_are_not_ragged(value, error):
    assert refuse(f'{{"inputs": {value}}}') == f"{error} (input 'x', row 1)"


def test_lists_may_be_empty_inside():
    check(read_rows("[[], []]", "int32"), [[], []], "int32")
    check(read_one('{"inputs": []}', "string"), [], "string")
    assert read_one('{"inputs": [[[], []]]}', "bool").shape == (1, 2, 0)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "JSON Parse error: The document is empty"),
        (" \n", "JSON Parse error: The document is empty. at offset: 2"),
        ("instances = [1, 2]", "JSON Parse error: Invalid value. at offset: 0"),
        ('{"é": [1, }', "JSON Parse error: Invalid value. at offset: "),
        ("{1: 2}", "JSON Parse error: Missing a name for object member. at offset: 1"),
        (
            '{"a" 1}',
            "JSON Parse error: Missing a colon after a name of object member. at offset: 5",
        ),
        ('{"a": 1', "JSON Parse error: Missing a comma or a closing bracket. at offset: 7"),
        ('{"a": "\\x"}', "JSON Parse error: Invalid escape character in string. at offset: "),
        (
            '{"a": "\\u12"}',
            "JSON Parse error: Incorrect hex digit after \\u escape in string. at offset: ",
        ),
        ('{"a": "', "JSON Parse error: Missing a closing quotation mark in string. at offset: 6"),
        ('{"a": "\n"}', "JSON Parse error: Invalid encoding in string. at offset: 7"),
        (b'{"a": "\xff"}', "JSON Parse error: Invalid encoding in string. at offset: 7"),
        (b'{"a": "\xed\xa0\x80"}', "JSON Parse error: Invalid encoding in string. at offset: 7"),
        (
            '{"instances": ["\\ud800"]}',
            "JSON Parse error: The surrogate pair in string is invalid.",
        ),
        (
            '{"\\uDFFF": 1, "instances": [1]}',
            "JSON Parse error: The surrogate pair in string is invalid.",
        ),
        ("[1, 2]", "JSON Value: [1, 2] Is not object"),
        ("null", "JSON Value: null Is not object"),
        ("NaN", "JSON Value: NaN Is not object"),
        ("{}", "Missing 'inputs' or 'instances' key"),
        ('{"instances": []}', "JSON Value: {\"instances\": []} No values in 'instances' array"),
        (
            '{"instances": 1}',
            "JSON Value: {\"instances\": 1} Expecting 'instances' to be an list/array",
        ),
        ('{"instances": {"x": 1}}', "Expecting 'instances' to be an list/array"),
        (
            '{"instances": [1], "inputs": [1]}',
            "Not formatted correctly expecting only one of 'inputs' or 'instances'",
        ),
        ('{"instances": [1], "instances": [2]}', "found instances twice"),
        ('{"instances": [{"x": 1, "x": 2}]}', "found x twice"),
        ('{"instances": [{"x": 1}, [1]]}', "Expecting object but got list at item 1 of input list"),
        (
            '{"instances": [1, {"x": 1}]}',
            "Expecting value/list but got object at item 1 of input list",
        ),
        (
            '{"instances": [{"y": 1}]}',
            "Error: INVALID_ARGUMENT: JSON object: does not have named input: y",
        ),
        (
            '{"instances": [{"x": 1}, {}]}',
            "element: 1 of 'instances' list. JSON object: {} keys must be equal to: x",
        ),
        ('{"inputs": {"y": 1}}', "Missing named input: x in 'inputs' object."),
        ('{"inputs": {}}', "Missing named input: x in 'inputs' object."),
        (
            '{"inputs": null}',
            "JSON Value: null Type: Null is not of expected type: int32 (input 'x', row 0)",
        ),
    ],
)
def test_invalid_requests_are_rejected(text, error):
    assert error in refuse(text)


def test_several_inputs_need_names():
    for value in ("[[1], [2]]", '[{"b64": "AA=="}]'):
        assert "instances is a plain list, but expecting list of objects" in refuse(
            f'{{"instances": {value}}}', a="string", b="string"
        )
    for value in ("[1]", "1", '{"b64": "AA=="}'):
        assert "inputs is a plain value/list, but expecting an object" in refuse(
            f'{{"inputs": {value}}}', a="string", b="string"
        )
    assert "keys must be equal to: a,b" in refuse(
        '{"instances": [{"a": "1"}]}', b="string", a="string"
    )
    assert "Missing named input: b" in refuse('{"inputs": {"a": "1"}}', a="string", b="string")


def test_inputs_may_be_optional():
    def read_optional(text: str):
        return {
            name: array.tolist()
            for name, array in read(text, ("b",), a="int32", b="int32")[2].items()
        }

    assert read_optional('{"instances": [{"a": 1}, {"a": 2}]}') == {"a": [1, 2]}
    assert read_optional('{"instances": [{"a": 1, "b": 3}]}') == {"a": [1], "b": [3]}
    assert read_optional('{"inputs": {"a": [1]}}') == {"a": [1]}
    for text in ('{"instances": [{"a": 1}, {"a": 2, "b": 3}]}', '{"inputs": {"a": [1], "B": [2]}}'):
        assert "does not have named input: " in refuse(text, ("b",), a="int32", b="int32")
    assert "keys must be equal to: a,b" in refuse(
        '{"instances": [{"a": 1, "b": 2}, {"a": 2}]}', ("b",), a="int32", b="int32"
    )


def test_a_model_has_inputs():
    with pytest.raises(ServingError, match="Failed to get input map for signature: DEFAULT"):
        parse_predict(b'{"instances": [1]}', Signature({}, {}))


@pytest.mark.parametrize(
    "text",
    [
        "[" * DEEP,
        '{"a":' * DEEP,
        '{"instances":' + "[" * DEEP + "]" * DEEP + "}",
        '{"nested":' + "[" * DEEP + "]" * DEEP + ', "instances": [1]}',
    ],
)
def test_too_deep_nesting_is_rejected(text):
    assert "nested too deep" in refuse(text)


@pytest.mark.parametrize("depth", [33, 65, 900])
def test_tensors_have_so_many_dimensions(depth):
    value = "[" * depth + "1" + "]" * depth
    assert f"expected at most 32 dimensions, found {depth}" in refuse(f'{{"inputs": {value}}}')
    assert read_one('{"inputs": ' + "[" * 32 + "1" + "]" * 32 + "}", "int32").ndim == 32
    assert "expected at most 32 dimensions" in refuse(f'{{"instances": [{value}]}}')


def test_requests_have_so_many_lists():
    assert f"at most {MAX_LISTS} lists" in refuse('{"instances": [' + "[]," * MAX_LISTS + "[]]}")


def test_names_in_errors_are_short_and_in_one_line():
    for name in ("y" * 10**6, "\n\x1b[2J", "\u202e"):
        message = refuse(json.dumps({"instances": [{name: 1}]}))
        assert message.isprintable()
    message = refuse(json.dumps({"instances": ["z" * 10**6]}))
    assert len(message) < 500


def same(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if expected.dtype.kind == "f":
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(found), nan)
        assert found[~nan].tobytes() == expected[~nan].tobytes()
    else:
        assert found.tolist() == expected.tolist()


def read_back(body: bytes, format: Format, kind: str, name: str = "x") -> np.ndarray:
    keys = {Format.ROW: (b"predictions", b"instances"), Format.COLUMN: (b"outputs", b"inputs")}
    request = body.replace(*keys[format], 1)
    return parse_predict(request, sign(**{name: kind}))[2][name]


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != "string"])
@given(data=st.data(), format=st.sampled_from(Format))
def test_written_predictions_read_back_bit_for_bit(kind, data, format):
    shape = data.draw(arrays.array_shapes(min_dims=1, max_dims=4, max_side=4))
    array = data.draw(arrays.arrays(TYPES[kind], shape))
    same(read_back(write_predictions({"y": array}, format), format, kind), array)


@given(
    values=st.lists(st.binary(max_size=20), min_size=1),
    name=st.sampled_from(["x", "x_bytes"]),
    format=st.sampled_from(Format),
)
def test_strings_read_back(values, name, format):
    array = np.empty(len(values), object)
    array[:] = values
    body = write_predictions({name: array}, format)
    json.loads(body)
    same(read_back(body, format, "string", name), array)


@settings(max_examples=examples(500))
@given(text=st.one_of(st.binary(), st.text().map(str.encode)), kind=st.sampled_from(list(TYPES)))
@example(text=b"\xef\xbb\xbf", kind="string")
def test_anything_is_read_or_refused(text, kind):
    for body in (text, b'{"instances": [' + text + b"]}", b'{"inputs": ' + text + b"}"):
        with suppress(ServingError):
            parse_predict(body, sign(x=kind))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=4).map(lambda data: {"b64": base64.b64encode(data).decode()}),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["x", "y", "b64"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=examples(500))
@given(
    document=st.dictionaries(st.sampled_from(["instances", "inputs", "signature_name"]), JSON),
    kind=st.sampled_from(list(TYPES)),
)
def test_any_document_is_read_or_refused(document, kind):
    body = json.dumps(document).encode()
    with suppress(ServingError):
        _, _, inputs = parse_predict(body, sign(x=kind))
        assert inputs["x"].dtype == TYPES[kind]
