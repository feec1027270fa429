"""Model repositories whose path is no ASCII. The Python of Triton's stub has the locale C, whatever
the environment says."""

from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as httpclient
from compiled_models import compile_once
from life_cycle_models import SYNCHRONOUS, exchange, set_mode
from poplar_triton.serving.server import TritonServer
from poprt.triton.model_folder import write_triton_model
from sample_models import linear_model
from triton_clients import infer

pytestmark = pytest.mark.slow

MODELS = ("synchronous", "asynchronous", "isolated", "renamed", "linked")


def add_parameter(folder, name, value):
    line = f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'
    exchange(folder / "config.pbtxt", SYNCHRONOUS, f"{SYNCHRONOUS}\n{line}")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("données-日本") / "modèles"
    for name in (*MODELS, "broken"):
        write_triton_model(compile_once(linear_model()), repository / name)
    exchange(repository / "asynchronous" / "config.pbtxt", *set_mode("asynchronous"))
    add_parameter(repository / "isolated", "sim_isolation", "process")
    version = repository / "renamed" / "1"
    (version / "executable.popef").rename(version / "exécutable.popef")
    (version / "name_map.json").rename(version / "nøms.json")
    add_parameter(repository / "renamed", "executable_path", "exécutable.popef")
    add_parameter(repository / "renamed", "name_map_file_path", "nøms.json")
    file = repository / "linked" / "1" / "executable.popef"
    file.rename(repository.parent / "ünd.popef")
    file.symlink_to(repository.parent / "ünd.popef")
    (repository / "broken" / "1" / "executable.popef").write_bytes(b"no PopEF")
    with TritonServer(repository) as server:
        yield server


@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_served_from_a_folder_whose_name_is_no_ascii(server, model):
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    with httpclient.InferenceServerClient(server.http_url) as client:
        np.testing.assert_array_equal(infer(client, model, {"x": x})["z"], 2 * x)


def test_an_error_has_the_path_as_it_is(server):
    (reason,) = server.failed_models().values()
    assert str(Path(server.model_repository, "broken", "1", "executable.popef")) in reason
    assert "got a text file;" in reason
