"""Parsers of the `poprt` command and of its sub-command `tf2onnx`."""

from __future__ import annotations

from simipu import package_hash

import poprt
from popef._tools.arguments import Parser
from poprt.cli.option_table import OPTIONS

_EXAMPLES = (
    "poprt -i model.onnx --input_shape x=16,3,224,224 --precision fp16 --triton_model_dir "
    "models/mine",
    "poprt -i model.onnx --batch_size 8 --export_popef --output_dir out --compiler_options "
    "partials_type=float",
    "poprt -i model.onnx --show",
)


def describe_version() -> str:
    """Return the real tool's three lines: its version, and its SDK at build time and run time."""
    sdk = f"simulated IPU (package hash {package_hash()})"
    return f"PopRT version: {poprt.__version__}\nSDK built with: {sdk}\nSDK at run time: {sdk}"


def make_parser() -> Parser:
    """Return the parser. It does not require a model; that is checked later."""
    parser = Parser(
        prog="poprt",
        description="Convert an ONNX model and compile it to PopEF for the simulated IPU.",
        version=describe_version(),
        examples=_EXAMPLES,
    )
    for option in OPTIONS.values():
        option.add_to(parser)
    return parser


def make_tf2onnx_parser() -> Parser:
    """Return the parser of the options after `tf2onnx`, for --framework tensorflow.

    They come last on the command line.
    """
    parser = Parser(
        prog="poprt tf2onnx",
        description="Convert a TensorFlow model to ONNX. Names are tensor names (Identity:0) or "
        "names of "
        "the signature (output_0), separated by commas.",
        examples=(
            "poprt -i resnet_v2_50 --framework tensorflow --input_shape inputs=1,224,224,3 "
            "tf2onnx --saved_model --inputs_as_nchw inputs:0",
        ),
    )
    add = parser.add_argument
    add(
        "--saved_model",
        action="store_true",
        help="the input model is a SavedModel (a folder always is)",
    )
    add(
        "--signature_def",
        default="",
        help="signature of the SavedModel (default: serving_default, or the only one)",
    )
    add("--tag", default="", help="tag of the SavedModel (default: serve)")
    for side in ("inputs", "outputs"):
        add(
            f"--{side}",
            metavar="NAMES",
            help="tensor names (default for a SavedModel: all of the signature)",
        )
    add("--opset", type=int, default=11, help="opset of the ONNX model (default: %(default)s)")
    for side in ("inputs", "outputs"):
        add(
            f"--{side}_as_nchw",
            metavar="NAMES",
            help="names of tensors to transpose from NHWC to NCHW",
        )
    return parser
