"""Folders with files that are named like modules, as those of projects that train a network are."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.http as httpclient
from compiled_models import compile_once
from life_cycle_models import SYNCHRONOUS, exchange
from poplar_triton.serving.server import TritonServer
from poprt.triton.model_folder import write_triton_model
from sample_models import linear_model
from server_processes import TfServing
from triton_clients import infer

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
IMPORTS = """
import json, sys
import poplar_triton.serving.command, poplar_triton.tfserving.worker, poprt.cli.command
import popef.commands.dump, triton_poplar.instance_state, simipu, asyncio, onnxruntime, queue
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
PYTHON_MODEL = """
import os, numpy as np, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        text = open("label.txt").read()
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError(text)) for _ in requests]
"""
OPENS_A_FILE = 'backend: "python" input { name: "x" data_type: TYPE_FP32 dims: [1] } '
OPENS_A_FILE += 'output { name: "y" data_type: TYPE_FP32 dims: [1] }'


@pytest.fixture(scope="module")
def names():
    """Names of all modules that the commands, the server's stubs and their models import."""
    listed = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True
    )
    found = {*json.loads(listed.stdout), "model", "utils", "triton_python_backend_utils", "1"}
    found |= {"c_python_backend_utils", "sitecustomize", "numpy", "onnx", "config"}
    return sorted(name for name in found if name.isidentifier() or name == "1")


@pytest.fixture(params=["files", "packages"])
def project(request, tmp_path, names):
    """Return a folder with a module of each name, that leaves a mark if it is imported."""
    repository = tmp_path / "models"
    for model in ("plain", "isolated"):
        write_triton_model(compile_once(linear_model()), repository / model)
    isolated = 'parameters { key: "sim_isolation" value { string_value: "process" } }'
    exchange(repository / "isolated" / "config.pbtxt", SYNCHRONOUS, f"{SYNCHRONOUS}\n{isolated}")
    (repository / "script" / "1").mkdir(parents=True)
    (repository / "script" / "config.pbtxt").write_text(OPENS_A_FILE)
    (repository / "script" / "1" / "model.py").write_text(PYTHON_MODEL)
    (tmp_path / "label.txt").write_text("read here")
    mark = tmp_path / "imported"
    code = f"open({str(mark)!r}, 'a').write(__name__ + '\\n')\nraise ImportError(__name__)\n"
    for name in names:
        if request.param == "files":
            (tmp_path / f"{name}.py").write_text(code)
        else:
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "__init__.py").write_text(code)
    return tmp_path


def imported(project):
    mark = project / "imported"
    return mark.read_text().split() if mark.exists() else []


def test_a_server_serves_from_a_folder_with_modules_of_any_name(project, monkeypatch):
    monkeypatch.chdir(project)
    options = ["--log-file=logs.txt", "--trace-config=triton,file=traces.json"]
    options += ["--trace-config=level=TIMESTAMPS", "--trace-config=rate=1"]
    with TritonServer(Path("models"), options=options) as server:
        assert server.failed_models() == {}
        client = httpclient.InferenceServerClient(server.http_url)
        x = np.ones((2, 4), np.float32)
        for model in ("plain", "isolated"):
            np.testing.assert_array_equal(infer(client, model, {"x": x})["z"], 2 * x)
        # Relative paths of other models mean what they mean with a plain tritonserver.
        with pytest.raises(httpclient.InferenceServerException, match="read here"):
            infer(client, "script", {"x": np.ones(1, np.float32)})
        client.close()
    assert imported(project) == []
    assert (project / "logs.txt").stat().st_size
    assert list(project.glob("traces.json*"))


def test_commands_run_in_a_folder_with_modules_of_any_name(project):
    """The compiler folds constants, and reads the models, in Python processes of its own."""
    onnx.save(linear_model(), project / "linear.onnx")
    outputs = ["--batch_size", "2", "--export_popef", "--output_dir", "out"]
    commands = [
        [BIN / "popef_dump", "models/plain/1/executable.popef"],
        [BIN / "popef", "--version"],
        [BIN / "poplar-triton", "doctor"],
        [BIN / "poprt", "--input_model", "linear.onnx", *outputs],
        [sys.executable, "-m", "poprt", "--input_model", "linear.onnx", *outputs],
    ]
    if (project / "runpy.py").exists() or (project / "runpy").exists():
        commands.pop()  # Python itself imports these with -m, before anything of ours
    for command in commands:
        ended = subprocess.run(
            list(map(str, command)), cwd=project, capture_output=True, text=True, check=False
        )
        assert (ended.returncode, imported(project)) == (0, []), (command, ended.stderr)


def test_tfserving_serves_from_a_folder_with_modules_of_any_name(project, tmp_path_factory):
    words = ("models", "--processes", "2")
    with TfServing(
        *words, log=tmp_path_factory.mktemp("log") / "log", working_folder=project
    ) as server:
        for model in ("plain", "isolated"):
            url = f"{server.rest_url}/{model}:predict"
            body = json.dumps({"instances": [{"x": [1, 2, 3, 4]}]}).encode()
            with urllib.request.urlopen(url, body) as answer:
                assert json.load(answer)["predictions"][0]["z"] == [2, 4, 6, 8]
    assert imported(project) == []
