"""Requests over HTTP as bytes, valid or with single faults, and their allowed outcomes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hostile_models import MODELS, Array, Served, Wanted


@dataclass(frozen=True, slots=True)
class HttpCase:
    """Bytes for one connection, the number of answers they must get, and the content of those.

    `rows` is what an answered request must hold of `model`. If `closes`, the client sends no more
    afterwards, and fewer answers may come.
    """

    data: bytes
    wanted: Wanted = Wanted.REFUSED
    model: Served | None = None
    rows: Array | None = None
    answers: int = 1
    closes: bool = False


Body = dict[str, Any]


def write_request(
    path: str | bytes,
    body: bytes = b"",
    headers: Mapping[str, object] | None = None,
    method: str = "POST",
) -> bytes:
    """Return the bytes of one request; `headers` come after, and may repeat, the length of the
    body."""
    target = path.encode() if isinstance(path, str) else path
    lines = {"Host": "x", "Content-Length": len(body), **(headers or {})}
    head = b"".join(f"{name}: {value}\r\n".encode() for name, value in lines.items())
    return b"%s %s HTTP/1.1\r\n%s\r\n%s" % (method.encode(), target, head, body)


def draft(model: Served, rows: Array) -> Body:
    """Return the JSON of a valid request."""
    tensor = {
        "name": model.input,
        "shape": list(rows.shape),
        "datatype": model.datatype,
        "data": rows.ravel().tolist(),
    }
    return {"inputs": [tensor], "outputs": [{"name": model.output}]}


def encode(body: object) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def ask(
    model: Served, body: object, headers: Mapping[str, object] | None = None, version: str = ""
) -> HttpCase:
    """Return the request with this body, JSON or bytes, which must be rejected."""
    return HttpCase(
        write_request(f"/v2/models/{model.name}{version}/infer", encode(body), headers), model=model
    )


def make_sound(random: Random, model: Served | None = None) -> HttpCase:
    """Return a case that must get the right answer."""
    model = model or random.choice(MODELS)
    rows = model.make_rows(random)
    return replace(ask(model, draft(model, rows)), wanted=Wanted.ANSWERED, rows=rows)


def edited(random: Random, **changes: object) -> HttpCase:
    """Return a request whose one input has these fields; None leaves a field out."""
    model = random.choice(MODELS)
    body = draft(model, model.make_rows(random))
    tensor = {**body["inputs"][0], **changes}
    body["inputs"][0] = {name: value for name, value in tensor.items() if value is not None}
    return ask(model, body)


def binary(
    model: Served,
    rows: Array,
    after: bytes,
    size: object,
    *,
    length: object = None,
    **fields: object,
) -> HttpCase:
    """Return a request whose data come `after` the JSON."""
    tensor = {"name": model.input, "shape": list(rows.shape), "datatype": model.datatype, **fields}
    outputs = [{"name": model.output, "parameters": {"binary_data": True}}]
    head = encode(
        {"inputs": [{**tensor, "parameters": {"binary_data_size": size}}], "outputs": outputs}
    )
    return ask(
        model,
        head + after,
        {"Inference-Header-Content-Length": len(head) if length is None else length},
    )
