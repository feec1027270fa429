"""Tests of the profile that `poprt --show_profile` prints of a compiled model, and of the format of
its numbers."""

from __future__ import annotations

import io
import re
from dataclasses import asdict, replace

import onnx
import pytest
from networks import Builder, matmul
from onnx import TensorProto
from poprt import cli
from poprt.performance import model_profile
from poprt.performance.model_profile import (
    CloseVerdicts,
    ExpectedError,
    Profile,
    TypeCost,
    Validation,
    choose_error,
    make_profile,
)
from poprt.performance.table import (
    describe_macs,
    describe_profile,
    describe_seconds,
    list_alive,
    make_table,
    print_profile,
)
from rich.console import Console
from simipu.chip.target import TARGETS
from simipu.cost import CostOptions


def test_poprt_shows_the_profile_of_what_it_compiled(linear, tmp_path, capsys):
    onnx.save(linear, tmp_path / "linear.onnx")
    arguments = [
        "--input_model",
        tmp_path / "linear.onnx",
        "--batch_size",
        2,
        "--export_popef",
        "--output_dir",
        tmp_path,
        "--show_profile",
    ]
    assert cli.main(list(map(str, arguments))) == 0
    out = capsys.readouterr().out
    (cycles,) = re.findall(r"modelled\): (\d+) cycles", out)
    assert f"modelled: {int(cycles):,} cycles" in " ".join(out.split())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 us"),
        (4.2e-8, "0.042 us"),
        (1e-6, "1 us"),
        (999.4e-6, "999 us"),
        (999.9e-6, "1e+03 us"),
        (1e-3, "1 ms"),
        (0.0123456, "12.3 ms"),
        (0.999, "999 ms"),
        (1, "1 s"),
        (12.34, "12.3 s"),
        (1000, "1,000 s"),
        (98765.4, "98,765 s"),
    ],
)
def test_a_time_has_three_digits_in_the_unit_that_suits_it(seconds, text):
    assert describe_seconds(seconds) == text


@pytest.mark.parametrize(
    ("macs", "text"),
    [
        (0, ""),
        (1, "1"),
        (999, "999"),
        (1000, "1 k"),
        (2_345_678, "2.35 M"),
        (10**9, "1 G"),
        (10**13, "1e+04 G"),
    ],
)
def test_multiplications_have_three_digits(macs, text):
    assert describe_macs(macs) == text


def profile_of(model, precision="fp16", target="ipu21", batch=None, **options) -> Profile:
    return make_profile("model", precision, model, TARGETS[target], CostOptions(**options), batch)


def test_types_add_up_their_nodes_and_say_what_bounds_them():
    net = Builder()
    x = net.input("x", [64, 256])
    for _ in range(3):
        x = net.add("MatMul", x, net.weight(256, 256))
    found = profile_of(net.model(net.add("Relu", x)))
    product, relu = found.by_type()
    products = found.estimate.operators[:3]
    assert (product.op_type, product.count, relu.op_type) == ("MatMul", 3, "Relu")
    assert (
        product.cycles
        == product.compute + product.exchange + product.sync
        == sum(each.cycles for each in products)
    )
    assert product.macs == 3 * 64 * 256 * 256
    assert getattr(product, product.bound) == max(product.compute, product.exchange, product.sync)
    assert [TypeCost("", 1, *of, 0).bound for of in ((1, 2, 1), (1, 2, 3), (0, 0, 0))] == [
        "exchange",
        "sync",
        "",
    ]
    assert found.dearest(2) == sorted(found.steps, key=lambda each: -each.cycles)[:2]
    assert len(found.steps) == 4


@pytest.mark.parametrize(
    ("precision", "target", "options", "rate"),
    [
        ("fp32", "ipu21", {}, 16),
        ("fp16", "ipu21", {}, 64),
        ("fp16", "ipu21", {"partials_type": "float"}, 32),
        ("fp8", "ipu21", {}, 128),
        ("fp8", "ipu2", {}, 64),
        ("fp16", "ipu1", {}, 32),
    ],
)
def test_the_peak_is_that_of_precision_and_partial_sums(precision, target, options, rate):
    element = TensorProto.FLOAT if precision == "fp32" else TensorProto.FLOAT16
    found = profile_of(matmul(16, 16, 16, element), precision, target, **options)
    assert found.peak_macs_per_cycle == rate * found.target.num_tiles
    assert found.peak_share(rate * found.target.num_tiles, 2) == 0.5
    assert found.peak_share(5, 0) == 0


def test_a_batch_size_is_given_or_shared_by_the_inputs():
    assert profile_of(matmul(16, 8, 8)).batch_size == 16
    assert profile_of(matmul(16, 8, 8), batch=4).batch_size == 4
    net = Builder()
    scalar = net.model(net.add("Relu", net.input("x", [])))
    assert profile_of(scalar).batch_size == 1


def printed(profile, top=10):
    console = Console(width=300, record=True, file=io.StringIO())
    print_profile(profile, console, top)
    return console.export_text()


def test_the_tables_have_what_the_profile_has():
    found = profile_of(matmul(64, 256, 512), num_ipus=1)
    text = printed(found)
    assert describe_profile(found) in text
    (product,) = found.by_type()
    cells = [
        cell.strip()
        for cell in next(line for line in text.splitlines() if "MatMul" in line).split("│")
    ]
    share = f"{found.peak_share(product.macs, product.cycles):.1%}"
    assert cells[1:-1] == [
        "MatMul",
        "1",
        f"{product.cycles:,}",
        "100.0%",
        "8.39 M",
        share,
        "compute",
    ]
    for size in filter(
        None, (*found.estimate.by_memory().values(), found.estimate.peak_tile_bytes)
    ):
        assert f"{size:,} │ {size / 638976:.1%}" in re.sub(r" +", " ", text)
    causes = found.estimate.by_cause()
    for cause, cycles in causes.items():
        assert f"│ {cause} │ {cycles:,} │ {cycles / sum(causes.values()):.1%} │" in re.sub(
            r" +", " ", text
        )
    assert "IPU" not in text.partition("peak")[2]
    assert found.steps[0].work.plan in text
    assert "rows " in text


def test_several_ipus_have_a_line_each():
    net = Builder()
    x = net.input("x", [64, 256])
    for _ in range(4):
        x = net.add("MatMul", x, net.weight(256, 256))
    found = profile_of(net.model(x), num_ipus=2)
    text = re.sub(r" +", " ", printed(found, top=1))
    for number, ipu in enumerate(found.estimate.ipus):
        parts = (ipu.weight_bytes, ipu.live_bytes, ipu.handed_bytes, ipu.code_bytes)
        assert sum(parts) == ipu.peak_tile_bytes
        sizes = [f"{size:,}" for size in (*parts, ipu.peak_tile_bytes)]
        assert f"│ {number} │ {ipu.cycles:,} │ {' │ '.join(sizes)} │ yes │" in text
    assert found.chip == "2 x C600 (ipu21)"
    assert text.count("rows ") == 1, "one node is asked for"


def test_columns_of_numbers_are_to_the_right():
    table = make_table("name", "number|")
    assert [(column.header, column.justify) for column in table.columns] == [
        ("name", "left"),
        ("number", "right"),
    ]


def test_the_json_says_what_the_estimate_does_and_that_it_is_modelled():
    found = profile_of(matmul(64, 256, 512), num_io_tiles=32)
    told, result = found.as_json(), found.estimate
    assert told["modelled"] is True
    assert (told["model"], told["target"], told["precision"], told["batch_size"]) == (
        "model",
        "ipu21",
        "fp16",
        64,
    )
    for name in (
        "cycles",
        "total_cycles",
        "interval_cycles",
        "seconds_per_batch",
        "samples_per_second",
    ):
        assert told[name] == getattr(result, name)
    for name in (
        "latency_seconds",
        "host_seconds",
        "peak_tile_bytes",
        "fits",
        "fallback_operators",
    ):
        assert told[name] == getattr(result, name)
    for name in ("by_operator", "by_cause", "by_memory"):
        assert told[name] == getattr(result, name)()
    assert told["options"]["num_io_tiles"] == 32
    assert told["tile_bytes"] == 638976
    assert told["assumptions"] == []
    (ipu,) = told["ipus"]
    assert ipu == {
        "cycles": result.cycles,
        "peak_tile_bytes": result.peak_tile_bytes,
        "fits": True,
        "by_memory": result.by_memory(),
    }


@pytest.mark.parametrize(
    "options", [{}, {"num_io_tiles": 32}, {"num_ipus": 2}, {"replication_factor": 4}]
)
def test_the_parts_of_the_latency_add_up_in_text_and_json(options):
    found = profile_of(matmul(64, 256, 512), **options)
    parts = found.latency_parts
    assert found.as_json()["latency_parts"] == asdict(parts)
    assert sum(asdict(parts).values()) == pytest.approx(found.estimate.latency_seconds, rel=1e-12)
    assert (parts.chip_seconds, parts.transfer_seconds) == (
        found.estimate.compute_seconds,
        found.estimate.host_seconds,
    )
    assert (parts.waiting_seconds > 0) == ("num_io_tiles" in options), (
        "for the steps of other batches"
    )
    text = describe_profile(found)
    *told, total = map(float, re.findall(r"([\d.]+) us", text))
    assert len(told) == len(parts.name()) == 3 + ("num_io_tiles" in options)
    assert sum(told) == pytest.approx(total, abs=1e-9), "as it is read, too"
    for shown, seconds in zip(told, parts.name().values(), strict=True):
        assert shown == pytest.approx(1e6 * seconds, abs=0.3)
    assert ("waiting" in text) == ("num_io_tiles" in options)
    assert "half partials on" in text


def group(kind, precision, figures=50, error=0.08, networks=4):
    names = tuple(f"net {number}" for number in range(networks))
    return ExpectedError(kind, precision, networks, figures, error, 0.93, names)


def test_the_error_is_that_of_the_same_kind_or_unknown():
    groups = (
        group("encoder", "fp16", error=0.01),
        group("encoder", "fp8", figures=2, error=0.02),
        group("encoder", None, error=0.03),
        group("dense CNN", "fp8", networks=1, error=0.04),
    )
    found = {
        (kind, precision): choose_error(groups, kind, precision)
        for kind in ("encoder", "dense CNN", "text CNN")
        for precision in ("fp16", "fp8")
    }
    errors = [each and each.median_error for each in found.values()]
    assert errors == [0.01, 0.03, None, 0.04, None, None]
    document = {
        "groups": [asdict(each) for each in groups],
        "layers": ["matmul"],
        "memory": {"least": 0.9, "most": 1.1, "verdicts": 9, "wrong": 2},
    }
    assert Validation.parse(document).groups == groups
    for networks, names in ((1, "net 0"), (2, "net 0 and net 1"), (3, "net 0, net 1 and net 2")):
        assert group("encoder", "fp16", networks=networks).describe() == (
            "for transformer encoders in fp16 validation found a median error of 8 %, 93 % within "
            f"25 % (50 published times of {names}, each network left out of the fit)"
        )


def attention_of(net, rows):
    query, keys = net.input("q", [12, rows, 64]), net.input("k", [12, 64, 128])
    scores = net.add("Softmax", net.add("MatMul", query, keys))
    return net.add("MatMul", scores, net.input("v", [12, 128, 64]))


def convolution_of(net, shape, weights, **attributes):
    return net.add("Conv", net.input("x", shape), net.weight(*weights), **attributes)


def images_of(net, size=32):
    return convolution_of(net, [1, 16, size, size], [16, 16, 3, 3])


def scores_of(net, images):
    pooled = net.add("Flatten", net.add("GlobalAveragePool", images))
    return net.add("MatMul", pooled, net.weight(16, 64))


def enlarged(net, images):
    sizes = net.integers(1, 16, 64, 64)
    return net.add("Resize", images, "", "", sizes, mode="nearest")


def boxes_of(net, images):
    return net.add("Reshape", images, net.integers(1, -1, 4))


def pooled_boxes(net, images):
    boxes, numbers = net.input("boxes", [8, 4]), net.input("numbers", [8], TensorProto.INT64)
    pooled = net.add("RoiAlign", images, boxes, numbers, output_height=4, output_width=4)
    return net.add("MatMul", net.add("Flatten", pooled), net.weight(256, 4))


def scattered(net):
    index = net.input("i", [4096, 16], TensorProto.INT32)
    rows = net.input("x", [512, 16])
    return net.add("ScatterElements", rows, index, net.input("u", [4096, 16]), axis=0)


NETWORKS = {
    "dense CNN": lambda net: scores_of(net, images_of(net)),
    "CNN with maps as outputs": images_of,
    "detection": lambda net: pooled_boxes(net, images_of(net)),
    "depthwise CNN": lambda net: convolution_of(net, [1, 16, 32, 32], [16, 1, 3, 3], group=16),
    "text CNN": lambda net: convolution_of(net, [1, 1, 64, 300], [100, 1, 3, 300]),
    "CNN over time": lambda net: convolution_of(net, [1, 16, 400], [16, 16, 5]),
    "encoder": lambda net: attention_of(net, 128),
    "decoder step": lambda net: attention_of(net, 1),
    "recurrent": lambda net: net.add(
        "LSTM",
        net.input("x", [5, 2, 16]),
        net.weight(1, 64, 16),
        net.weight(1, 64, 16),
        hidden_size=16,
    ),
    "gather and scatter": scattered,
    "MLP": lambda net: net.add("MatMul", net.input("x", [64, 64]), net.weight(64, 64)),
    "audio front end": lambda net: net.add("DFT", net.input("x", [2, 128, 1])),
    "other": lambda net: net.add("Relu", net.input("x", [4])),
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_network_is_of_the_kind_that_its_layers_make_it(kind):
    net = Builder()
    assert profile_of(net.model(NETWORKS[kind](net))).kind == kind


def graph_of(net):
    """Add a product with an adjacency, as of graph networks."""
    rows = net.add("MatMul", net.input("x", [64, 64]), net.weight(64, 64))
    return net.add("MatMul", net.input("edges", [64, 64]), rows)


def attended_images(net):
    """Add convolutions beside attention, as in generators of images."""
    convolved = convolution_of(net, [1, 96, 8, 8], [96, 96, 1, 1])
    rows = net.add(
        "Transpose", net.add("Reshape", convolved, net.integers(1, 96, 64)), perm=[0, 2, 1]
    )
    scores = net.add("Softmax", net.add("MatMul", rows, net.add("Transpose", rows, perm=[0, 2, 1])))
    return net.add("MatMul", scores, rows)


ALIKE = {
    "a detector without its last operator": lambda net: boxes_of(net, images_of(net)),
    "a pyramid": lambda net: scores_of(net, enlarged(net, images_of(net))),
    "a map of several classes": lambda net: enlarged(net, images_of(net)),
    "a generator": lambda net: net.add(
        "ConvTranspose", images_of(net), net.weight(16, 3, 2, 2), strides=[2, 2]
    ),
    "boxes in a network of dense layers": lambda net: pooled_boxes(
        net, net.input("x", [1, 16, 32, 32])
    ),
    "products with an adjacency": graph_of,
    "attention beside convolutions": attended_images,
}


@pytest.mark.parametrize("name", ALIKE)
def test_a_network_that_is_like_a_validated_kind_does_not_get_its_error(name):
    net = Builder()
    found = profile_of(net.model(ALIKE[name](net)))
    assert found.kind not in ("dense CNN", "encoder", "decoder step", "MLP")
    assert found.expected_error is None
    assert "error unknown: " in " ".join(printed(found).split())


def test_layers_without_a_published_time_that_take_much_of_it_make_the_error_unknown():
    net = Builder()
    images, places = net.input("x", [1, 16, 64, 64]), net.input("places", [1, 64, 64, 2])
    sampled = net.add("Reshape", net.add("GridSample", images, places), net.integers(1024, 64))
    found = profile_of(net.model(net.add("MatMul", sampled, net.weight(64, 64))))
    assert found.kind == "MLP"
    assert sum(found.unvalidated_layers.values()) > 0.2
    assert found.expected_error is None
    told = " ".join(printed(found).split())
    assert "error unknown: no validated network has its layers of " in told
    assert "median error" not in told


def test_a_classifiers_softmax_makes_no_transformer():
    net = Builder()
    product = net.add("MatMul", net.input("x", [64, 64]), net.weight(64, 64))
    assert profile_of(net.model(net.add("Softmax", product))).kind == "MLP"


def test_kinds_and_layers_without_validation_are_marked():
    net = Builder()
    found = profile_of(net.model(NETWORKS["text CNN"](net)))
    assert found.as_json()["expected_error"] is None
    assert found.as_json()["network_kind"] == "text CNN"
    assert found.as_json()["unvalidated_layers"] == {"text convolution": pytest.approx(1.0)}
    told = " ".join(printed(found).split())
    assert "error unknown: convolutional networks over text were never validated" in told
    assert "layers of text convolution (100%) of the time" in told


def test_a_verdict_near_the_limit_says_how_many_of_the_published_were_wrong(monkeypatch):
    found = profile_of(matmul(64, 256, 512))
    share = found.estimate.fullest.fullest_tile_bytes / found.target.bytes_per_tile
    assert found.close_verdicts is None
    assert "close" not in printed(found)
    near = CloseVerdicts(share - 0.01, share + 0.01, 9, 2)
    monkeypatch.setattr(model_profile, "read_validation", lambda: Validation(memory=near))
    assert "fits (close: 2 of 9 published verdicts were" in " ".join(printed(found).split())
    assert found.as_json()["fits_closely"] == asdict(near)


def test_errors_of_the_validation_can_be_read():
    found = model_profile.read_validation()
    assert {"dense CNN", "encoder"} <= {each.kind for each in found.groups}
    assert all(0 <= each.within_25 <= 1 and each.median_error >= 0 for each in found.groups)
    assert {"convolution", "matmul", "softmax"} <= found.layers
    assert found.memory.least < 1 < found.memory.most
    assert 0 < found.memory.wrong < found.memory.verdicts


def test_live_tensors_at_the_peak_are_listed_largest_first():
    found = profile_of(matmul(64, 256, 512))
    peak = found.estimate.peak
    alive = list_alive(peak)
    assert [size for _, size in alive] == sorted((size for _, size in alive), reverse=True)
    assert (f"copies of MatMul {peak.node}", peak.temporary_bytes) in alive
    assert set(peak.tensors) < set(alive)
    text = re.sub(r" +", " ", printed(found))
    assert f"live while {peak.node} runs" in text
    for name, size in alive[:5]:
        assert f"│ {name} │ {size:,} │ {size / 638976:.1%} │" in text
    assert list_alive(replace(peak, temporary_bytes=0)) == sorted(
        peak.tensors, key=lambda each: -each[1]
    )
