"""A stranger's model whose load never ends costs the server's other models nothing."""

import hostile_graphs
import hostile_loads
import pytest
import tritonclient.http as httpclient
from poplar_triton.serving.server import TritonServer

LIMIT = 'parameters [{ key: "sim_load_sec" value: { string_value: "1" } }]\n'


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    repository = tmp_path / "repository"
    hostile_loads.write_repository(repository)
    folder = repository / hostile_loads.NAME
    monkeypatch.setitem(hostile_loads.GRAPHS, "endless_inference", hostile_graphs.endless_inference)
    hostile_loads.write_graph(folder, "endless_inference", 0)
    config = (folder / "config.pbtxt").read_text().partition("parameters")[0]
    (folder / "config.pbtxt").write_text(f"{config}{LIMIT}instance_group [{{ kind: KIND_CPU }}]\n")
    return repository


def test_the_other_model_is_ready_and_the_endless_one_is_named(repository, tmp_path):
    with TritonServer(repository, log=tmp_path / "log") as server:
        with httpclient.InferenceServerClient(server.http_url) as client:
            states = {model["name"]: model for model in client.get_model_repository_index()}
            assert hostile_loads.check_sound(client) == []
        assert states[hostile_loads.NAME]["state"] == "UNAVAILABLE"
        reason = "model 'hostile': it was not ready within 1 s, and its process was ended"
        assert reason in states[hostile_loads.NAME]["reason"]
