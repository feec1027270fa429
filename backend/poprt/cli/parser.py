"""Options of the `poprt` command: the real tool's, and a few of our own."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from simipu import OperatorLibrary, package_hash
from simipu.target import known_chips

import poprt
from popef._tools.arguments import Parser, count, positive, proportion
from poprt.cli.arguments import (
    add_names,
    add_pass_options,
    add_precision,
    read_chip,
    read_group,
    read_named,
    read_option,
    read_shape,
)
from poprt.cli.supervision import add_limits

_EXAMPLES = (
    "poprt -i model.onnx --input_shape x=16,3,224,224 --precision fp16 --triton_model_dir models/mine",
    "poprt -i model.onnx --batch_size 8 --export_popef --output_dir out --compiler_options "
    "partials_type=float",
    "poprt -i model.onnx --show",
)
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

_LIBRARY = "libraries for PopART are code for the real compiler and cannot be loaded here"
REFUSED: Mapping[str, str] = {
    "custom_library_so_paths": f"{_LIBRARY}; say in Python what the operator computes (register_op_body) "
    "in a file for --custom_shape_inference, or name a library of ONNX Runtime's with --custom_ort_library",
    "perf_tuner": "the real tool has not implemented it either",
    "enable_compress_pattern": "what it looks for is not public",
}
"""Options that are parsed but rejected when they are given, with the reason."""


class _Show(argparse.Action):
    """Action of an option that prints something without a model."""

    def __init__(self, option_strings: list[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=False, help=help)

    def __call__(self, _parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: object) -> None:
        setattr(namespace, self.dest, True)


def describe_version() -> str:
    """Return the real tool's three lines: its version, and its SDK at build time and run time."""
    sdk = f"simulated IPU (package hash {package_hash()})"
    return f"PopRT version: {poprt.__version__}\nSDK built with: {sdk}\nSDK at run time: {sdk}"


def _read_library(text: str) -> OperatorLibrary:
    try:
        return OperatorLibrary.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected {error}") from error


def make_parser() -> Parser:
    """Return the parser. It does not require a model; that is checked later."""
    parser = Parser(
        prog="poprt",
        description="Convert an ONNX model and compile it to PopEF for the simulated IPU.",
        version=describe_version(),
        examples=_EXAMPLES,
    )
    for add in (
        _add_model,
        _add_precision,
        _add_graph,
        _add_passes,
        _add_chip,
        _add_output,
        _add_looks,
    ):
        add(parser)
    add_limits(parser)
    return parser


def make_tf2onnx_parser() -> Parser:
    """Return the parser of the options after `tf2onnx`, for --framework tensorflow.

    They come last on the command line.
    """
    parser = Parser(
        prog="poprt tf2onnx",
        description="How a TensorFlow model becomes ONNX. Names are tensors' (Identity:0) or the signature's "
        "own (output_0), with commas between.",
        examples=(
            "poprt -i resnet_v2_50 --framework tensorflow --input_shape inputs=1,224,224,3 "
            "tf2onnx --saved_model --inputs_as_nchw inputs:0",
        ),
    )
    add = parser.add_argument
    add("--saved_model", action="store_true", help="the input model is a SavedModel (a folder always is)")
    add(
        "--signature_def",
        default="",
        help="the SavedModel's signature (default: serving_default, or the only one)",
    )
    add("--tag", default="", help="the SavedModel's tag (default: serve)")
    for side in ("inputs", "outputs"):
        add(
            f"--{side}",
            metavar="NAMES",
            help="the tensors to take (default, for a SavedModel: all of the signature)",
        )
    add("--opset", type=int, default=11, help="opset of the ONNX model (default: %(default)s)")
    for side in ("inputs", "outputs"):
        add(f"--{side}_as_nchw", metavar="NAMES", help="those to transpose from NHWC to NCHW")
    return parser


def _add_model(parser: Parser) -> None:
    add = parser.add_argument
    model_help = "ONNX file, or a folder that holds one; of TensorFlow, a SavedModel or a frozen graph"
    parser.add_path("-i", "--input_model", type=Path, metavar="PATH", help=model_help)
    yaml_help = (
        "options by their long names, which win on the command line; model_fusion lists models to fuse"
    )
    parser.add_path("--config_yaml", type=Path, metavar="FILE", help=yaml_help)
    add(
        "--framework",
        default="onnx",
        choices=("onnx", "tensorflow"),
        help="front end; that of TensorFlow needs the extra poplar-triton[tensorflow] (default: %(default)s)",
    )
    add(
        "--input_shape",
        type=read_shape,
        nargs="+",
        default=[],
        metavar="NAME=d0,d1",
        help="sizes for variable inputs",
    )
    add("--batch_size", type=positive, help="batch size of all inputs")
    add("--batch_axis", type=int, help="axis that holds the batch (default: 0)")
    fix_help = (
        "inputs that become constants, as sr=16000 or sizes=2,3: only the branch of an If "
        "that they choose is compiled (ours)"
    )
    add("--fix_input", type=read_named, nargs="+", default=[], metavar="NAME=VALUE", help=fix_help)
    add("--convert_version", type=positive, metavar="N", help="target opset (default: the model's own)")
    add("--infer_shape_ahead", action="store_true", help="fold constants and infer shapes before all else")
    tensor_help = "largest tensor that constant folding may make; -1: no bound (default: %(default)s)"
    add("--max_tensor_size", type=int, default=-1, metavar="BYTES", help=tensor_help)
    add_names(parser, "--checkpoints", "inner tensors that become outputs too")
    add_names(parser, "--remove_outputs", "outputs to drop, with what only they need")
    add("--check", action="store_true", help="run the converted model beside the given one on made-up data")


def _add_precision(parser: Parser) -> None:
    add = parser.add_argument
    add_precision(parser, "fp32", "%(default)s")
    add_names(parser, "--fp16_skip_op_names", "nodes that stay fp32 in an fp16 model; ours", "NODE")
    overflow_help = "keep what is known to overflow in fp32, in an fp16 model"
    add("--enable_avoid_overflow_patterns", action="store_true", help=overflow_help)
    add(
        "--fp8_params",
        default="F143,F143,-1,-1",
        metavar="FORMAT,FORMAT,SCALE,SCALE",
        help="format (F143, F152) of inputs and weights and their scales, powers of two (default: "
        "%(default)s)",
    )
    add_names(parser, "--fp8_skip_op_names", "products that stay fp16 in an fp8 model", "NODE")
    data_help = (
        "samples by input name, along the first axis: .npz, a folder of .npy, or a pickled dict; for the "
        "calibration of fp8, and to look for overflow with in a model in half"
    )
    parser.add_path("--data_preprocess", type=Path, metavar="PATH", help=data_help)
    calibration_help = "choose formats and scales of an fp8 model by what it loses on --data_preprocess"
    add("--calibration_with_data", "--quantize", action="store_true", help=calibration_help)
    loss_help = "what is lost: see docs/precision.md; gptq is for fp8_weight (default: %(default)s)"
    losses = ("mse", "mae", "snr", "kld", "cos_dist", "gptq")
    add("--calibration_loss_type", "--quantize_loss_type", choices=losses, default="kld", help=loss_help)
    keep_help = "so many products of largest loss stay fp16, with --calibration_with_data"
    add("--num_of_layers_keep_fp16", type=count, default=0, metavar="N", help=keep_help)
    compare_help = "compare what Conv, Gemm and MatMul of an fp8 model make with what they made, in a log"
    add("--precision_compare", action="store_true", help=compare_help)


def _add_graph(parser: Parser) -> None:
    add = parser.add_argument
    add("--enable_compress_pattern", action="store_true", help="refused")
    add("--merge_if_with_same_cond", action="store_true", help="join Ifs of one condition")
    add("--fold_periodic_initializer", action="store_true", help="keep one period of weights that repeat")
    add("--eightbitsio", action="store_true", help="images come as bytes and are scaled on the chip")
    add("--merge_moe", metavar="B1,E1,B2,E2", help="compute two experts, from node to node, at once")
    add(
        "--apply_hcsr",
        type=read_group,
        nargs="+",
        default=[],
        metavar="DTYPE,[SHAPE][,N]",
        help="join inputs of that type and shape, which the host concatenates",
    )
    pack_help = "take samples end to end: max_valid_num=N segment_max_size=N, see PackArgs"
    add("--pack_args", type=read_option, nargs="+", default=[], metavar="KEY=VAL", help=pack_help)


def _add_passes(parser: Parser) -> None:
    add = parser.add_argument
    add_pass_options(parser)
    add_names(parser, "--custom_pass_config", "Python files that register passes", "FILE")
    add_names(parser, "--custom_shape_inference", "Python files that register shape functions", "FILE")
    add(
        "--custom_ort_library",
        type=_read_library,
        nargs="+",
        default=[],
        metavar="DOMAIN=FILE[,CYCLES]",
        help="custom-operator libraries of ONNX Runtime with the domain of their operators, and the cycles "
        "that these take of a tile for each element of a result (ours)",
    )
    add("--custom_library_so_paths", nargs="+", default=[], metavar="FILE", help="refused")
    add("--list_all_passes", action=_Show, help="print the names of all passes and end")


def _add_chip(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "--ipu_version",
        type=read_chip,
        metavar="NAME",
        help=f"the chip: {known_chips()} (default: c600, Poplar's ipu21)",
    )
    proportion_help = "share of tile memory for products (default: 0.6)"
    add("--available_memory_proportion", type=proportion, help=proportion_help)
    add("--batches_per_step", type=positive, help="batches run per return to the host (default: 1)")
    add("--num_io_tiles", type=count, help="tiles that only do I/O (default: 0)")
    memory_help = "compile what, as modelled, does not fit into the chip's memory (ours)"
    add("--allow_out_of_memory", action="store_true", help=memory_help)
    only_help = "refuse operators that the IPU's own compiler lacks, instead of a warning (ours)"
    add("--only_ipu_operators", action="store_true", help=only_help)
    dry_run_help = "compile without loading and running the result once (ours)"
    add("--skip_dry_run", action="store_true", help=dry_run_help)
    for option, what in (("compiler", "CompilerOptions"), ("popart", "SessionOptions of PopART")):
        add(
            f"--{option}_options",
            type=read_option,
            nargs="+",
            default=[],
            metavar="KEY=VAL",
            help=f"further {what}",
        )
    exchange_help = "accepted; the chip's exchange code is not modelled"
    add("--optimize_internal_exchange_code", action="store_true", help=exchange_help)
    sharding_help = "YAML list of node, device and stage: which IPU runs what (compile with num_ipus and "
    sharding_help += "virtual_graph_mode=manual)"
    parser.add_path("--manual_sharding_config", type=Path, metavar="FILE", help=sharding_help)
    only_help = "shard the model as it is, and do nothing else"
    add("--only_manual_sharding", action="store_true", help=only_help)
    add("--perf_tuner", action="store_true", help="refused")


def _add_output(parser: Parser) -> None:
    add, add_path = parser.add_argument, parser.add_path
    popef_help = "write executable.popef (and weights.popef) into output_dir"
    add("--export_popef", action="store_true", help=popef_help)
    add_path(
        "--output_dir",
        folder=True,
        type=Path,
        default="./",
        metavar="DIR",
        help="folder for all output (default: %(default)s)",
    )
    model_help = "file name of the converted ONNX model inside output_dir"
    add("--output_model", metavar="NAME", help=model_help)
    add_path(
        "--triton_model_dir",
        folder=True,
        type=Path,
        metavar="DIR",
        help="write a whole Triton model folder; its config.pbtxt and name_map.json are kept, and "
        "must fit the executable (ours)",
    )
    version_help = (
        "put the model into that folder as a new version, of the next number, beside those that are served "
        "(ours)"
    )
    add("--new_version", action="store_true", help=version_help)
    overwrite_help = "write config.pbtxt and name_map.json of that folder anew (ours)"
    add("--overwrite_config", action="store_true", help=overwrite_help)
    queue_help = (
        "how long a request may wait in Triton's queue before it is rejected, in ms, written into "
        "config.pbtxt; a request's own timeout counts where it is shorter (ours; default: no bound)"
    )
    add("--queue_timeout_ms", type=positive, metavar="N", help=queue_help)
    run_help = "compile, run made-up data, and print batch size, latency and throughput of this CPU"
    add("--run", dest="run_model", action="store_true", help=run_help)


def _add_looks(parser: Parser) -> None:
    add = parser.add_argument
    add("--show", action="store_true", help="print the model's inputs and outputs and end")
    stat_help = "print how many inputs and outputs there are of which type and shape"
    add("--show_io_stat", action="store_true", help=stat_help)
    profile_help = "print what a batch would take on the chip, and where (modelled; ours)"
    add("--show_profile", action="store_true", help=profile_help)
    add("--disable_compilation_progress_bar", action="store_true", help="no progress bars")
    add("--logging_level", choices=LEVELS, default="WARNING", help="log level (default: %(default)s)")
