"""Networks whose memory on a real IPU is published: by category, or whether they fit.

The categories are those of Poplar's reports, as the tests of graphcore/popliner
(tests/test_profile.py, tests/test_popart_bert_inf.py) and of graphcore/ipu_tensorflow_addons
(pva_utils_test.py) print them; sums over all tiles are divided by these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import networks
import onnx
from onnx import TensorProto
from poplar_triton.profile.source import open_source
from poprt.pipeline import estimate
from published import converter_options, published_models
from simipu.chip.target import TARGETS
from simipu.cost import CostOptions, Estimate

MK2, C600 = TARGETS["ipu2"], TARGETS["ipu21"]


def bert_large(batch: int, sequence: int = 128, layers: int = 24) -> onnx.ModelProto:
    """Return BERT-Large as graphcore/examples' PopART code writes it: one product for queries, keys
    and values."""
    net = networks.Builder()
    hidden, heads = 1024, 16
    ids, places = (
        net.input(name, [batch * sequence], TensorProto.INT32) for name in ("ids", "positions")
    )
    mask = net.input("mask", [batch, 1, 1, sequence])

    def norm(x: str) -> str:
        return net.add("LayerNormalization", x, net.weight(hidden), net.weight(hidden))

    def heads_of(x: str, order: list[int]) -> str:
        shape = net.integers(batch, sequence, heads, hidden // heads)
        return net.add("Transpose", net.add("Reshape", x, shape), perm=order)

    def part(x: str, i: int) -> str:
        return net.add("Slice", x, *map(net.integers, (i * hidden, (i + 1) * hidden, 1)))

    words = net.add("Gather", net.weight(30_522, hidden), ids, axis=0)
    x = norm(net.add("Add", words, net.add("Gather", net.weight(512, hidden), places, axis=0)))
    for _ in range(layers):
        joined = net.add("MatMul", x, net.weight(hidden, 3 * hidden))
        query, value = (heads_of(part(joined, i), [0, 2, 1, 3]) for i in (0, 2))
        key = heads_of(part(joined, 1), [0, 2, 3, 1])
        scores = net.add("Add", net.add("Mul", net.add("MatMul", query, key), net.weight(1)), mask)
        y = net.add("MatMul", net.add("Softmax", scores, axis=-1), value)
        y = net.add("Transpose", y, perm=[0, 2, 1, 3])
        y = net.add("Reshape", y, net.integers(batch * sequence, hidden))
        x = norm(net.add("Add", net.add("MatMul", y, net.weight(hidden, hidden)), x))
        y = net.add(
            "Add", net.add("MatMul", x, net.weight(hidden, 4 * hidden)), net.weight(4 * hidden)
        )
        y = net.add("MatMul", net.add("Gelu", y), net.weight(4 * hidden, hidden))
        x = norm(net.add("Add", net.add("Add", y, net.weight(hidden)), x))
    return net.model(net.add("MatMul", x, net.weight(hidden, 2)))


def efficientnet(batch: int = 4, size: int = 224) -> onnx.ModelProto:
    """EfficientNet-EdgeTPU-L without its head, as TensorFlow's optimiser leaves it: each norm's
    product is in the convolution, its sum behind it.

    The profile says neither batch nor size; its activations (12,845,056 bytes after the first
    expansion) are those of four pictures of 224 x 224 in half.
    """
    net = networks.Builder()

    def conv(x: str, source: int, target: int, kernel: int, stride: int = 1, group: int = 1) -> str:
        shape = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        y = net.add(
            "Conv", x, net.weight(target, source // group, kernel, kernel), group=group, **shape
        )
        return net.add("Add", y, net.weight(target, 1, 1))

    x, source = net.add("Relu", conv(net.input("x", [batch, 3, size, size]), 3, 40, 3, 2)), 40
    for repeats, kernel, stride, expansion, target, fused in (
        (2, 3, 1, 4, 32, True),
        (3, 3, 2, 8, 40, True),
        (6, 3, 2, 8, 56, True),
        (7, 5, 2, 8, 112, False),
        (6, 5, 1, 8, 176, False),
        (3, 5, 2, 8, 232, False),
    ):
        for i in range(repeats):
            inner, step = source * expansion, stride if i == 0 else 1
            y = net.add("Relu", conv(x, source, inner, kernel if fused else 1))
            if not fused:
                y = net.add("Relu", conv(y, inner, inner, kernel, step, inner))
            y = conv(y, inner, target, 1, step if fused else 1)
            x = net.add("Add", y, x) if i else y
            source = target
    return net.model(x)


class Category(NamedTuple):
    """Bytes of a tile for one category of a profile: the model's estimate, and the published
    figure."""

    name: str
    category: str
    predicted: int
    published: int


class Verdict(NamedTuple):
    """Whether a network fits: the model's estimate, and the published result."""

    name: str
    predicted: bool
    published: bool
    tile_bytes: int
    """Modelled bytes of the fullest tile."""


def iter_categories() -> Iterator[Category]:
    """Yield the published profiles.

    BERT-Large and EfficientNet are without sharing, as their operators and layers were listed. The
    exchange code of BERT-Large is that of its first layer's sum for each of them, since Poplar
    shared what was equal.
    """
    alone = CostOptions(enable_outlining=False)
    estimated = estimate(bert_large(1), MK2, alone)
    published = {
        "weights": 453_493,
        "live": 34_600,
        "vertex code": 6_717,
        "vertex state": 17_297,
        "internal exchange code": 24 * 2_115,
        "control code": 22_325,
    }
    yield from _compare("BERT-Large, batch 1", estimated, published)
    estimated = estimate(
        efficientnet(), MK2, CostOptions(partials_type="float", enable_outlining=False)
    )
    published = {"vertex code": 11_808, "vertex state": 22_059, "control code": 8_831}
    yield from _compare(
        "EfficientNet-EdgeTPU-L", estimated, published | {"internal exchange code": 79_581}
    )
    variables = estimated.weight_bytes + estimated.by_memory()["live"]
    yield Category("EfficientNet-EdgeTPU-L", "variables", variables, 116_141)
    estimated = estimate(networks.matmul(16, 4096, 1024, TensorProto.FLOAT), MK2)
    published = {"weights": 11_469, "live": 6_981, "vertex code": 2_422, "vertex state": 90}
    published |= {"internal exchange code": 250, "control code": 70}
    yield from _compare("a dense layer in float", estimated, published)
    yield Category("a dense layer in float", "in all", estimated.peak_tile_bytes, 23_365)


def _compare(name: str, found: Estimate, published: Mapping[str, int]) -> Iterator[Category]:
    """Compare a category by the mean over tiles, except for live memory, because profiles add up
    all tiles."""
    said = found.by_memory()
    for category, size in published.items():
        share = 1.0 if category in ("live", "vertex code") else found.calibration.imbalance
        yield Category(name, category, round(said[category] / share), size)


@dataclass(frozen=True, slots=True)
class Case:
    """A network that ran on one C600, or did not fit."""

    name: str
    builder: str
    """Name of the builder in published_models."""
    batch: int
    fits: bool
    precision: str = "fp16"
    shape: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the builder."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """Options as `published.converter_options` takes them."""
    cost: Mapping[str, Any] = field(default_factory=dict)
    """Fields of CostOptions."""
    mask: Callable[..., str] | None = None
    """Function used in place of published_models' text_mask."""
    keeps_half: tuple[int, ...] = ()
    """Products that stay in half where others are fp8, by their number."""

    def estimate(self) -> Estimate:
        """Return the estimate of the case's model."""
        with TemporaryDirectory() as folder:
            file = Path(folder) / "model.onnx"
            graph = published_models.Graph()
            with patch.object(
                published_models, "text_mask", self.mask or published_models.text_mask
            ):
                getattr(published_models, self.builder)(graph, self.batch, **self.shape)
            graph.save(str(file))
            arguments = converter_options(self.run)
            products = [node.name for node in graph.nodes if node.op_type in ("Conv", "Gemm")]
            if self.keeps_half:
                arguments["fp8_skip_op_names"] = [products[number] for number in self.keeps_half]
            model = open_source(file).convert(None, self.precision, _ignore, **arguments)
            return estimate(model, C600, CostOptions(**self.cost), self.batch)


def _ignore(step: str) -> None:
    """Ignore the steps of a conversion."""


_FIRST, _DOWN, _LAST = 0, 3, -1
"""Indices of ResNet-50's products in published_models.

They are the first convolution, the convolution of the first block's other branch, and the Gemm.
torchvision's export names the second one Conv_13 where Conv_5 is the first.
"""


def _resnet() -> Iterator[Case]:
    """Yield the cases of graphcore/PopRT, examples/resnet50/README.md: with I/O tiles, and without
    any input (synthetic)."""
    for tiles, words in ((32, "32 I/O tiles"), (0, "no I/O tiles")):
        cost = {"num_io_tiles": tiles}
        single = cost | {"partials_type": "float"}
        for batch, fits in (
            (1, True),
            (16, True),
            (32, False),
            (64, False),
            (90, False),
            (96, False),
        ):
            yield Case(
                f"resnet50 fp32 {batch}, {words}", "resnet50", batch, fits, "fp32", cost=single
            )
        for batch, fits in ((1, True), (32, True), (64, True), (90, True), (96, not tiles)):
            yield Case(f"resnet50 fp16 {batch}, {words}", "resnet50", batch, fits, cost=cost)
        for float_layers, name, most in (
            ((_FIRST, _LAST), "fp8 but first and last", 96),
            ((_FIRST, _DOWN, _LAST), "fp8 but first, Conv_13 and last", 90),
            *([] if tiles else [((), "fp8", 64)]),
        ):
            for batch in (1, 64, 90, 96):
                full = f"resnet50 {name} {batch}, {words}"
                yield Case(
                    full,
                    "resnet50",
                    batch,
                    batch <= most,
                    "fp8",
                    cost=cost,
                    keeps_half=float_layers,
                )


def _pairs_mask(graph: Any, batch: int, sequence: int, _: bool) -> str:
    """Build the mask of all pairs of tokens, as in the BERT that bertsquad-12 was exported from.

    It is ones for each token that looks, times the mask of those that it looks at.
    """
    mask = graph.unsq(
        graph.cast(graph.input("attention_mask", batch, sequence, dtype=TensorProto.INT32)), 1
    )
    pairs = graph.expand(mask, batch, sequence, sequence)
    pairs_mask: str = graph.mul(graph.unsq(graph.sub(1, pairs), 1), -1e4)
    return pairs_mask


def _bert_256() -> Iterator[Case]:
    """Yield the cases of graphcore/PopRT, examples/bert/README.md."""
    shape, cost = {"S": 256, "act": "gelu_tanh"}, {"num_io_tiles": 32}
    skipped_types = ["Gelu", "LayerNormalization"]
    for precision, fused, most in (
        ("fp32", False, 2),
        ("fp16", False, 16),
        ("fp16", True, 16),
        ("fp8", False, 32),
        ("fp8", True, 64),
    ):
        run = {"fuse_gelu": fused} | ({} if precision == "fp32" else {"fp32_ops": skipped_types})
        partials = {"partials_type": "float" if precision == "fp32" else "half"}
        for batch in (1, 2, 4, 8, 16, 32, 64):
            name = f"bert-base 256 {precision}{', gelu' if fused else ''} {batch}"
            fits = batch <= most
            yield Case(
                name, "bert", batch, fits, precision, shape, run, cost | partials, _pairs_mask
            )


def _others() -> Iterator[Case]:
    """Yield benchmarks of graphcore/PopRT, and the PopART BERT of graphcore/examples: all of them
    ran."""
    base, large = {"S": 128}, {"S": 128, "L": 24, "H": 1024, "h": 16}
    fused: dict[str, Any] = {"fuse_gelu": True}
    wide = {"use_128bit_conv_unit_load": True}
    tight = wide | {"available_memory_proportion": 0.4}
    single = fused | {"fp32_ops": ["Gelu", "LayerNormalization"]}
    yield Case("bert-base 128 16, 0.4", "bert", 16, True, shape=base, run=fused, cost=tight)
    yield Case("bert-base 128 128, 0.4", "bert", 128, True, shape=base, run=single, cost=tight)
    for batch in (1, 16, 64, 80):
        yield Case(f"bert-base 128 {batch}, 0.6", "bert", batch, True, shape=base, run=fused)
    for batch in (1, 2, 3, 4):
        yield Case(f"bert-large 128 {batch}, 0.6", "bert", batch, True, shape=large, run=fused)
    least = wide | {"available_memory_proportion": 0.15}
    yield Case("bert-large 128 18, 0.15", "bert", 18, True, shape=large, run=fused, cost=least)
    for batch in (1, 64, 356):
        shape = {"S": 128, "v2": True}
        yield Case(f"roformer {batch}", "roformer", batch, True, shape=shape)
    for batch in (8, 32):
        cost = {"available_memory_proportion": 1.0, "num_io_tiles": 32}
        yield Case(f"vit {batch}, 1.0", "vit", batch, True, run=fused, cost=cost)


def cases() -> dict[str, Case]:
    """Return all cases by name."""
    makers: tuple[Callable[[], Iterator[Case]], ...] = (_resnet, _bert_256, _others)
    return {case.name: case for make in makers for case in make()}


def iter_verdicts(names: Iterable[str] = ()) -> Iterator[Verdict]:
    """Yield the verdicts of the cases with those names, or of all."""
    all_cases = cases()
    for name in names or all_cases:
        estimated = all_cases[name].estimate()
        yield Verdict(
            name, estimated.fits, all_cases[name].fits, estimated.fullest.fullest_tile_bytes
        )
