"""Laws of the modelled time and memory of whole networks.

The networks are small variants of the published ones.
They are tested as their exporters wrote them and as the converter leaves them.

Plans are chosen one product at a time, as poplin does. The fastest plan may spread its result less
evenly over the tiles than another one, and then its readers take longer. So changes of the chip and
its options have a bound of 3 %.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from poplar_triton.profile.source import Estimator, ProfileSettings, open_source
from simipu.cost import Estimate

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "data"))
import published_models as published

BATCHES = (1, 3, 16)
SLACK = 1.03
NETWORKS: Mapping[str, tuple[Callable[..., None], Mapping[str, Any]]] = {
    "BERT": (published.bert, {"S": 64, "L": 2, "H": 192, "h": 3, "vocab": 2000}),
    "BERT, packed, GELU by tanh": (
        published.bert,
        {"S": 77, "L": 1, "H": 256, "h": 4, "vocab": 2000, "act": "gelu_tanh", "packed": True},
    ),
    "ALBERT": (
        published.bert,
        {"S": 48, "L": 2, "H": 128, "h": 2, "vocab": 500, "emb": 64, "shared": True},
    ),
    "RoFormer": (published.roformer, {"S": 48, "L": 1, "H": 128, "h": 2}),
    "RoFormer v2": (published.roformer, {"S": 64, "v2": True, "L": 1, "H": 192, "h": 3}),
    "ViT": (published.vit, {"H": 192, "h": 3, "L": 2}),
    "ResNet-50": (published.resnet50, {}),
}


class Network:
    """One network, whose estimates are made once."""

    def __init__(self, name: str, folder: Path) -> None:
        self._build, self._sizes = NETWORKS[name]
        self._folder = folder
        # An Estimator keeps one converted graph: each graph has its own.
        self._profilers: dict[tuple[int, str, bool], Estimator] = {}
        self._found: dict[tuple[Any, ...], Estimate] = {}

    def path(self, batch: int, *, newer: bool = False) -> Path:
        """Return the ONNX file of that batch size with opset 13, or 17 with `newer`."""
        folder = self._folder / f"{batch}-{newer}"
        folder.mkdir(exist_ok=True)
        file = folder / "model.onnx"
        graph = published.Graph()
        self._build(graph, batch, **self._sizes)
        graph.ln_op = newer  # only the opset that is written: norms stay chains
        graph.save(str(file))
        return file

    def estimate(
        self, batch: int, precision: str = "fp16", *, newer: bool = False, **options: Any
    ) -> Estimate:
        key = (batch, precision, newer, *sorted(options.items()))
        if key not in self._found:
            profiler = self._profilers.get((batch, precision, newer)) or Estimator(
                open_source(self.path(batch, newer=newer))
            )
            self._profilers[batch, precision, newer] = profiler
            self._found[key] = profiler.profile(
                ProfileSettings(precision=precision, options=options)
            ).estimate
        return self._found[key]


SLOW = ("ALBERT", "RoFormer", "ViT", "ResNet-50")
"""Networks of the slow tests only: BERT and RoFormer v2 have the operators of all but ResNet-50,
which takes as long as both."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in NETWORKS
    ],
)
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Network:
    return Network(request.param, tmp_path_factory.mktemp("network"))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16", "fp8"])
def test_time_and_memory_rise_with_the_batch(network: Network, precision: str) -> None:
    """Memory may differ by 3 %: more rows may be split in other ways, which need fewer messages."""
    found = [network.estimate(batch, precision) for batch in BATCHES]
    for smaller, larger in pairwise(found):
        assert smaller.cycles < larger.cycles
        assert smaller.seconds_per_batch < larger.seconds_per_batch
        assert smaller.latency_seconds < larger.latency_seconds
        assert smaller.peak_tile_bytes <= 1.03 * larger.peak_tile_bytes


@pytest.mark.parametrize("batch", BATCHES)
def test_narrower_types_take_no_longer(network: Network, batch: int) -> None:
    """Fp8 has its casts and blocks of 32 channels.

    So such small networks gain nothing by it at small batches.
    """
    narrow, half, single = (
        network.estimate(batch, precision) for precision in ("fp8", "fp16", "fp32")
    )
    assert half.cycles < single.cycles
    assert narrow.cycles <= (1.2 if batch < BATCHES[-1] else 1.05) * half.cycles
    assert half.cycles <= network.estimate(batch, partials_type="float").cycles


@pytest.mark.parametrize("batch", [1, pytest.param(3, marks=pytest.mark.slow), 16])
@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("available_memory_proportion", (0.05, 0.1, 0.3, 0.6, 1.0)),
        ("num_io_tiles", (512, 256, 64, 32)),
        ("use_128bit_conv_unit_load", (False, True)),
    ],
)
def test_more_of_the_chip_never_costs_time(
    network: Network, batch: int, option: str, values: tuple[Any, ...]
) -> None:
    times = [network.estimate(batch, **{option: value}).cycles for value in values]
    for less, more in pairwise(times):
        assert more <= SLACK * less, (option, values, times)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "fp8"])
def test_causes_operators_and_memory_sum_to_the_totals(network: Network, precision: str) -> None:
    for options in ({}, {"num_io_tiles": 32}):
        found = network.estimate(3, precision, **options)
        assert sum(found.by_cause().values()) == found.total_cycles * found.target.num_tiles
        assert min(found.by_cause().values()) >= 0
        assert sum(found.by_operator().values()) == found.cycles
        assert sum(operator.cycles for operator in found.operators) == found.cycles
        assert sum(found.by_memory().values()) == found.peak_tile_bytes
        assert not found.fallback_operators


def test_a_newer_opset_changes_nothing(network: Network) -> None:
    older, newer = network.estimate(3), network.estimate(3, newer=True)
    assert older.by_operator() == newer.by_operator()
    assert older.by_memory() == newer.by_memory()
