"""Hostile requests over HTTP, as bytes: every kind in `KINDS`, with the allowed outcomes.

Requests that end Triton 2.51 itself, with any backend, are left out: see
`hostile_models.JSON_SHAPES`.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from hostile_models import (
    GATHERING,
    JSON_SHAPES,
    LINEAR,
    MAX_ROWS,
    MODELS,
    NAMES,
    REGION,
    REGION_BYTES,
    SIZES,
    TYPES,
    VALUES,
    Wanted,
)
from http_cases import HttpCase, ask, binary, draft, edited, encode, make_sound, write_request

Kind = Callable[[Random], HttpCase]
KINDS: dict[str, Kind] = {}


def kind(make: Kind) -> Kind:
    """Register the maker of a kind, under its own name."""
    KINDS[make.__name__] = make
    return make


@kind
def unknown_model(random: Random) -> HttpCase:
    body = encode(draft(LINEAR[0], LINEAR[0].make_rows(random)))
    return HttpCase(write_request(f"/v2/models/model_{random.randrange(99)}/infer", body))


@kind
def unknown_version(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    version = random.choice(["2", "0", "-1", "abc", "1.0", "99999999999999999999", "%00", "+"])
    return ask(model, draft(model, model.make_rows(random)), version=f"/versions/{version}")


@kind
def unknown_input(random: Random) -> HttpCase:
    return edited(random, name=f"input_{random.randrange(99)}")


@kind
def missing_input(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    bodies: tuple[object, ...] = (
        {"inputs": []},
        {},
        {"inputs": None},
        {"inputs": {}},
        {"inputs": [{}]},
        {"inputs": [None]},
    )
    return ask(model, random.choice(bodies))


@kind
def duplicate_input(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    body = draft(model, model.make_rows(random))
    body["inputs"] *= random.randint(2, 20)
    return ask(model, body)


@kind
def missing_field(random: Random) -> HttpCase:
    return edited(random, **{random.choice(["name", "shape", "datatype", "data"]): None})


@kind
def wrong_type(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    rows = model.make_rows(random)
    body = draft(model, rows)
    body["inputs"][0]["datatype"] = random.choice(
        [name for name in TYPES if name != model.datatype]
    )
    return ask(model, body)


@kind
def wrong_type_in_binary(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    rows = model.make_rows(random)
    datatype = random.choice([name for name in TYPES if name != model.datatype])
    return binary(model, rows, rows.tobytes(), rows.nbytes, datatype=datatype)


@kind
def wrong_rank(random: Random) -> HttpCase:
    return edited(
        random, shape=random.choice([[], [4], [1, 1, 4], [1] * 1000, [[1, 4]], "1,4", {}, 4, None])
    )


@kind
def wrong_size(random: Random) -> HttpCase:
    return edited(random, shape=random.choice(JSON_SHAPES))


@kind
def wrong_size_in_binary(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    rows = model.make_rows(random)
    return binary(
        model, rows, rows.tobytes(), rows.nbytes, shape=[random.choice(SIZES), model.width]
    )


@kind
def odd_sizes(random: Random) -> HttpCase:
    return edited(random, shape=[random.choice(["1", 1.5, True, None, [1], 1e300, -0.0]), 4])


@kind
def too_many_rows(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    return ask(model, draft(model, model.make_rows(random, MAX_ROWS + random.randint(1, 500))))


@kind
def data_shorter_or_longer(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    body = draft(model, model.make_rows(random))
    data = body["inputs"][0]["data"]
    body["inputs"][0]["data"] = random.choice([data[:-1], [*data, 1], data * 50, [], data[:1]])
    return ask(model, body)


@kind
def binary_shorter_or_longer(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    rows = model.make_rows(random)
    data = random.choice([rows.tobytes()[:-1], rows.tobytes() + b"1", rows.tobytes() * 9, b""])
    return binary(model, rows, data, len(data))


@kind
def binary_size_that_lies(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    rows = model.make_rows(random)
    sizes: tuple[Any, ...] = (
        0,
        1,
        rows.nbytes + 1,
        rows.nbytes - 1,
        2**31,
        2**40,
        -1,
        "16",
        1.5,
        None,
        [],
    )
    return binary(model, rows, rows.tobytes(), random.choice(sizes))


@kind
def json_and_binary(random: Random) -> HttpCase:
    """Return a request with data in JSON and in binary; Triton takes one of them."""
    model = random.choice(MODELS)
    rows = model.make_rows(random)
    return replace(
        binary(model, rows, rows.tobytes(), rows.nbytes, data=rows.ravel().tolist()),
        wanted=Wanted.EITHER,
    )


@kind
def nested_data(random: Random) -> HttpCase:
    """Return a request with lists in lists, which are valid if they have the shape."""
    model = random.choice(MODELS)
    rows = model.make_rows(random)
    body = draft(model, rows)
    ragged = [[1], [[2]], []]
    body["inputs"][0]["data"] = random.choice(
        [rows.tolist(), ragged, [[[[]]]], [{}], {"0": 1}, "1111", 7]
    )
    return replace(ask(model, body), wanted=Wanted.EITHER)


@kind
def broken_json(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    text = bytearray(encode(draft(model, model.make_rows(random))))
    if random.random() < 0.5:
        return ask(model, bytes(text[: random.randrange(len(text))]))
    for _ in range(random.choice((1, 1, 3, 10))):
        text[random.randrange(len(text))] = random.randrange(256)
    return replace(ask(model, bytes(text)), wanted=Wanted.EITHER)


@kind
def deep_json(random: Random) -> HttpCase:
    depth = random.choice((10, 100, 1000))
    deep = random.choice(
        [b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth, b"[" * depth]
    )
    body = random.choice([deep, b'{"inputs":' + deep + b"}", b'{"parameters":' + deep + b"}"])
    return ask(random.choice(MODELS), body)


@kind
def huge_json(random: Random) -> HttpCase:
    bodies = (
        b"[" + b"1," * 200_000 + b"1]",
        b" " * 400_000,
        b'{"inputs":[' + b"{}," * 50_000 + b"{}]}",
        b'{"' + b"a" * 400_000 + b'":1}',
        b'{"id":"' + b"a" * 400_000 + b'"}',
        b"1" * 400_000,
    )
    return ask(random.choice(MODELS), random.choice(bodies))


@kind
def duplicate_keys(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    text = encode(draft(model, model.make_rows(random)))
    doubled = random.choice(
        [
            b'{"inputs":[],' + text[1:],
            text[:-1] + b',"inputs":[]}',
            text.replace(b'"shape"', b'"shape":[9,9],"shape"'),
        ]
    )
    return replace(ask(model, doubled), wanted=Wanted.EITHER)


@kind
def odd_numbers(random: Random) -> HttpCase:
    """Return a request with a value that the type does not hold; some parsers accept some of
    them."""
    model = random.choice(MODELS)
    rows = model.make_rows(random)
    body = encode({**draft(model, rows)}).replace(
        json.dumps(rows.ravel().tolist()).encode(),
        b"[%s]" % b",".join([random.choice(VALUES)] * rows.size),
    )
    return replace(ask(model, body), wanted=Wanted.EITHER)


@kind
def strings_for_numbers(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    rows = model.make_rows(random)
    body = draft(model, rows)
    body["inputs"][0]["data"] = [random.choice(["1", "", "x", None, [], {}])] * rows.size
    return ask(model, body)


@kind
def wrong_header_length(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    rows = model.make_rows(random)
    length = random.choice(
        [-1, 0, 1, 10, 100_000, 2**31, 2**32, 2**63, 2**64, "abc", "", "1e3", "0x10", "-"]
    )
    case = binary(model, rows, rows.tobytes(), rows.nbytes, length=length)
    return replace(case, wanted=Wanted.EITHER if length == "" else Wanted.REFUSED)


@kind
def hostile_name_of_input(random: Random) -> HttpCase:
    return edited(random, name=random.choice(NAMES))


@kind
def hostile_name_of_output(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    return ask(
        model,
        {**draft(model, model.make_rows(random)), "outputs": [{"name": random.choice(NAMES)}]},
    )


@kind
def hostile_name_of_model(random: Random) -> HttpCase:
    name = "".join(f"%{byte:02x}" for byte in random.choice(NAMES)[:1000].encode())
    return HttpCase(write_request(f"/v2/models/{name or '%20'}/infer", b"{}"))


@kind
def hostile_id(random: Random) -> HttpCase:
    """Return a valid request with a hostile id, which comes back with the answer."""
    model = random.choice(MODELS)
    rows = model.make_rows(random)
    case = ask(model, {**draft(model, rows), "id": random.choice(NAMES)})
    return replace(case, wanted=Wanted.ANSWERED, rows=rows)


@kind
def not_utf8(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    text = encode(draft(model, model.make_rows(random)))
    return ask(
        model,
        text.replace(
            model.input.encode(), random.choice([b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80"]), 1
        ),
    )


@kind
def odd_parameters(random: Random) -> HttpCase:
    """Return a request with sequences, priorities and timeouts for models that have none of
    them."""
    model = random.choice(MODELS)
    name = random.choice(
        [
            "sequence_id",
            "sequence_start",
            "sequence_end",
            "priority",
            "timeout",
            "custom",
            "",
            "binary_data_output",
        ]
    )
    value: Any = random.choice(
        [-1, 0, 1, 2**31, 2**62, 1.5, "x", "", True, None, [], {}, [1], "\x1b", "9" * 1000]
    )
    return replace(
        ask(model, {**draft(model, model.make_rows(random)), "parameters": {name: value}}),
        wanted=Wanted.EITHER,
    )


@kind
def parameters_of_another_type(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    body = {
        **draft(model, model.make_rows(random)),
        "parameters": random.choice(["x", 1, [], [1], None, True, [{}]]),
    }
    return replace(ask(model, body), wanted=Wanted.EITHER)


@kind
def odd_outputs(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    outputs = random.choice(
        [[{}], [{"name": 1}], "z", 7, {}, [None], [[]], [{"name": None}], [{"name": "nothing"}]]
    )
    expected = Wanted.EITHER if outputs in ({}, 7, "z") else Wanted.REFUSED
    return replace(
        ask(model, {**draft(model, model.make_rows(random)), "outputs": outputs}), wanted=expected
    )


@kind
def outputs_twice_or_not_at_all(random: Random) -> HttpCase:
    """Return a request with duplicate outputs, which Triton accepts, or none, for which it returns
    all."""
    model = random.choice(MODELS)
    outputs = random.choice(
        [[{"name": model.output}] * 2, [{"name": model.output}] * 300, [], None]
    )
    return replace(
        ask(model, {**draft(model, model.make_rows(random)), "outputs": outputs}),
        wanted=Wanted.EITHER,
    )


@kind
def classification(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    number: Any = random.choice([1, 2, 100, 2**31, 2**40, 0, -1, "1", 1.5, True, None, []])
    outputs = [{"name": model.output, "parameters": {"classification": number}}]
    return replace(
        ask(model, {**draft(model, model.make_rows(random)), "outputs": outputs}),
        wanted=Wanted.EITHER,
    )


@kind
def shared_memory_of_input(random: Random) -> HttpCase:
    region, offset = (
        random.choice(["nothing", REGION, "", "\x1b"]),
        random.choice([0, 1, REGION_BYTES, 2**31, 2**40, -1]),
    )
    size = random.choice([REGION_BYTES + 1, 2**31, 2**40, 0])
    parameters = {
        "shared_memory_region": region,
        "shared_memory_offset": offset,
        "shared_memory_byte_size": size,
    }
    return edited(random, data=None, parameters=parameters)


@kind
def shared_memory_of_output(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    region, offset = (
        random.choice(["nothing", REGION, "", "\x1b"]),
        random.choice([REGION_BYTES, 2**31, 2**40, -1]),
    )
    parameters = {
        "shared_memory_region": region,
        "shared_memory_offset": offset,
        "shared_memory_byte_size": 64,
    }
    body = {
        **draft(model, model.make_rows(random)),
        "outputs": [{"name": model.output, "parameters": parameters}],
    }
    return ask(model, body)


@kind
def shared_memory_registered(random: Random) -> HttpCase:
    key = random.choice(
        ["/nothing", "", "/", "/../../etc/passwd", "../x", "x" * 5000, "\x1b", 7, None]
    )
    body = {
        "key": key,
        "offset": random.choice([0, -1, 2**40, "0"]),
        "byte_size": random.choice([0, 1, 2**40, -1, "1"]),
    }
    device = random.choice(["system", "cuda", "nothing"])
    return HttpCase(
        write_request(
            f"/v2/{device}sharedmemory/region/hostile_{random.randrange(9)}/register", encode(body)
        )
    )


@kind
def bytes_tensors(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    rows = model.make_rows(random)
    if random.random() < 0.5:
        return edited(random, datatype="BYTES", data=["a"] * rows.size)
    data = random.choice([b"\xff" * rows.nbytes, b"\1\0\0\0a" * rows.size, b""])
    return binary(model, rows, data, len(data), datatype="BYTES")


@kind
def bad_indices(random: Random) -> HttpCase:
    model = random.choice(GATHERING)
    rows = model.make_rows(random)
    rows[random.randrange(len(rows)), random.randrange(2)] = random.choice(
        [10, 1000, 2**31 - 1, -(2**31), -11]
    )
    return ask(model, draft(model, rows))


@kind
def not_finite_values(random: Random) -> HttpCase:
    """Return a valid request with values that are not finite, but of the type."""
    model = random.choice(LINEAR)
    rows = model.make_rows(random)
    rows[random.randrange(len(rows)), :] = random.choice([np.nan, np.inf, -np.inf, 3.4e38, 1e-45])
    return replace(
        binary(model, rows, rows.tobytes(), rows.nbytes), wanted=Wanted.ANSWERED, rows=rows
    )


@kind
def compressed(random: Random) -> HttpCase:
    """Return a valid request that is compressed."""
    model = random.choice(MODELS)
    rows = model.make_rows(random)
    codecs: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
    encoding, press = random.choice(list(codecs.items()))
    case = ask(model, press(encode(draft(model, rows))), {"Content-Encoding": encoding})
    return replace(case, wanted=Wanted.ANSWERED, rows=rows)


@kind
def damaged_compression(random: Random) -> HttpCase:
    model = random.choice(MODELS)
    text = encode(draft(model, model.make_rows(random)))
    pressed = bytearray(gzip.compress(text))
    for _ in range(random.choice((1, 3, 10))):
        pressed[random.randrange(len(pressed))] ^= random.randrange(1, 256)
    # Small ones: Triton 2.51 keeps the decompressed bytes of a request that it rejects.
    body = random.choice(
        [bytes(pressed), bytes(pressed[:20]), b"", text, gzip.compress(b"{" * 2000)]
    )
    headers = {"Content-Encoding": random.choice(["gzip", "deflate", "br", "gzip, gzip", ""])}
    return replace(ask(model, body, headers), wanted=Wanted.EITHER)


@kind
def pipelined(random: Random) -> HttpCase:
    """Return valid and invalid requests in one write."""
    count = random.randint(2, 5)
    cases = [
        random.choice([make_sound, wrong_rank, bad_indices, unknown_input])(random)
        for _ in range(count)
    ]
    return HttpCase(b"".join(case.data for case in cases), Wanted.EITHER, answers=count)


@kind
def half_closed(random: Random) -> HttpCase:
    return replace(make_sound(random), wanted=Wanted.EITHER, closes=True)


@kind
def cut_off(random: Random) -> HttpCase:
    data = make_sound(random).data
    return HttpCase(data[: random.randrange(len(data))], answers=0, closes=True)


@kind
def unknown_path(random: Random) -> HttpCase:
    method = random.choice(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
    path = random.choice(
        ["/", "//", "/v3", "/v2/models", "/v2/models/", "/v2/../../etc/passwd", "/v2/x%00y"]
    )
    expected = Wanted.EITHER if method == "OPTIONS" else Wanted.REFUSED
    return HttpCase(write_request(path, b"", {}, method), expected)


@kind
def wrong_method(random: Random) -> HttpCase:
    method = random.choice(["GET", "PUT", "DELETE", "PATCH", "HEAD"])
    return HttpCase(
        write_request(f"/v2/models/{random.choice(MODELS).name}/infer", b"{}", {}, method)
    )


@kind
def malformed_http(random: Random) -> HttpCase:
    """Return malformed HTTP, which gets at most one answer."""
    sound = make_sound(random).data
    data = random.choice(
        [
            b"\r\n\r\n",
            b"GET\r\n\r\n",
            # Under load Triton 2.51 now and then closes the connection on a path of 5000
            # characters, without an answer.
            b"GET /%s HTTP/1.1\r\n\r\n" % (b"a" * random.choice([5000, 60_000])),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            bytes(random.randrange(256) for _ in range(100)),
            sound.replace(b"HTTP/1.1", random.choice([b"HTTP/1.9", b"", b"FTP/1.1"])),
            sound.replace(
                b"Host: x",
                random.choice([b"Host", b": x", b"\x00: \x00", b"Host: " + b"x" * 100_000]),
            ),
            sound.replace(
                b"Content-Length: ",
                random.choice(
                    [b"Content-Length: -", b"Content-Length: x", b"Content-Length: 9999"]
                ),
            ),
            sound.replace(b"Content-Length", b"Content-Length: 1\r\nContent-Length"),
            sound.replace(b"Host: x", b"Transfer-Encoding: chunked"),
        ]
    )
    return HttpCase(data, Wanted.EITHER, closes=True)


@kind
def control_calls(random: Random) -> HttpCase:
    """Return a call that is no inference, with a body that it does not expect."""
    model = random.choice(MODELS).name
    name = "".join(f"%{byte:02x}" for byte in random.choice(NAMES)[:200].encode()) or "%20"
    paths = (
        "/v2/repository/index",
        f"/v2/repository/models/{model}/load",
        f"/v2/repository/models/{model}/unload",
        f"/v2/repository/models/{name}/load",
        f"/v2/models/{name}/stats",
        f"/v2/models/{name}/config",
        f"/v2/models/{model}/trace/setting",
        f"/v2/models/{model}/versions/{name}/stats",
        "/v2/trace/setting",
        "/v2/logging",
    )
    body = random.choice(
        [
            b"",
            b"{",
            b"[]",
            b"null",
            b'{"ready":7}',
            b'{"parameters":7}',
            b'{"nothing":"\\u001b"}',
            b"\xff",
            b"[" * 500,
        ]
    )
    method = random.choice(["GET", "POST", "POST"])
    return HttpCase(write_request(random.choice(paths), body, {}, method), Wanted.EITHER)
