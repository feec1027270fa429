"""Operators of TensorFlow with inputs: the conversion is compared with TensorFlow's eager results.

Each case is a name, a function of tensors and its inputs. Names end in what is special about a
case: types, modes, negative numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

Case = tuple[str, Callable[..., Any], list[Any]]
raw = tf.raw_ops
FLOATS = (np.float32, np.float16)
NUMBERS = (*FLOATS, np.int32)
_random = np.random.default_rng(51)


def normal(*shape):
    return _random.standard_normal(shape).astype(np.float32)


def positive(*shape):
    return (_random.random(shape) + 0.1).astype(np.float32)


def whole(*shape):
    return _random.integers(-5, 6, shape).astype(np.int32)


def flags(*shape):
    return _random.random(shape) > 0.5


def word(dtype):
    return np.dtype(dtype).name


_ARGUMENTS = {
    **dict.fromkeys("Relu Relu6 Elu Selu Softplus Softsign LeakyRelu".split(), "features"),
    **dict.fromkeys(("Softmax", "LogSoftmax"), "logits"),
    "L2Loss": "t",
}
_UNARY = """Abs Ceil Cos Cosh Elu Erf Erfc Exp Expm1 Floor Inv IsFinite IsInf IsNan LogSoftmax Neg
OnesLike Reciprocal Relu Relu6 Round Selu Sigmoid Sign Sin Sinh Softmax Softplus Softsign Square Tan
Tanh ZerosLike L2Loss Atan Asinh LeakyRelu""".split()
_BINARY = """Add AddV2 Sub Mul Div RealDiv DivNoNan MulNoNan Maximum Minimum SquaredDifference
FloorDiv Equal NotEqual Less LessEqual Greater GreaterEqual Xdivy Xlogy""".split()
_WHOLE = """Add AddV2 Sub Mul FloorDiv TruncateDiv FloorMod TruncateMod Div Maximum Minimum Equal
SquaredDifference NotEqual Less LessEqual Greater GreaterEqual BitwiseAnd BitwiseOr
BitwiseXor""".split()


def _call(name, **options):
    return partial(getattr(raw, name), **options)


def elementwise() -> Iterator[Case]:
    for name in _UNARY:
        for dtype in FLOATS:
            key = _ARGUMENTS.get(name, "x")

            def function(x, name=name, key=key):
                return _call(name)(**{key: x})

            yield f"{name} {word(dtype)}", function, [normal(3, 4).astype(dtype) * 2]
    for name in "Acosh Lgamma Digamma Log Log1p Rsqrt Sqrt".split():
        yield name, lambda x, name=name: _call(name)(x=x), [positive(3, 4) + 1]
    for name in "Acos Asin Atanh Erfinv Ndtri".split():
        yield name, lambda x, name=name: _call(name)(x=x), [positive(3, 4) * 0.8]
    for name in ("Lgamma", "Digamma"):
        yield f"{name} negative", lambda x, name=name: _call(name)(x=x), [normal(4, 5) * 3]
    for name in "Abs Neg Sign Square Invert".split():
        yield f"{name} int32", lambda x, name=name: _call(name)(x=x), [whole(3, 4)]
    yield "LogicalNot", lambda x: raw.LogicalNot(x=x), [flags(3, 4)]
    yield "Log float16", tf.math.log, [positive(3).astype(np.float16)]


def casts() -> Iterator[Case]:
    for source in (*NUMBERS, np.bool_, np.uint8, np.int8):
        for target in (*NUMBERS, np.bool_, np.uint8, np.int8):
            if source == target:
                continue  # nothing is computed
            values = (np.abs(whole(3, 4)) * 1.4).astype(source)
            yield f"Cast {word(source)} {word(target)}", partial(tf.cast, dtype=target), [values]


def binary() -> Iterator[Case]:
    for name in _BINARY:
        for dtype in FLOATS:
            values = [(positive(3, 4) * 3).astype(dtype), positive(4).astype(dtype)]
            yield f"{name} {word(dtype)}", lambda x, y, name=name: _call(name)(x=x, y=y), values
    for name in "FloorMod TruncateMod Atan2 Xlog1py Mod".split():
        scale = 4 if name.endswith("Mod") else 1
        values = [normal(3, 4) * scale, normal(4) if scale > 1 else positive(4)]
        yield name, lambda x, y, name=name: _call(name)(x=x, y=y), values
    yield "Pow", lambda x, y: x**y, [positive(3, 4), normal(4)]
    for name in _WHOLE:
        divisors = np.array([2, -3, 4, -1], np.int32)

        def function(x, y, name=name):
            return _call(name)(x=x, y=y)

        yield f"{name} int32", function, [whole(3, 4) * 3, divisors]
    for name in ("LeftShift", "RightShift"):
        values = [whole(3, 4) * 100, np.abs(whole(3, 4))]
        yield f"{name} int32", lambda x, y, name=name: _call(name)(x=x, y=y), values
    for name in "LogicalAnd LogicalOr Equal NotEqual".split():
        values = [flags(3, 4), flags(3, 4)]
        yield f"{name} bool", lambda x, y, name=name: _call(name)(x=x, y=y), values
    yield "ClipByValue", lambda x: tf.clip_by_value(x, -1, 1), [normal(3)]
    yield "Cross", tf.linalg.cross, [normal(2, 3), normal(2, 3)]
    yield "Bucketize", lambda x: raw.Bucketize(input=x, boundaries=[-1.0, 0.0, 1.0]), [normal(9)]


def reductions() -> Iterator[Case]:
    for name in "Sum Mean Max Min Prod EuclideanNorm".split():
        for dtype in NUMBERS[: 2 if name == "EuclideanNorm" else 3]:
            values = normal(2, 3, 4).astype(dtype) if dtype != np.int32 else whole(2, 3, 4)
            for axes, keeps in (([1], False), ([0, 2], True), ([], False)):
                call = _call(name, axis=tf.constant(axes, tf.int32), keep_dims=keeps)
                yield f"{name} {word(dtype)} {axes}", lambda x, call=call: call(input=x), [values]
    for name in ("All", "Any"):
        yield name, lambda x, name=name: _call(name, axis=[1])(input=x), [flags(3, 4)]
    for name in ("ArgMax", "ArgMin"):
        for dtype in NUMBERS:
            call = _call(name, dimension=1, output_type=tf.int32)
            values = [(normal(3, 9) * 5).astype(dtype)]
            yield f"{name} {word(dtype)}", lambda x, call=call: call(input=x), values


def sums_and_sorts() -> Iterator[Case]:
    for dtype in NUMBERS:
        values, kind = [(normal(3, 9) * 5).astype(dtype)], word(dtype)
        yield f"TopKV2 {kind}", lambda x: tf.math.top_k(x, 3), values
        yield f"NthElement {kind}", lambda x: raw.NthElement(input=x, n=2), values
        yield f"sort {kind}", lambda x: tf.sort(x, axis=0, direction="DESCENDING"), values
        yield f"Cumsum {kind}", lambda x: tf.cumsum(x, 1, exclusive=True, reverse=True), values
        yield f"AddN {kind}", lambda x: tf.add_n([x, x, x]), values
        yield f"MatMul {kind}", lambda x: tf.matmul(x, x, transpose_b=True), values
        yield f"BatchMatMul {kind}", lambda x: tf.matmul(x[None], x[None], True), values
        for kind_of in ("sum", "max", "min", "prod"):
            function = getattr(tf.math, f"unsorted_segment_{kind_of}")
            call = partial(function, segment_ids=[2, 0, 2], num_segments=4)
            if kind_of in ("sum", "prod"):
                yield f"segment {kind_of} {kind}", call, values
    yield "CumulativeLogsumexp", lambda x: tf.math.cumulative_logsumexp(x, 1), [normal(3, 4)]
    yield "Histogram", lambda x: tf.histogram_fixed_width(x, [-1.0, 1.0], 5), [normal(50)]
    counts = [np.abs(whole(10))]
    call = _call("Bincount", size=6, weights=tf.zeros([0], tf.int32))
    yield "Bincount", lambda x: call(arr=x), counts
    for name, function in (
        ("reduce_logsumexp", partial(tf.reduce_logsumexp, axis=1)),
        ("moments", partial(tf.nn.moments, axes=[0])),
        ("norm", partial(tf.norm, axis=1)),
        ("reduce_std", partial(tf.math.reduce_std, axis=1)),
    ):
        yield name, function, [normal(3, 4)]


def losses() -> Iterator[Case]:
    logits, truth = normal(4, 5), np.array([0, 1, 2, 4], np.int32)
    cross = tf.nn.softmax_cross_entropy_with_logits
    yield "softmax cross entropy", lambda x, y: cross(y, x), [logits, positive(4, 5)]
    sparse = tf.nn.sparse_softmax_cross_entropy_with_logits
    yield "sparse cross entropy", lambda x, y: sparse(y, x), [logits, truth]
    yield "InTopK", lambda p, t: raw.InTopKV2(predictions=p, targets=t, k=2), [logits, truth]


def shapes() -> Iterator[Case]:
    for dtype in NUMBERS:
        values, kind = [(normal(3, 9) * 5).astype(dtype)], word(dtype)
        for name, function in _SHAPED.items():
            yield f"{name} {kind}", function, values
    yield "InvertPermutation", tf.math.invert_permutation, [np.array([2, 0, 1, 3], np.int32)]
    yield "LinSpace", lambda a, b: tf.linspace(a, b, 7), [np.float32(1), np.float32(3)]
    yield "sequence_mask", lambda x: tf.sequence_mask(x, 6), [np.array([1, 4, 2], np.int32)]
    yield "DimMap", lambda x: raw.DataFormatDimMap(x=x), [np.array([0, 1, 2, 3, -1], np.int32)]
    yield "VecPermute", lambda x: raw.DataFormatVecPermute(x=x), [np.array([1, 2, 3, 4], np.int32)]


def _update_slice(x):
    return raw.TensorStridedSliceUpdate(
        input=x, begin=[0, 1], end=[2, 8], strides=[1, 2], value=x[:2, :4]
    )


def _one_hot(x):
    return tf.one_hot(tf.cast(x, tf.int32), 4, tf.cast(2, x.dtype), tf.cast(1, x.dtype))


_SHAPED: dict[str, Callable[..., Any]] = {
    "Transpose": tf.transpose,
    "Concat": lambda x: tf.concat([x, x], 1),
    "Pack": lambda x: tf.stack([x, x], 1),
    "Unpack": tf.unstack,
    "Split": lambda x: tf.split(x, [2, 7], 1),
    "PadV2": lambda x: tf.pad(x, [[1, 2], [0, 1]], constant_values=3),
    "MirrorPad reflect": lambda x: tf.pad(x, [[1, 2], [0, 1]], "REFLECT"),
    "MirrorPad symmetric": lambda x: tf.pad(x, [[1, 2], [0, 1]], "SYMMETRIC"),
    "Gather": lambda x: tf.gather(x, [[0, 2], [1, 1]], axis=1),
    "Gather batches": lambda x: tf.gather(x, [[0, 2], [1, 1], [3, 4]], axis=1, batch_dims=1),
    "GatherNd": lambda x: tf.gather_nd(x, [[0, 2], [1, 1]]),
    "ScatterNd": lambda x: tf.scatter_nd([[1], [3], [1]], x, [5, 9]),
    "Scatter add": lambda x: tf.tensor_scatter_nd_add(x, [[1], [1]], x[:2] * 2),
    "Scatter update": lambda x: tf.tensor_scatter_nd_update(x, [[1], [0]], x[:2] * 2),
    "StridedSlice": lambda x: x[::2, 1:-1:3],
    "StridedSlice masks": lambda x: x[::-1, None, ..., 2],
    "StridedSliceUpdate": _update_slice,
    "Tile": lambda x: tf.tile(x, [2, 1]),
    "Reverse": lambda x: tf.reverse(x, [1]),
    "ReverseSequence": lambda x: tf.reverse_sequence(x, [2, 3, 9], seq_axis=1),
    "Roll": lambda x: tf.roll(x, [2, -1], [0, 1]),
    "Select": lambda x: tf.where(x > 0, x, -x),
    "BroadcastTo": lambda x: tf.broadcast_to(x, [2, 3, 9]),
    "Fill": lambda x: tf.fill([3, 2], x[0, 0]),
    "OneHot": _one_hot,
    "MatrixBandPart": lambda x: tf.linalg.band_part(x, 1, 2),
    "MatrixDiag": tf.linalg.diag,
    "MatrixDiagPart": tf.linalg.diag_part,
    "MatrixSetDiag": lambda x: tf.linalg.set_diag(x, x[:, 0]),
    "Diag": lambda x: tf.linalg.tensor_diag(x[0]),
    "DiagPart": lambda x: tf.linalg.tensor_diag_part(x[:3, :3]),
    "SpaceToDepth": lambda x: tf.nn.space_to_depth(tf.reshape(x[:, :8], [1, 4, 6, 1]), 2),
    "DepthToSpace": lambda x: tf.nn.depth_to_space(tf.reshape(x[:, :8], [1, 2, 3, 4]), 2),
}


def linear_algebra() -> Iterator[Case]:
    square, right = normal(2, 5, 5), normal(2, 5, 3)

    def factor(a):
        return tf.linalg.cholesky(tf.matmul(a, a, transpose_b=True) + tf.eye(5))

    yield "Cholesky", factor, [square]
    for lower in (True, False):
        for adjoint in (True, False):
            solve = partial(tf.linalg.triangular_solve, lower=lower, adjoint=adjoint)

            def function(a, b, solve=solve):
                return solve(a + 4 * tf.eye(5), b)

            yield f"TriangularSolve {lower} {adjoint}", function, [square, right]
    yield "MatrixSolve", tf.linalg.solve, [square, right]
    yield "MatrixInverse", tf.linalg.inv, [square]
    yield "Determinant", tf.linalg.det, [square]
    yield "LogDeterminant", tf.linalg.slogdet, [square]

    def decompose(a):
        q, r = tf.linalg.qr(a)
        return [tf.matmul(q, r), tf.abs(r)]

    yield "Qr", decompose, [right]


def convolutions() -> Iterator[Case]:
    for dtype in FLOATS:
        images, kind = (normal(2, 9, 8, 4) * 0.5).astype(dtype), word(dtype)
        kernel = (normal(3, 3, 4, 6) * 0.3).astype(dtype)
        back = (normal(3, 3, 6, 4) * 0.3).astype(dtype)
        for padding in ("SAME", "VALID"):
            label = f"{kind} {padding}"
            one = partial(tf.nn.conv2d, padding=padding)
            yield f"Conv2D {label}", partial(one, strides=2), [images, kernel]
            yield f"Conv2D dilated {label}", partial(one, strides=1, dilations=2), [images, kernel]
            yield f"Conv2D groups {label}", partial(one, strides=1), [images, kernel[:, :, :2]]
            depthwise = partial(tf.nn.depthwise_conv2d, strides=[1, 2, 2, 1], padding=padding)
            yield f"Depthwise {label}", depthwise, [images, kernel[..., :2]]
            for height, width in (
                ((18, 16), (17, 15)) if padding == "SAME" else ((19, 17), (20, 18))
            ):
                size = [2, height, width, 6]
                turned = partial(
                    tf.nn.conv2d_transpose, output_shape=size, strides=2, padding=padding
                )
                yield f"transposed {size} {label}", turned, [images, back]
            for name in ("max_pool2d", "avg_pool2d"):
                pool = partial(getattr(tf.nn, name), ksize=3, strides=2, padding=padding)
                yield f"{name} {label}", pool, [images]
        for training in (False, True):
            yield (
                f"batch norm {kind} {training}",
                _normalize(training),
                [
                    images,
                    positive(4),
                    normal(4),
                    normal(4),
                    positive(4),
                ],
            )
        yield (
            f"BiasAdd {kind}",
            lambda x, b: tf.nn.bias_add(x, b, "NCHW"),
            [
                images,
                normal(9).astype(dtype),
            ],
        )
    volumes, kernel = normal(1, 4, 5, 6, 2), normal(2, 3, 3, 2, 3)
    yield "Conv3D", lambda x, k: tf.nn.conv3d(x, k, [1, 1, 2, 2, 1], "SAME"), [volumes, kernel]
    for method in ("bilinear", "nearest"):
        function = partial(tf.image.resize, size=[5, 13], method=method)
        yield f"resize {method}", function, [normal(2, 9, 8, 4)]


def _normalize(training):
    def function(x, scale, offset, mean, variance):
        moments = (None, None) if training else (mean, variance)
        return tf.compat.v1.nn.fused_batch_norm(
            x, scale, offset, *moments, is_training=training, epsilon=0.01
        )

    return function


def control_flow() -> Iterator[Case]:
    row, rows = normal(3), normal(4, 3)

    def count(x):
        def step(i, y):
            return (i + 1, y * 1.5 + tf.cast(i, tf.float32))

        return tf.while_loop(lambda i, _: i < 5, step, [0, x])[1]

    def grow(x):
        def condition(y):
            return tf.reduce_sum(y) < 100

        return tf.while_loop(condition, lambda y: [y * 1.5], [tf.abs(x) + 1])[0]

    def choose(x):
        number = tf.cast(tf.reduce_sum(x) > 0, tf.int32)
        return tf.switch_case(number, [lambda: x + 1, lambda: x * 2, lambda: -x])

    def branch(x):
        positive_sum = tf.reduce_sum(x) > 0
        return tf.cond(
            positive_sum, lambda: tf.math.log1p(tf.abs(x)), lambda: -tf.math.log1p(x * x)
        )

    yield "While", count, [row]
    yield "While of values", grow, [row]
    yield "If with a chip operator", branch, [row]
    yield "Case", choose, [row]
    yield "map_fn", lambda x: tf.map_fn(lambda y: tf.reduce_sum(y * y) + y, x), [rows]
    yield "scan", lambda x: tf.scan(lambda a, y: a * 0.5 + y, x), [rows]
    yield "TensorArray", _use_array, [rows]


def _use_array(x):
    source = tf.TensorArray(tf.float32, 4, element_shape=[3], clear_after_read=False).unstack(x)
    target = tf.TensorArray(tf.float32, 4, element_shape=[3])

    def step(i, t):
        return (i + 1, t.write(i, source.read(3 - i) * 2))

    target = tf.while_loop(lambda i, _: i < 4, step, [0, target])[1]
    return target.stack(), source.gather([1, 0])


FAMILIES: dict[str, Callable[[], Iterator[Case]]] = {
    function.__name__: function
    for function in (
        elementwise,
        casts,
        binary,
        reductions,
        sums_and_sorts,
        losses,
        shapes,
        linear_algebra,
        convolutions,
        control_flow,
    )
}
