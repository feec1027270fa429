"""Paced models on a real tritonserver: no answer comes before its modelled time.

Lateness of the CPU is counted.
"""

import concurrent.futures
import copy
import dataclasses
import itertools
import time

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from compiled_models import compile_once
from life_cycle_models import MODES, set_mode, write_model
from onnx import TensorProto, helper
from poplar_triton.serving.server import TritonServer
from sample_models import make_model
from triton_clients import infer, read_metric
from waiting import wait_until

pytestmark = pytest.mark.slow

BATCH, WIDTH = 4, 16
STEPS = 1000
"""Number of chained operators: some 0.4 ms on a CPU, 0.1 ms modelled for a program of no cycles."""
SLOW_CYCLES, CLOCK_HZ = 300_000_000, 1_500_000_000
"""Cycles of a batch of the slow chip, 0.2 s on a C600, and clock rate of a C600."""
REQUESTS = 4


def steps_model():
    tensors = ["x", *(f"h{step}" for step in range(1, STEPS)), "y"]
    nodes = [
        helper.make_node("Softmax", [source], [target])
        for source, target in itertools.pairwise(tensors)
    ]
    spec = (TensorProto.FLOAT, ["n", WIDTH])
    return make_model(nodes, {"x": spec}, {"y": spec}, {})


def write_paced(folder, mode, cycles):
    """Write a model whose batch takes `cycles` on the modelled chip.

    Each request is a whole batch, and requests are not joined.
    """
    paced = 'parameters { key: "sim_timing" value: { string_value: "paced" } }'
    write_model(
        folder,
        steps_model(),
        set_mode(mode),
        paced,
        ("max_batch_size: 4000", f"max_batch_size: {BATCH}"),
    )
    compiled = copy.copy(compile_once(steps_model(), batch=BATCH))
    programs = tuple(
        dataclasses.replace(p, cycles=cycles if p.cycles else 0)
        for p in compiled.executable.programs
    )
    compiled.executable = dataclasses.replace(compiled.executable, programs=programs)
    compiled.export(folder / "1/executable.popef")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paced")
    for mode in MODES:
        write_paced(folder / "repository" / f"slow_chip_{mode}", mode, SLOW_CYCLES)
        write_paced(folder / "repository" / f"fast_chip_{mode}", mode, 0)
    with TritonServer(folder / "repository", log=folder / "log") as running:
        yield running


def ask_at_once(server, model):
    """Return the seconds from the first request to each answer, in ascending order."""
    x = np.ones((BATCH, WIDTH), np.float32)

    def ask(_):
        with grpcclient.InferenceServerClient(server.grpc_url) as client:
            np.testing.assert_allclose(
                infer(client, model, {"x": x})["y"].sum(axis=1), 1, rtol=1e-5
            )
        return time.monotonic() - began

    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(REQUESTS) as pool:
        return sorted(pool.map(ask, range(REQUESTS)))


@pytest.mark.parametrize("mode", MODES)
def test_no_answer_comes_before_the_modelled_chip_would_have_given_it(server, mode):
    """Requests that arrive together run one after another, each for its modelled time."""
    for number, seconds in enumerate(ask_at_once(server, f"slow_chip_{mode}"), start=1):
        assert seconds >= number * SLOW_CYCLES / CLOCK_HZ


@pytest.mark.parametrize("mode", MODES)
def test_batches_that_take_the_cpu_longer_than_the_modelled_chip_are_counted(server, mode):
    model = f"fast_chip_{mode}"
    ask_at_once(server, model)

    def counted():
        return [
            read_metric(server.metrics_url, f"poplar_{name}_total", model=model)
            for name in ("batches", "late_batches")
        ]

    wait_until(lambda: counted() == [REQUESTS, REQUESTS], "every batch is counted as late")
    assert (
        read_metric(server.metrics_url, "poplar_modelled_seconds_total", model=model)
        >= REQUESTS * 100e-6
    )
    assert read_metric(server.metrics_url, "poplar_ipu_seconds_total", model=model) == 0
