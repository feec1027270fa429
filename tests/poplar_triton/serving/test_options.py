"""What tritonserver's options mean for the supervisor."""

from __future__ import annotations

import pytest
from poplar_triton.serving import options


def test_the_last_value_counts_in_both_spellings():
    words = ["--a=1", "--b", "2", "--a", "3", "--c"]
    assert options.find_option(words, "--a") == "3"
    assert options.find_all(words, "--a") == ["1", "3"]
    assert options.find_option(words, "--b") == "2"
    assert options.find_option(words, "--c") == ""
    assert options.find_option(words, "--d") is None


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ([], 30),
        (["--exit-timeout-secs=5"], 5),
        (["--exit-timeout-secs", "0"], 0),
        (["--exit-timeout-secs=x"], 30),
    ],
)
def test_the_time_to_exit_is_tritons_unless_it_is_given(words, seconds):
    assert options.find_exit_seconds(words) == seconds


def test_the_keys_of_restricted_apis_are_sent_along():
    words = [
        "--http-restricted-api=health,metadata:key=a=b",
        "--http-restricted-api",
        "model-repository:other=c",
        "--http-restricted-api=nonsense",
        "--grpc-restricted-protocol=health:Key=d",
    ]
    assert options.make_http_headers(words) == {"key": "a=b", "other": "c"}
    assert options.make_grpc_headers(words) == {"triton-grpc-protocol-key": "d"}
