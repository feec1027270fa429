"""`is_ready` of the backend's model.py, called as Triton's stub does.

The stub calls it beside `execute`, from another thread.
"""

import importlib.util
import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from triton_poplar.request import Request
from waiting import PATIENCE_SECONDS

MODEL_FILE = Path(__file__).resolve().parents[2] / "backend" / "poplar" / "model.py"


class TritonModelException(Exception):
    pass


class NoMetrics:
    """Metric class of a server whose metrics are off."""

    COUNTER = GAUGE = 0

    def __init__(self, **_):
        raise TritonModelException("metrics are off")


@pytest.fixture
def load_model(linear, compile_popef, tmp_path, monkeypatch):
    compile_popef(linear, name="linear/1/executable.popef")
    stub = SimpleNamespace(
        TritonModelException=TritonModelException,
        MetricFamily=NoMetrics,
        Logger=SimpleNamespace(log_warn=lambda _: None, log_info=lambda _: None),
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stub)
    spec = importlib.util.spec_from_file_location("poplar_model", MODEL_FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = []

    def load(**parameters):
        config = {
            "name": "linear",
            "max_batch_size": 100,
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["4"]}],
            "output": [
                {"name": "y", "data_type": "TYPE_FP32", "dims": ["3"]},
                {"name": "z", "data_type": "TYPE_FP32", "dims": ["4"]},
            ],
            "parameters": {name: {"string_value": value} for name, value in parameters.items()},
        }
        model = module.TritonPythonModel()
        model.initialize(
            {
                "model_config": json.dumps(config),
                "model_repository": str(tmp_path / "linear"),
                "model_version": "1",
                "model_instance_name": "linear_0_0",
                "model_instance_kind": "CPU",
                "model_instance_device_id": "0",
            }
        )
        made.append(model)
        return model

    yield load
    for model in made:
        model.finalize()


@pytest.mark.parametrize("synchronous", ["0", "1"])
def test_an_instance_is_ready_from_its_load_until_its_end(load_model, synchronous):
    model = load_model(synchronous_execution=synchronous)
    assert model.is_ready() is True  # Triton accepts only a bool
    model.finalize()
    assert model.is_ready() is False


@pytest.mark.parametrize("name", ["session linear_0_0", "responses"])
def test_an_instance_that_has_lost_a_thread_of_its_answers_is_not_ready(load_model, name):
    model = load_model()
    thread = next(each for each in threading.enumerate() if each.name == name)
    if name == "responses":
        model._answers.put(None)
    else:
        model._instance.session._queues.disconnectAll()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert model.is_ready() is False


@pytest.mark.slow
def test_an_instance_whose_child_died_is_ready_and_answers(load_model):
    model = load_model(synchronous_execution="1", sim_isolation="process")
    instance = model._instance
    child = instance.session._engine._mains[5].graph.pid
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert model.is_ready() is True
    request = Request(instance.model_state, {"x": np.ones((1, 4), np.float32)}, (), None)
    instance.execute([request])
    np.testing.assert_array_equal(request.outputs()["z"], np.full((1, 4), 2))


def test_a_run_in_progress_does_not_delay_the_answer(load_model):
    model = load_model(synchronous_execution="1")
    instance = model._instance
    gate, entered = threading.Event(), threading.Event()
    compute = instance.session._engine._mains[5].compute

    def wait(*arguments):
        entered.set()
        gate.wait(PATIENCE_SECONDS)
        return compute(*arguments)

    instance.session._engine._mains[5].compute = wait
    request = Request(instance.model_state, {"x": np.ones((1, 4), np.float32)}, (), None)
    run = threading.Thread(target=instance.execute, args=[[request]])
    run.start()
    try:
        assert entered.wait(PATIENCE_SECONDS)
        assert model.is_ready() is True
        assert run.is_alive()
    finally:
        gate.set()
        run.join(PATIENCE_SECONDS)
