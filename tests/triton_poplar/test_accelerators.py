"""Tests of execution accelerators in a configuration, in Triton's JSON form."""

import numpy as np
import pytest
from triton_poplar.accelerators import read_accelerators
from triton_poplar.errors import ModelConfigError
from triton_poplar.instance_state import ModelInstanceState
from triton_poplar.model_state import ModelState
from triton_poplar.request import Request


def make_config(cpu=(), gpu=()):
    lists = {"cpu_execution_accelerator": list(cpu), "gpu_execution_accelerator": list(gpu)}
    return {"name": "m", "optimization": {"execution_accelerators": lists}}


def names(config, gpu=None):
    return [each.name for each in read_accelerators(config, gpu)]


def test_an_instance_uses_the_accelerators_of_its_kind():
    both = make_config([{"name": "openvino"}], [{"name": "tensorrt"}, {"name": "cuda"}])
    assert names({"name": "m"}) == []
    assert names(both) == ["openvino"]
    assert names(both, gpu=0) == ["tensorrt", "cuda"]
    assert names({"name": "m"}, gpu=0) == ["cuda"]


def test_the_gpu_is_that_of_the_instance_unless_a_parameter_names_another():
    (chosen,) = read_accelerators({"name": "m"}, 2)
    assert chosen.settings() == {"device_id": "2"}
    given = make_config(gpu=[{"name": "cuda", "parameters": {"device_id": "1"}}])
    assert read_accelerators(given, 2)[0].settings() == {"device_id": "1"}


@pytest.mark.parametrize(
    ("lists", "told"),
    [
        ({"cpu": [{"name": "openvin"}]}, "model 'm': cpu_exec.*'openvin'.*did you mean openvino"),
        ({"cpu": [{"name": "cuda"}]}, "accelerators of the CPU are openvino"),
        ({"gpu": [{"name": "openvino"}]}, "gpu_exec.*of the GPU are cuda, tensorrt"),
        ({"cpu": [{}]}, "'' is not known"),
        ({"cpu": [{"name": "openvino"}] * 2}, "named twice"),
        ({"cpu": [{"name": "openvino", "parameters": {"precision": "INT4"}}]}, "FP32 or FP16"),
    ],
)
def test_a_bad_entry_of_either_list_is_rejected_on_every_instance(lists, told):
    for gpu in (None, 0):
        with pytest.raises(ModelConfigError, match=told):
            read_accelerators(make_config(**lists), gpu)


@pytest.mark.parametrize("isolation", ["none", pytest.param("process", marks=pytest.mark.slow)])
def test_an_instance_answers_with_openvino(linear, compile_popef, tmp_path, isolation):
    pytest.importorskip("simipu.engines.openvino_package")
    compile_popef(linear, name="m/1/executable.popef")
    config = make_config([{"name": "openvino", "parameters": {"num_of_threads": "1"}}])
    config |= {
        "max_batch_size": 8,
        "parameters": {"sim_isolation": {"string_value": isolation}},
    }
    instance = ModelInstanceState(ModelState(config, tmp_path / "m" / "1"), "m_0")
    request = Request(instance.model_state, {"x": np.ones((3, 4), np.float32)}, ())
    instance.execute([request])
    assert request.error is None
    np.testing.assert_array_equal(request.outputs()["z"], np.full((3, 4), 2, np.float32))
    assert instance.kernels == "openvino"
    instance.close()
