"""The smallest inputs that a model takes, by its configuration."""

from __future__ import annotations

import pytest
from poplar_triton.errors import ServerError
from poplar_triton.serving.zeros import MAX_BYTES, ZeroInput, make_inputs


def describe(name, data_type, *dims, **more):
    return {"name": name, "data_type": data_type, "dims": list(dims), **more}


def test_free_sizes_are_one_and_optional_inputs_are_left_out():
    inputs = [
        describe("x", "TYPE_FP16", -1, 3),
        describe("texts", "TYPE_STRING", "2"),
        describe("mask", "TYPE_BOOL", 4, optional=True),
        describe("scalar", "TYPE_INT64"),
    ]
    made = make_inputs({"max_batch_size": 8, "input": inputs})
    assert made == [
        ZeroInput("x", "FP16", (1, 1, 3)),
        ZeroInput("texts", "BYTES", (1, 2)),
        ZeroInput("scalar", "INT64", (1,)),
    ]
    assert [each.num_bytes for each in made] == [6, 8, 8]
    assert make_inputs({"input": inputs[:1]}) == [ZeroInput("x", "FP16", (1, 3))]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"sequence_batching": {}}, "it is a sequence model"),
        ({"model_transaction_policy": {"decoupled": True}}, "it is decoupled"),
        ({"input": [describe("x", "TYPE_NEW", 1)]}, "its input 'x' has the unsupported type NEW"),
        (
            {"input": [describe("x", "TYPE_UINT8", 1 << 40)]},
            f"its inputs have {1 << 40} bytes, more than a canary's limit of {MAX_BYTES}",
        ),
    ],
)
def test_what_must_not_be_asked_is_not_with_the_reason(config, reason):
    with pytest.raises(ServerError, match=reason):
        make_inputs(config)
