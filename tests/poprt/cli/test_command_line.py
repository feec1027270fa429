"""Tests of the `poprt` command: its options, the forms of their values, and a file of options."""

import argparse
import re
import subprocess
import sys

import onnx
import pytest
from onnx import TensorProto, helper
from poprt import cli
from poprt.cli.parser import make_parser
from poprt.option_entry import Use, read_group, read_serialised
from poprt.option_table import OPTIONS
from sample_models import linear_model
from waiting import PATIENCE_SECONDS

from popef._tools.arguments import split_names

REAL = """--help --version --input_model --framework --input_shape --batch_size --batch_axis --precision
--convert_version --infer_shape_ahead --max_tensor_size --fp16_skip_op_types --enable_avoid_overflow_patterns
--fp8_params --fp8_skip_op_names --calibration_with_data --calibration_loss_type --num_of_layers_keep_fp16
--quantize --quantize_loss_type
--data_preprocess --precision_compare --check --checkpoints --remove_outputs --passes --skip_passes
--custom_pass_config --custom_shape_inference --custom_library_so_paths --list_all_passes --show
--show_io_stat --disable_fast_norm --enable_erf_gelu --enable_compress_pattern --merge_if_with_same_cond
--fold_periodic_initializer --enable_insert_remap --remap_mode --eightbitsio --serialize_matmul
--serialize_matmul_add --merge_matmul --merge_matmul_add --merge_moe --apply_hcsr --pack_args --export_popef
--output_dir --output_model --run --ipu_version --num_io_tiles --batches_per_step
--available_memory_proportion --compiler_options --popart_options --optimize_internal_exchange_code
--manual_sharding_config --only_manual_sharding --config_yaml --perf_tuner --print_completion --logging_level
--disable_compilation_progress_bar""".split()
REFUSED = {name: each.refused for name, each in OPTIONS.items() if each.refused}
OURS = [entry.long_name for entry in OPTIONS.values() if Use.OURS in entry.use]


@pytest.fixture
def model(tmp_path, monkeypatch, registry):
    """Write a model file in the working directory of the command."""
    monkeypatch.chdir(tmp_path)
    onnx.save(linear_model(), tmp_path / "model.onnx")
    return "model.onnx"


def poprt(*arguments):
    try:
        return cli.main([str(argument) for argument in arguments])
    except SystemExit as ended:
        return ended.code


def test_every_option_of_the_real_command_is_there_and_the_others_are_ours():
    names = {name for name in make_parser().option_names() if name.startswith("--")}
    assert (names - set(OURS), names & set(OURS)) == (set(REAL), set(OURS))


def test_a_version_is_three_lines_and_needs_no_model(capsys):
    assert poprt("-v") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "PopRT version",
        "SDK built with",
        "SDK at run time",
    ]


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_options_are_rejected_by_name(name, model, capsys):
    action = next(each for each in make_parser()._actions if each.dest == name)
    values = {0: [], None: ["1"], "+": ["a=b"]}[action.nargs]
    assert poprt("-i", model, "--batch_size", 2, f"--{name}", *values) == 2
    assert f"--{name} is not supported: {REFUSED[name]}" in capsys.readouterr().err


def test_inputs_and_outputs_are_shown_and_nothing_is_converted(model, capsys, tmp_path):
    assert poprt("-i", model, "--show") == 0
    assert capsys.readouterr().out.splitlines() == [
        "Input x: dtype - float32, shape - [0, 4]",
        "Output y: dtype - float32, shape - [0, 3]",
        "Output z: dtype - float32, shape - [0, 4]",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_a_run_says_three_things_and_of_which_machine(model, capsys):
    assert poprt("-i", model, "--batch_size", 4, "--run") == 0
    modelled, size, latency, throughput, note = capsys.readouterr().out.splitlines()
    assert modelled.startswith("one batch on C600 (ipu21), fp32 (modelled): ")
    assert size == "Bs: 4"
    assert re.fullmatch(r"Latency: \d+\.\d\dms", latency)
    assert re.fullmatch(r"Tput: \d+", throughput)
    assert "this machine's CPU" in note


def test_names_of_inputs_beside_those_of_the_model_are_warned_of(model, tmp_path, caplog):
    """packed_bert_example of the published scripts names such inputs."""
    assert poprt("-i", model, "--input_shape", "x=2,4", "q=1", "--output_dir", tmp_path) == 0
    assert "input_shape names 'q', which is ignored; the model's inputs are x" in caplog.text


@pytest.mark.parametrize(("name", "advice"), [("q", ""), ("X", "; did you mean x?")])
def test_a_misspelt_name_of_an_input_is_an_error_with_the_names(model, capsys, name, advice):
    assert poprt("-i", model, "--batch_size", 2, "--input_shape", f"{name}=2,4") == 1
    expected = f"input_shape names {name!r}; the model's inputs are x{advice}\n"
    assert capsys.readouterr().err.endswith(expected)


def test_without_a_model_there_is_nothing_to_do(capsys):
    assert poprt("--batch_size", 2) == 2
    assert "the following arguments are required: -i/--input_model" in capsys.readouterr().err


def test_a_small_model_in_float_is_compiled_without_what_only_others_need(model, tmp_path):
    """Imports take most of its time."""
    others = (
        "poprt.comparing.calibration poprt.quantizer.quantizer poprt.performance.model_profile "
        "simipu.numerics.convolution simipu.numerics.recurrent simipu.numerics.layout "
        "simipu.numerics.quantized onnx.reference rich yaml"
    ).split()
    program = (
        "import sys; from poprt import cli; "
        f"print(cli.main(sys.argv[1:]), sorted(set(sys.modules) & {set(others)!r}))"
    )
    words = ["--input_model", model, "--batch_size", "4", "--export_popef"]
    words += ["--output_dir", str(tmp_path / "out")]
    printed = subprocess.run(
        [sys.executable, "-c", program, *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    ).stdout
    assert printed.splitlines()[-1] == "0 []"
    assert (tmp_path / "out" / "executable.popef").exists()


def test_names_may_stand_in_one_word_or_several_with_blanks():
    assert split_names(["a, b", "c,", " d"]) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MatMul_1=4", ("MatMul_1", "4")),
        ("/a/b=c/MatMul=4/input_channels/True", ("/a/b=c/MatMul", "4/input_channels/True")),
        ("m=8/none", ("m", "8/none")),
    ],
)
def test_products_are_cut_by_name(text, expected):
    assert read_serialised(text) == expected


@pytest.mark.parametrize("text", ["MatMul", "=4", "m=x", "m=-1", "m=4/rows", "m=4/none/maybe"])
def test_an_invalid_serialisation_is_rejected(text):
    with pytest.raises(argparse.ArgumentTypeError):
        read_serialised(text)


def test_groups_of_inputs_have_a_type_a_shape_and_perhaps_a_number():
    assert read_group("fp32,[512,1],50") == ("fp32", [512, 1], 50)
    assert read_group("fp16,[512, 5]") == ("fp16", [512, 5])


@pytest.mark.parametrize(
    "text",
    ["fp32", "fp32,", "fp32,5", "fp32,[a]", "fp32,[0]", "fp32,[1],2,3", "fp32," + "[" * 9_999],
)
def test_an_invalid_group_is_rejected(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"expected DTYPE,\[SHAPE\]"):
        read_group(text)


PASS = """
import helper_module
from poprt.passes import Pass, register

@register("negate_{name}")
class Negate(Pass):
    def run(self, model):
        for node in model.graph.node:
            if node.op_type == "Relu":
                node.op_type = helper_module.OPERATOR
        return model
"""


def test_passes_of_a_users_file_are_listed_and_run(model, tmp_path, capsys):
    (tmp_path / "helper_module.py").write_text('OPERATOR = "Neg"\n')
    (tmp_path / "mine_listed.py").write_text(PASS.format(name="listed"))
    assert poprt("--list_all_passes", "--custom_pass_config", "mine_listed.py") == 0
    assert "negate_listed" in capsys.readouterr().out.split()
    given = (
        "--custom_pass_config",
        "mine_listed.py",
        "--passes",
        "negate_listed",
        "--output_model",
        "o.onnx",
    )
    assert poprt("-i", model, "--batch_size", 2, *given) == 0
    assert "Neg" in {node.op_type for node in onnx.load(tmp_path / "o.onnx").graph.node}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "--custom_pass_config mine.py: no such file"),
        ("def", "--custom_pass_config mine.py: SyntaxError: "),
        ("raise KeyError('\x1b[31m')", r"--custom_pass_config mine.py: KeyError: '\x1b[31m'"),
        (
            "from poprt.passes import Pass, register\nregister('admit')(Pass)",
            "CompileError: pass 'admit' is registered already",
        ),
    ],
)
def test_a_users_file_that_fails_is_named(content, reason, model, tmp_path, capsys):
    if content is not None:
        (tmp_path / "mine.py").write_text(content)
    assert poprt("-i", model, "--batch_size", 2, "--custom_pass_config", "mine.py") == 1
    assert reason in capsys.readouterr().err


def test_options_come_from_a_file_and_the_command_line_wins(model, tmp_path):
    text = """
    input_model: model.onnx
    input_shape: ['x=3,4']
    precision: fp16
    max_tensor_size: -1
    export_popef: True
    show: False
    output_model: o.onnx
    compiler_options: {partials_type: float}
    """
    (tmp_path / "options.yaml").write_text(text)
    assert poprt("--config_yaml", "options.yaml", "--precision", "fp32") == 0
    value = onnx.load(tmp_path / "o.onnx").graph.input[0]
    assert [dim.dim_value for dim in value.type.tensor_type.shape.dim] == [3, 4]
    assert value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert (tmp_path / "executable.popef").exists()


BOMB = "a0: &a0 [x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 40)
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("frobnicate: 1", "'frobnicate' is no option of poprt"),
        ("config_yaml: x", "'config_yaml' is no option of poprt"),
        ("model_fusion: []", "model_fusion: expected a list of 1 to 1024 models"),
        (
            "model_fusion: [{precision: fp16}]",
            "model 0: expected options by their names, input_model among",
        ),
        (
            "model_fusion: [{input_model: a, num_ipus: 2}]",
            "model 0: 'num_ipus' cannot be set per model",
        ),
        ("model_fusion: [{input_model: a}]", "model_fusion requires export_popef: True, because"),
        ("[1, 2]", "expected options by their names, found list"),
        ("1: 2", "expected options by their names"),
        ("a: [", "is not valid YAML"),
        ("!!python/object/apply:os.system ['x']", "is not valid YAML"),
        ("passes: [[a]]", "--passes: expected a value, or a list of values"),
        ("compiler_options: {a: {b: c}}", "--compiler_options: 'a': expected one value"),
        ("passes: [" + "a," * 20_000 + "]", "--passes: expected a value"),
        ("# " + "x" * (2 << 20), "expected at most 1048576 bytes"),
        ("precision: fp12", "argument --precision: expected one of fp32, fp16"),
        pytest.param("[" * 5_000, "is not valid YAML", marks=pytest.mark.slow),
        (BOMB.replace("a39:", "passes:"), "is no option of poprt"),
    ],
)
def test_a_file_of_options_that_is_wrong_is_refused(text, reason, tmp_path, capsys):
    (tmp_path / "options.yaml").write_text(text)
    assert poprt("--config_yaml", tmp_path / "options.yaml") == 2
    assert reason in capsys.readouterr().err


def test_a_file_of_options_that_is_not_there_is_named(capsys):
    assert poprt("--config_yaml", "absent.yaml") == 1
    assert "absent.yaml: No such file" in capsys.readouterr().err


def test_options_of_popart_that_the_compiler_has_are_its_own(model, capsys, caplog):
    wrong = ("-i", model, "--batch_size", 2, "--export_popef", "--popart_options")
    assert poprt(*wrong, "numIpus=0") == 2
    assert "num_ipus: expected 1 to" in capsys.readouterr().err
    assert poprt(*wrong, "rearrangeAnchorsOnHost=false", "enableFoo=1") == 0
    assert "--popart_options enableFoo has no effect" in caplog.text


LOOK = """
import onnx
from poprt.passes import Pass, register

@register("look_at_weights")
class Look(Pass):
    def run(self, model):
        for tensor in model.graph.initializer:
            assert onnx.numpy_helper.to_array(tensor).shape == tuple(tensor.dims)
        return model
"""


def test_a_users_pass_finds_large_weights_in_the_initializers(model, tmp_path):
    onnx.save(linear_model(width=200_000), tmp_path / "large.onnx")
    (tmp_path / "look.py").write_text(LOOK)
    given = ("--custom_pass_config", "look.py", "--passes", "look_at_weights")
    assert poprt("-i", "large.onnx", "--batch_size", 2, *given) == 0


@pytest.mark.parametrize(
    ("rows", "last", "is_told"), [(4, "Sub", True), (4, "Squeeze", False), (1, "Squeeze", False)]
)
def test_a_smaller_batch_is_advised_only_where_it_would_have_rows(
    tmp_path, capsys, rows, last, is_told
):
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[0]),
        helper.make_node(last, ["x", "m"] if last == "Sub" else ["m"], ["y"]),
    ]
    shapes = {"x": ["n", 3], "y": ["n", 3] if last == "Sub" else [3]}
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    )
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 11)]
    )
    onnx.save(model, tmp_path / "mean.onnx")
    command = ["-i", tmp_path / "mean.onnx", "--export_popef", "--output_dir", tmp_path]
    assert poprt(*command, "--batch_size", rows) == 0
    told = capsys.readouterr().out
    assert "not proven to be independent: node" in told
    assert ("with --batch_size 1 requests can have any number of rows" in told) is is_told


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["--target", "bow"], 2, "unknown option '--target'; did you mean --ipu_version?"),
        (["-o", "out"], 2, "unknown option '-o'; did you mean --output_dir?"),
        (["--ipu_version", "bwo"], 2, "did you mean bow?"),
        (["--data_preprocess", "gone.npz"], 1, "--data_preprocess: gone.npz: No such file"),
        (["--data_preprocess", "notes.txt"], 1, "notes.txt: expected arrays by input name"),
        (["--fp16_skip_op_names", "activat", "--precision", "fp16"], 1, "did you mean activate?"),
        (["--fp16_skip_op_types", "MatMull", "--precision", "fp16"], 1, "did you mean MatMul?"),
        (["--remove_outputs", "yy"], 1, "did you mean y?"),
    ],
)
def test_a_wrong_option_is_reported_and_nothing_is_written(
    model, tmp_path, monkeypatch, capsys, words, status, told
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("notes")
    before = sorted(tmp_path.rglob("*"))
    assert poprt("-i", model, "--batch_size", 2, *words) == status
    assert told in capsys.readouterr().err.splitlines()[-1]
    assert sorted(tmp_path.rglob("*")) == before
