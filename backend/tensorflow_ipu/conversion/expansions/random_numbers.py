"""Expansions of random operators. The IPU draws its own numbers.

Operators without a seed become ONNX's, which the program's seed feeds. Those with a seed (stateless
ones) compute a hash of it and of each element's number, so that the same seed gives the same
numbers.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import tensorflow as tf

from tensorflow_ipu.constant_folding import static_value
from tensorflow_ipu.conversion.expanding import expands
from tensorflow_ipu.conversion.expansions.special_functions import invert_erf
from tensorflow_ipu.markers import chip_operator

_FLOAT = 1
"""ONNX's number of float."""
_MIX: Final = (0x7FEB352D, 0x846CA68B)
"""Factors of a hash of 32 bits with little bias (C. Wellons, hash-prospector, lowbias32)."""
_GOLDEN: Final = 0x9E3779B9
"""2^32 over the golden ratio: numbers of a second stream are moved by it."""
_SHIFTS: Final = (16, 15, 16)
_LIMIT: Final = 2.0
"""A truncated normal distribution ends at two standard deviations."""


def _read_shape(tensor: Any, operation: tf.Operation) -> list[int]:
    value = static_value(tensor)
    if value is None:
        shape = operation.outputs[0].shape
        if not shape.is_fully_defined():
            raise ValueError(
                f"{operation.name}: the shape of random numbers must be known when the IPU's "
                "program is compiled"
            )
        return list(shape)
    return [int(size) for size in np.reshape(value, [-1])]


def draw_uniform(shape: list[int]) -> Any:
    """Return numbers of the program's random stream, from 0 to below 1, in float."""
    attributes = {"dtype": _FLOAT, "low": 0.0, "high": 1.0, "shape": shape or [1]}
    drawn = chip_operator("RandomUniform", [], [(tf.float32, shape or [1])], attributes, "")[0]
    return drawn if shape else tf.reshape(drawn, [])


def _draw_normal(shape: list[int]) -> Any:
    attributes = {"dtype": _FLOAT, "mean": 0.0, "scale": 1.0, "shape": shape or [1]}
    drawn = chip_operator("RandomNormal", [], [(tf.float32, shape or [1])], attributes, "")[0]
    return drawn if shape else tf.reshape(drawn, [])


def _truncate(numbers: Any) -> Any:
    """Return truncated normal numbers for uniform ones: the quantiles within the limits."""
    span = math.erf(_LIMIT / math.sqrt(2.0))
    inner = invert_erf((2.0 * numbers - 1.0) * span) * math.sqrt(2.0)
    return tf.clip_by_value(inner, -_LIMIT, _LIMIT)


def _to_range(numbers: Any, low: Any, high: Any, kind: Any) -> Any:
    """Return whole numbers from low to below high for uniform ones."""
    low, high = tf.cast(low, tf.int32), tf.cast(high, tf.int32)
    span = high - low
    steps = tf.cast(tf.floor(numbers * tf.cast(span, tf.float32)), tf.int32)
    return tf.cast(low + tf.minimum(steps, span - 1), kind)


@expands("RandomUniform", "RandomStandardNormal", "TruncatedNormal")
def _stateful(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    shape = _read_shape(inputs[0], operation)
    if operation.type == "RandomUniform":
        numbers = draw_uniform(shape)
    elif operation.type == "RandomStandardNormal":
        numbers = _draw_normal(shape)
    else:
        numbers = _truncate(draw_uniform(shape))
    return _cast_below_one(numbers, operation)


def _cast_below_one(numbers: Any, operation: tf.Operation) -> Any:
    """Return numbers in the operation's type; uniform ones stay below 1 in half too."""
    kind = operation.outputs[0].dtype
    if kind == tf.float32:
        return numbers
    if "Uniform" in operation.type:
        steps = 2.0 ** (11 if kind == tf.float16 else 8)
        numbers = tf.floor(numbers * steps) / steps
    return tf.cast(numbers, kind)


@expands("RandomUniformInt")
def _stateful_int(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    shape = _read_shape(inputs[0], operation)
    return _to_range(draw_uniform(shape), inputs[1], inputs[2], operation.outputs[0].dtype)


@expands("RandomShuffle")
def _shuffle(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Sort the rows by random numbers."""
    count = operation.outputs[0].shape[0]
    order = tf.math.top_k(draw_uniform([count]), count).indices
    return tf.gather(inputs[0], order)


@expands("Multinomial")
def _multinomial(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """The largest of the logits with Gumbel noise is a sample."""
    count = static_value(inputs[1])
    if count is None:
        return NotImplemented
    logits = tf.cast(inputs[0], tf.float32)
    rows, classes = logits.shape
    return _pick(logits, draw_uniform([rows, int(count), classes]), operation)


def _pick(logits: Any, numbers: Any, operation: tf.Operation) -> Any:
    noise = -tf.math.log(-tf.math.log(tf.maximum(numbers, np.finfo(np.float32).tiny)))
    picked = tf.argmax(logits[:, None, :] + noise, axis=2, output_type=tf.int32)
    return tf.cast(picked, operation.outputs[0].dtype)


# Seeds are two words of 32 bits. TensorFlow hides them in a key and a counter in uint64; here the
# key is the first word, the counter the second one, both in int32.


@expands("StatelessRandomGetKeyCounter", "StatelessRandomGetKeyCounterAlg")
def _split_seed(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    seed = tf.cast(inputs[0], tf.int32)
    key, counter = seed[:1], tf.concat([seed[1:], [0]], axis=0)
    algorithm = [tf.constant(1)] if operation.type.endswith("Alg") else []
    return [key, counter, *algorithm]


@expands("StatelessRandomGetAlg")
def _algorithm(_: tf.Operation, __: list[tf.Tensor]) -> Any:
    return tf.constant(1)


def hash_uniform(shape: list[int], first: Any, second: Any, stream: int = 0) -> Any:
    """Return numbers from 0 to below 1 in float that two words decide.

    Args:
        shape: Shape of the result.
        first: First word, a scalar in int32.
        second: Second word.
        stream: Number of the stream of the same words.

    Returns:
        The numbers, multiples of 2^-24.
    """
    count = int(np.prod(shape)) if shape else 1
    places = np.arange(count, dtype=np.int64) + stream * _GOLDEN
    words = tf.constant(_wrap(places))
    words = _mix(tf.bitwise.bitwise_xor(_mix(words), _mix(first + _wrap(_GOLDEN))))
    words = _mix(tf.bitwise.bitwise_xor(words, _mix(second - _wrap(_GOLDEN))))
    high = tf.cast(_shift(words, 8), tf.int32)
    return tf.reshape(tf.cast(high, tf.float32) * 2.0**-24, shape)


def _wrap(numbers: Any) -> Any:
    """Return whole numbers modulo 2^32 in int32."""
    return np.asarray(numbers, np.int64).astype(np.uint32).view(np.int32)


def _shift(words: Any, count: int) -> Any:
    """Shift words to the right, with zeros from the left. Return them in uint32."""
    unsigned = tf.cast(words, tf.uint32)
    amount = tf.constant(count, tf.uint32)
    outputs = [(tf.uint32, unsigned.shape)]
    return chip_operator("BitShift", [unsigned, amount], outputs, {"direction": "RIGHT"}, "")[0]


def _mix(words: Any) -> Any:
    for place, count in enumerate(_SHIFTS):
        words = tf.bitwise.bitwise_xor(words, tf.cast(_shift(words, count), tf.int32))
        if place < len(_MIX):
            words *= tf.constant(_wrap(_MIX[place]))
    return words


def _read_words(operation: tf.Operation, inputs: list[tf.Tensor]) -> tuple[Any, Any]:
    """Return the two words of a stateless operator's seed."""
    if operation.type.endswith("V2"):
        return tf.cast(inputs[1][0], tf.int32), tf.cast(inputs[2][0], tf.int32)
    seed = tf.cast(inputs[1], tf.int32)
    return seed[0], seed[1]


@expands(
    "StatelessRandomUniform",
    "StatelessRandomUniformV2",
    "StatelessRandomNormal",
    "StatelessRandomNormalV2",
    "StatelessTruncatedNormal",
    "StatelessTruncatedNormalV2",
)
def _stateless(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    shape = _read_shape(inputs[0], operation)
    words = _read_words(operation, inputs)
    numbers = hash_uniform(shape, *words)
    if "Truncated" in operation.type:
        numbers = _truncate(numbers)
    elif "Normal" in operation.type:
        # The polar form of two independent normal numbers (Box and Muller).
        angles = 2.0 * math.pi * hash_uniform(shape, *words, stream=1)
        numbers = tf.sqrt(-2.0 * tf.math.log(1.0 - numbers)) * tf.cos(angles)
    return _cast_below_one(numbers, operation)


@expands("StatelessRandomUniformInt", "StatelessRandomUniformIntV2")
def _stateless_int(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    shape = _read_shape(inputs[0], operation)
    numbers = hash_uniform(shape, *_read_words(operation, inputs))
    return _to_range(numbers, inputs[-2], inputs[-1], operation.outputs[0].dtype)


@expands("StatelessMultinomial")
def _stateless_multinomial(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    count = static_value(inputs[1])
    if count is None:
        return NotImplemented
    logits, seed = tf.cast(inputs[0], tf.float32), tf.cast(inputs[2], tf.int32)
    rows, classes = logits.shape
    numbers = hash_uniform([rows, int(count), classes], seed[0], seed[1])
    return _pick(logits, numbers, operation)


@expands("LogUniformCandidateSampler", "UniformCandidateSampler")
def _sample_candidates(operation: tf.Operation, inputs: list[tf.Tensor]) -> Any:
    """Sampled classes, and how often the true and the sampled ones are expected among them."""
    classes, count = operation.get_attr("range_max"), operation.get_attr("num_sampled")
    if operation.type.startswith("Log"):
        numbers = np.arange(classes, dtype=np.float64)
        shares = np.log((numbers + 2) / (numbers + 1)) / math.log(classes + 1)
    else:
        shares = np.full(classes, 1 / classes)
    shares = shares.astype(np.float32)
    if operation.get_attr("unique"):
        sampled, tries = _sample_unique(shares, count)
    else:
        sampled, tries = _sample_freely(shares, count), None

    def expect(numbers: Any) -> Any:
        share = tf.gather(tf.constant(shares), tf.cast(numbers, tf.int32))
        if tries is None:
            return share * float(count)
        return -tf.math.expm1(tries * tf.math.log1p(-share))

    return [tf.cast(sampled, tf.int64), expect(inputs[0]), expect(sampled)]


def _sample_freely(shares: Any, count: int) -> Any:
    """Return the classes whose parts of the distribution function hold uniform numbers."""
    bounds = np.cumsum(shares, dtype=np.float64)[:-1].astype(np.float32)
    numbers = draw_uniform([count])
    return tf.reduce_sum(tf.cast(numbers[:, None] >= bounds, tf.int32), axis=1)


def _sample_unique(shares: Any, count: int) -> tuple[Any, Any]:
    """Return different classes, and the number of draws until as many are found.

    Let class i be drawn at times of rate p_i: first at a time T_i with an exponential distribution.
    The classes with the earliest times are the sample. Until the last of them, at t, class i of the
    sample is drawn p_i (t - T_i) times more on average.
    """
    numbers = tf.maximum(draw_uniform([len(shares)]), float(np.finfo(np.float32).tiny))
    times = -tf.math.log(numbers) / shares
    first, sampled = tf.math.top_k(-times, count)
    rates = tf.gather(tf.constant(shares), sampled)
    repeats = tf.reduce_sum(rates * (first - first[-1]))
    return sampled, count + tf.round(repeats)
