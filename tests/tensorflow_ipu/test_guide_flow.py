"""The flow of the backend's guide, end to end: a script of TensorFlow, its PopEF files, a server."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.tensorflow, pytest.mark.server, pytest.mark.slow]
pytest.importorskip("tensorflow")
if importlib.util.find_spec("pytriton") is None:
    pytest.skip("needs a tritonserver", allow_module_level=True)

import tritonclient.http as httpclient  # noqa: E402
from poplar_triton.serving.server import TritonServer  # noqa: E402

SCRIPT = Path(__file__).parents[2] / "examples" / "tensorflow_serving.py"
CONFIG = """
backend: "poplar"
max_batch_size: 256
input [{ name: "input" data_type: TYPE_FP32 dims: [ 8 ] }]
output [
  { name: "my_output" data_type: TYPE_FP32 dims: [ 3 ] },
  { name: "my_other_output" data_type: TYPE_FP32 dims: [ 1 ] }
]
parameters [{ key: "synchronous_execution" value: { string_value: "1" } }]
"""
NAMES = {"infeed_1.0": "input", "outfeed_2.0": "my_output", "outfeed_2.1": "my_other_output"}
COUNT = """
import atexit, runpy, sys
from tensorflow_ipu.execution import counters
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print("compiled", counters.compiled, "loaded", counters.loaded)
"""


def run_script(folder: Path, *arguments: str) -> str:
    environment = {
        **os.environ,
        "TF_POPLAR_FLAGS": "--executable_cache_path=modelA",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    done = subprocess.run(
        [sys.executable, "-c", COUNT, str(SCRIPT), "answers", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=[False, True], ids=["exported", "frozen"])
def served(request, tmp_path_factory):
    """Run the script twice, and make the model's folder as the guide says."""
    folder = tmp_path_factory.mktemp("guide")
    arguments = ["--frozen"] if request.param else []
    said = [run_script(folder, *arguments) for _ in range(2)]
    (executable,) = (folder / "modelA").glob("*.poplar_exec")
    assert int(executable.stem, 16)
    version = folder / "models" / "my_model" / "1"
    version.mkdir(parents=True)
    executable.rename(version / "executable.popef")
    weights = folder / "answers" / "weights.popef"
    assert weights.exists() != request.param
    if weights.exists():
        weights.rename(version / "weights.popef")
    (version / "name_map.json").write_text(json.dumps(NAMES))
    (version.parent / "config.pbtxt").write_text(CONFIG)
    return folder, said


def test_the_second_run_compiles_nothing(served):
    _, said = served
    assert said[0].splitlines()[-1] == "compiled 1 loaded 0"
    assert said[1].splitlines()[-1] == "compiled 0 loaded 1"


def test_popef_dump_prints_the_anchors_that_the_guide_maps(served):
    folder, _ = served
    done = subprocess.run(
        [
            Path(sys.executable).with_name("popef_dump"),
            folder / "models" / "my_model" / "1" / "executable.popef",
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    text = done.stdout + done.stderr
    assert 'Read OpaqueBlob: {"name": "tensorflow", "executable": "' in text
    assert '{ "name": "infeed_1.0",\n            "handle": "infeed_1.0",' in text
    for name in NAMES:
        assert f'"name": "{name}"' in text
    assert '"programFlow": {"load": ["0"], "main": ["1"], "save": ["2"]}' in text


def test_a_server_gives_the_answers_of_the_session(served):
    folder, _ = served
    answers = np.load(folder / "answers" / "answers.npz")
    with (
        TritonServer(folder / "models", log=folder / "tritonserver.log") as server,
        httpclient.InferenceServerClient(server.http_url) as client,
    ):
        for number, images in enumerate(answers["images"]):
            tensor = httpclient.InferInput("input", images.shape, "FP32")
            tensor.set_data_from_numpy(images)
            answer = client.infer("my_model", [tensor])
            for name, key in (("my_output", "outputs"), ("my_other_output", "largest")):
                expected = answers[key][number]
                assert answer.as_numpy(name).tobytes() == expected.tobytes()
