"""Files: what they hold, who opens their pickle, and those of a real SDK.

No file of a real SDK is available here. `write_sdk_file` builds one by the layout that PopTorch's
sources show: classes under the real module's paths with the real attributes, pickle protocol 4, in
an opaque blob behind PopART's metadata, executable, blob and tensors.
"""

import os
import pickle
import subprocess
import sys
import types
import zipfile
from io import BytesIO

import pytest

torch = pytest.importorskip("torch")

import poptorch  # noqa: E402
from model_runtime import ModelRunner  # noqa: E402
from poptorch import enums  # noqa: E402
from poptorch.execution import files  # noqa: E402
from waiting import PATIENCE_SECONDS  # noqa: E402

import popef  # noqa: E402
from popef.commands import cli, dump  # noqa: E402

SDK_VERSION = "3.4.0-1234567890"


class Scale(torch.nn.Module):
    """Module with a weight and a number that is no tensor."""

    def __init__(self, factor=2.0):
        super().__init__()
        self.linear = torch.nn.Linear(3, 5)
        self.factor = factor

    def forward(self, x, shift=None):
        y = self.linear(x) * self.factor
        return y if shift is None else y + shift


CACHING_SCRIPT = """
import sys, poptorch, torch
torch.manual_seed(0)
options = poptorch.Options().enableExecutableCaching(sys.argv[1])
model = poptorch.inferenceModel(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU()), options)
values = model(torch.ones(2, 4)).tolist()
print("read" if model._loaded.compilation.executable.from_file else "compiled", values)
"""


class Hostile:
    """Object that writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.fixture
def x():
    torch.manual_seed(3)
    return torch.randn(4, 3)


def write_hostile(path, trap, x):
    """Write a good file whose pickle writes a file instead."""
    model = poptorch.inferenceModel(Scale())
    model.compileAndExport(path, x)
    executable = files.Executable(path)
    executable.appendOpaqueBlobs({files.BLOB: pickle.dumps(Hostile(trap))})
    executable.export(path)


def test_a_loaded_model_answers_as_the_one_that_was_saved(tmp_path, x):
    path = tmp_path / "new" / "scale.popef"
    model = poptorch.inferenceModel(Scale())
    model.compileAndExport(path, x)
    assert torch.equal(poptorch.load(path)(x), model(x))
    assert torch.equal(poptorch.load(path, lambda options: options.randomSeed(3))(x), model(x))


def test_a_loaded_model_draws_on_as_the_one_that_was_saved(tmp_path):
    path, x = tmp_path / "dropout.popef", torch.ones(4, 16)
    model = poptorch.inferenceModel(torch.nn.Dropout(0.5).train())
    model.compile(x)
    earlier = model(x)
    model.save(path)
    state = model.rng_state
    following = [model(x) for _ in range(2)]
    assert not torch.equal(earlier, following[0])
    assert not torch.equal(*following)
    model.rng_state = state
    loaded = poptorch.load(path)
    for expected in following:
        assert torch.equal(model(x), expected)
        assert torch.equal(loaded(x), expected)


def test_a_file_without_its_model_needs_the_model_to_be_wrapped(tmp_path, x):
    module = Scale()
    model = poptorch.inferenceModel(module)
    path = tmp_path / "scale.popef"
    model.compileAndExport(str(path), x, export_model=False)
    with pytest.raises(AssertionError, match=r"inferenceModel.*loadExecutable"):
        poptorch.load(path)
    other = poptorch.inferenceModel(module)
    other.loadExecutable(path)
    assert torch.equal(other(x), model(x))


def test_a_folder_gets_a_file_of_the_usual_name(tmp_path, x):
    poptorch.inferenceModel(Scale()).compileAndExport(tmp_path, x)
    assert (tmp_path / "model.poptorch").is_file()


def test_a_saved_offline_model_runs_where_it_is_loaded(tmp_path, x):
    options = poptorch.Options().useOfflineIpuTarget(2)
    module = Scale()
    poptorch.inferenceModel(module, options).compileAndExport(tmp_path / "scale.popef", x)
    loaded = poptorch.load(tmp_path / "scale.popef")
    torch.testing.assert_close(loaded(x), module(x))
    assert not loaded.options.exists("ipu_version")


def test_a_file_of_another_version_is_rejected(tmp_path, x, monkeypatch):
    path = tmp_path / "scale.popef"
    model = poptorch.inferenceModel(Scale())
    model.compile(x)
    monkeypatch.setattr("poptorch.execution.executor.__version__", "1.0")
    model.save(path)
    for kind, load in ((AssertionError, poptorch.load), (poptorch.Error, model.loadExecutable)):
        with pytest.raises(kind, match=r"Invalid file .*PopTorch version mismatch.*1\.0"):
            load(path)


def test_a_model_that_cannot_be_pickled_says_what_to_do(tmp_path, x):
    model = poptorch.inferenceModel(Scale())
    model.compile(x)
    model.model.extra = lambda: None
    with pytest.raises(poptorch.Error, match="export_model=False"):
        model.save(tmp_path / "scale.popef")
    assert not (tmp_path / "scale.popef").exists()


def test_a_file_that_poptorch_has_not_written_is_rejected(tmp_path):
    path = tmp_path / "other.popef"
    path.write_bytes(b"nothing of ours")
    for read in (poptorch.load, poptorch.inspect_file):
        with pytest.raises(poptorch.Error, match=r"Invalid file .*other\.popef"):
            read(path)


def test_weights_and_archive_are_read_without_unpickling(tmp_path, x):
    path, trap = tmp_path / "scale.popef", tmp_path / "trap"
    write_hostile(path, trap, x)
    contents = poptorch.inspect_file(path)
    assert contents.inputs == {"input": (4, 3)}
    assert [*contents.outputs.values()] == [(4, 5)]
    assert "linear.weight" in contents.weights
    names = zipfile.ZipFile(BytesIO(contents.archive)).namelist()
    assert any(name.endswith("models/model.json") for name in names)
    assert not trap.exists()


def test_the_archive_of_a_file_computes_what_its_module_does(tmp_path, x):
    module = Scale()
    poptorch.inferenceModel(module).compileAndExport(tmp_path / "scale.popef", x)
    archive = poptorch.inspect_file(tmp_path / "scale.popef").archive
    found = torch.export.load(BytesIO(archive)).module()(x)
    torch.testing.assert_close(found[0], module(x))


def test_weights_of_a_file_are_those_of_its_module(tmp_path, x):
    module = Scale()
    poptorch.inferenceModel(module).compileAndExport(tmp_path / "a", x, export_model=False)
    contents = poptorch.inspect_file(tmp_path / "a")
    state = module.state_dict()
    assert contents.archive is None
    assert contents.weights
    for name, value in contents.weights.items():
        assert torch.equal(value, state[name].reshape(value.shape))


def test_only_load_and_load_executable_open_the_pickle(tmp_path, x):
    path, trap = tmp_path / "scale.popef", tmp_path / "trap"
    write_hostile(path, trap, x)
    with ModelRunner(path) as runner:
        runner.execute({"input": x.numpy()})
    assert dump.main(["--all", str(path)]) == 0
    assert cli.main(["verify", str(path)]) == 0
    poptorch.inspect_file(path)
    assert not trap.exists()
    with pytest.raises(poptorch.Error, match="expected PoptorchData"):
        poptorch.load(path)
    assert trap.exists()
    trap.unlink()
    with pytest.raises(poptorch.Error, match="expected PoptorchData"):
        poptorch.inferenceModel(Scale()).loadExecutable(path)
    assert trap.exists()


def wrap_cached(folder, module):
    return poptorch.inferenceModel(module, poptorch.Options().enableExecutableCaching(str(folder)))


@pytest.mark.parametrize("kind", ["another model", "no executable", "a hostile pickle"])
def test_a_strangers_file_in_the_cache_changes_no_answer(tmp_path, x, kind):
    cache, trap, module = tmp_path / "cache", tmp_path / "trap", Scale()
    expected = wrap_cached(cache, module)(x)
    (file,) = cache.iterdir()
    if kind == "another model":
        stranger = poptorch.inferenceModel(torch.nn.Sequential(torch.nn.Softmax(1)))
        stranger.compileAndExport(file, torch.ones(2, 7))
    elif kind == "no executable":
        file.write_bytes(b"PopEF" * 20)
    else:
        executable = files.Executable(file)
        executable.appendOpaqueBlobs({files.BLOB: pickle.dumps(Hostile(trap))})
        executable.export(file)
    model = wrap_cached(cache, module)
    assert torch.equal(model(x), expected)
    model.save(tmp_path / "scale.popef", export_model=False)
    other = poptorch.inferenceModel(module)
    other.loadExecutable(tmp_path / "scale.popef")
    assert torch.equal(other(x), expected)
    assert not trap.exists()


@pytest.mark.slow
def test_another_process_takes_the_executable_from_the_cache(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(CACHING_SCRIPT)
    runs = [
        subprocess.run(
            [sys.executable, script, tmp_path / "cache"],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_SECONDS,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed},
        ).stdout.split()
        for seed in ("1", "2")
    ]
    assert [run[0] for run in runs] == ["compiled", "read"]
    assert runs[0][1:] == runs[1][1:]


def make_sdk_modules():
    """Return modules with PopTorch's classes under their real paths, as far as files name them."""

    def make(module, name, bases=(), **attributes):
        made = type(name.rpartition(".")[2], bases, {"__module__": module, **attributes})
        made.__qualname__ = name
        return made

    data, parser, options = (
        types.ModuleType(f"poptorch.{name}")
        for name in ("_poptorch_data", "_args_parser", "options")
    )
    data.PoptorchData = make(data.__name__, "PoptorchData")
    parser.ArgsParser = make(parser.__name__, "ArgsParser")
    parser.ArgsParser.Args = make(parser.__name__, "ArgsParser.Args")
    names = ["Options", "_PopartOptions", "_TrainingOptions", "_JitOptions", "_PrecisionOptions"]
    names += ["_DistributedOptions", "_TensorLocationOptions", "PipelinedExecution"]
    names += ["_DefaultStageManager"]
    for name in names:
        setattr(options, name, make(options.__name__, name))
    return data, parser, options


def fill(kind, **attributes):
    made = kind()
    vars(made).update(attributes)
    return made


def make_group(kind, **values):
    group = {"_warnings": {}, "_warnings_disabled": set(), "_is_frozen": True}
    return fill(kind, **group, _values=values)


def make_sdk_options(options):
    """Return Options as PopTorch 3 pickles them, of two device iterations."""
    made = make_group(
        options.Options,
        replication_factor=1,
        broadcast_buffers=True,
        device_iterations=2,
        log_dir=".",
        auto_round_num_ipus=False,
        anchored_tensors={},
        output_mode=enums.OutputMode.All,
        output_return_period=1,
        connection_type=enums.ConnectionType.Never,
        ipu_version=2,
        sync_pattern=enums.SyncPattern.Full,
        available_memory_proportion={0: 0.3},
        unheard_of=7,
    )
    popart = fill(
        options._PopartOptions,
        _is_frozen=True,
        options={"instrumentWithHardwareCycleCounter": True, "rearrangeAnchorsOnHost": False},
    )
    manager = fill(options._DefaultStageManager, _auto_stage=enums.AutoStage.SameAsIpu)
    vars(made).update(
        _jit=make_group(options._JitOptions),
        _popart=popart,
        _graphProcessing=make_group(options._PrecisionOptions),
        _training=make_group(options._TrainingOptions, gradient_accumulation=1),
        _distributed=make_group(options._DistributedOptions, num_distributed_processes=1),
        _tensor_locations=make_group(options._TensorLocationOptions),
        _execution_strategy=fill(
            options.PipelinedExecution, _stages_manager=manager, _block_map={}
        ),
        _source_location_excludes=["site-packages/torch"],
        _module_namescope_enabled=True,
    )
    return made


def make_sdk_blob(monkeypatch, model, args, training=False):
    """Return the pickle of a module, as a real SDK's PopTorch makes it."""
    data, parser, options = made = make_sdk_modules()
    record = fill(
        data.PoptorchData,
        options=make_sdk_options(options),
        training=training,
        model=model,
        version=SDK_VERSION,
        _optimizer=None,
        optimizer_state=None,
        executable_inputs=fill(
            parser.ArgsParser.Args,
            _args=list(args),
            _arg_names=["x", "shift"][: len(args)],
            _kwargs={},
            first_none=None,
        ),
        random_seed=None,
        rng_state=[42, 1, 2, 3],
    )
    with monkeypatch.context() as patch:
        for module in made:
            patch.setitem(sys.modules, module.__name__, module)
        return pickle.dumps(record, protocol=4)


def write_sdk_file(path, blob):
    """Write a file of machine code with PopART's parts, and PopTorch's blob behind them."""
    info = popef.TensorInfo(shape=[2, 3], dataType=popef.DataType.F32)
    anchor = popef.Anchor(
        name="input",
        handle="h2d_input",
        tensorInfo=info,
        type=popef.TensorType.INPUT,
        isPerReplica=False,
        programs=[5],
    )
    metadata = popef.Metadata(
        replicationFactor=1,
        numIpus=1,
        anchors=[anchor],
        executable="1234",
        numProcesses=1,
        ipuVersion=2,
        isInference=True,
        programFlow=popef.ProgramFlow(load=[0], main=[5], save=[7]),
        programsMap={0: "WeightsFromHost", 5: "Program", 7: "WeightsToHost"},
        deviceIterations=2,
    )
    with popef.Writer(path) as writer:
        writer.writeMetadata(metadata)
        with writer.createExecutable("1234") as out:
            out.write(b"\x7fELF" + bytes(range(256)) * 16)
        for name, payload in (("popart", b"\0" * 64), (files.BLOB, blob)):
            with writer.createOpaqueBlob(name, "1234") as out:
                out.write(payload)
    return path


def test_a_real_sdks_file_is_compiled_again_from_its_module(tmp_path, monkeypatch, x, caplog):
    module = Scale(3.0).eval()
    path = write_sdk_file(tmp_path / "sdk.popef", make_sdk_blob(monkeypatch, module, [x]))
    monkeypatch.setattr(poptorch._logging.logger, "propagate", True)
    model = poptorch.load(path)
    torch.testing.assert_close(model(x), module(x))
    assert model.options.device_iterations == 2
    assert model.options.available_memory_proportion == {0: 0.3}
    assert model.options.connection_type is poptorch.ConnectionType.Always
    assert not model.options.exists("ipu_version")
    assert model.cycleCount() > 0
    text = caplog.text
    assert SDK_VERSION in text
    assert "compiled again" in text
    assert "unheard_of" in text


def test_a_real_sdks_file_gives_a_wrapped_module_its_inputs(tmp_path, monkeypatch, x):
    module = Scale().eval()
    blob = make_sdk_blob(monkeypatch, None, [x, x[:, :1]], training=None)
    path = write_sdk_file(tmp_path / "sdk.popef", blob)
    with pytest.raises(AssertionError, match="export_model=False"):
        poptorch.load(path)
    model = poptorch.inferenceModel(module, poptorch.Options().deviceIterations(2))
    model.loadExecutable(path)
    torch.testing.assert_close(model(x, x[:, :1]), module(x, x[:, :1]))


def test_a_class_that_cannot_be_imported_is_named(tmp_path, monkeypatch, x):
    absent = types.ModuleType("their_models")
    absent.Net = type("Net", (), {"__module__": "their_models"})
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "their_models", absent)
        blob = make_sdk_blob(monkeypatch, absent.Net(), [x])
    path = write_sdk_file(tmp_path / "sdk.popef", blob)
    with pytest.raises(poptorch.Error, match=r"sdk.popef.*their_models\.Net.*Python's path"):
        poptorch.load(path)


def test_a_real_sdks_training_model_is_rejected(tmp_path, monkeypatch, x):
    blob = make_sdk_blob(monkeypatch, Scale(), [x], training=True)
    path = write_sdk_file(tmp_path / "sdk.popef", blob)
    with pytest.raises(poptorch.Error, match="trainingModel"):
        poptorch.load(path)


@pytest.mark.parametrize("blob", [b"", b"\x80\x04N.", b"\x80\x04" + b"(" * 100])
def test_a_real_sdks_file_with_another_blob_is_rejected(tmp_path, blob):
    path = write_sdk_file(tmp_path / "sdk.popef", blob)
    with pytest.raises(poptorch.Error, match=r"Invalid file .*sdk\.popef"):
        poptorch.load(path)
