"""The `poprt` command: the real tool's options, and `--triton_model_dir` of ours."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import onnx
from onnxgraph.weights import inline
from simipu import SimIpuError, package_hash
from simipu.errors import CompileError
from simipu.target import find_target

import poprt
from popef.arguments import Parser, count, positive, proportion
from popef.console import UsageError, print_line, run
from popef.staging import Staging
from poprt.arguments import read_shape
from poprt.calibration import read_calibration_data
from poprt.capacity import check_weights
from poprt.compiler import Compiler
from poprt.compiling import cost_options
from poprt.converter import Converter
from poprt.executable import Executable
from poprt.frontend import get_frontend
from poprt.locks import make_scratch_folder
from poprt.options import PRECISIONS, CompilerOptions
from poprt.passes import get_registered_passes
from poprt.passes.shapes import describe_shape
from poprt.pipeline import count_steps
from poprt.profiling.profile import make_profile
from poprt.profiling.table import print_profile
from poprt.supervision import add_limits, supervised
from poprt.terminal import configure_logging, make_console, show_progress
from poprt.triton_model import ModelFolder, stage_executable
from poprt.triton_version import NewVersion

_EXAMPLES = (
    "poprt -i model.onnx --input_shape x=16,3,224,224 --precision fp16 --triton_model_dir models/mine",
    "poprt -i model.onnx --batch_size 8 --export_popef --output_dir out --compiler_options "
    "partials_type=float",
    "poprt -i model.onnx --show",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 fine, 1 bad input, 2 usage."""
    parser = _parser()
    parser.set_defaults(own_process=arguments is None)
    return run(parser, arguments, (SimIpuError,))


def _run(options: argparse.Namespace) -> int:
    configure_logging("poprt", options.logging_level)
    compiler_options = _compiler_options(options)
    model_dir = options.triton_model_dir
    if options.new_version and not model_dir:
        raise UsageError("--new_version needs --triton_model_dir, the model folder that gets one")
    kind = NewVersion if options.new_version else ModelFolder
    with kind(model_dir, overwrite_config=options.overwrite_config) if model_dir else nullcontext() as folder:
        _convert(options, compiler_options, folder)
    return 0


def _convert(
    options: argparse.Namespace, compiler_options: CompilerOptions, folder: ModelFolder | None
) -> None:
    model = get_frontend(options.input_model, options.framework).open_model()
    if options.show:
        _show(model)
    output_dir = options.output_dir
    compiling = options.export_popef or folder is not None
    target = find_target(compiler_options.ipu_version or "ipu2", compiler_options.num_ipus)
    if compiling and not options.remove_outputs:
        check_weights(
            model.graph, target, options.precision, allow_out_of_memory=compiler_options.allow_out_of_memory
        )
    converter = _converter(options)
    steps = count_steps(converter.options, model, compiling=compiling)
    with show_progress("compile", steps, disabled=options.disable_compilation_progress_bar) as on_step:
        converted, whole = converter.convert_beside_float(model, on_step)
        compiled = _compile(converted, whole, options, compiler_options, on_step) if compiling else None
    output_dir.mkdir(parents=True, exist_ok=True)
    if options.output_model or not compiling:
        path = output_dir / (options.output_model or f"{options.input_model.name}.optimized.onnx")
        _save(converted, path)
        print_line(f"wrote {path}")
    if compiled is not None:
        _write(compiled, options, output_dir, folder)
    if options.show_profile:
        profile = make_profile(
            options.input_model.stem, options.precision, converted, target, cost_options(compiler_options)
        )
        print_profile(profile, make_console())


def _save(model: onnx.ModelProto, path: Path) -> None:
    """Weights of more than protobuf can hold go into a file beside it."""
    for tensor in model.graph.initializer:
        inline(tensor)
    if model.ByteSize() <= onnx.checker.MAXIMUM_PROTOBUF:
        with Staging() as staging:
            staging.open(path).write(model.SerializeToString())
        return
    with make_scratch_folder(path.parent, ".poprt-") as folder:
        data = f"{path.name}.data"
        onnx.save(model, folder / path.name, save_as_external_data=True, location=data)
        for name in (data, path.name):
            os.replace(folder / name, path.parent / name)


def _compile(
    converted: onnx.ModelProto,
    whole: onnx.ModelProto | None,
    options: argparse.Namespace,
    compiler_options: CompilerOptions,
    on_step: Callable[[str], None],
) -> Executable:
    data = read_calibration_data(options.data_preprocess) if options.data_preprocess else None
    axis = options.batch_axis or 0
    return Compiler.compile(
        converted,
        None,
        compiler_options,
        batch_axis=axis,
        float_model=whole,
        calibration_data=data,
        on_step=on_step,
    )


def _write(
    compiled: Executable, options: argparse.Namespace, output_dir: Path, folder: ModelFolder | None
) -> None:
    lines = []
    if options.export_popef:
        with Staging() as staging:
            stage_executable(staging, compiled, output_dir)
        lines += [
            f"wrote {output_dir / name}"
            for name in ("executable.popef", "weights.popef")[: 1 + bool(compiled.weights)]
        ]
    if folder is not None:
        lines += folder.write(compiled)
    target = compiled.executable.target
    microseconds = target.seconds(compiled.cycles) * 1e6
    lines.append(f"one batch on {target.name} (modelled): {compiled.cycles} cycles, {microseconds:.1f} us")
    if compiled.findings.comparison is not None:
        lines.append(compiled.findings.comparison.describe())
    if compiled.rows.dependence:
        lines.append(
            f"the rows of a batch are not proven to be independent: {compiled.rows.dependence}. The "
            "compiled batch is always computed whole, for one request at a time; --batch_size 1 makes a "
            "model whose requests may have any number of rows"
        )
    for line in lines:
        print_line(line)


def _show(model: onnx.ModelProto) -> None:
    weights = {tensor.name for tensor in model.graph.initializer}
    for kind, values in (("Input", model.graph.input), ("Output", model.graph.output)):
        for value in values:
            if value.name not in weights:
                dtype = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
                print_line(f"{kind} {value.name}: dtype - {dtype}, shape - {describe_shape(value)}")


def _converter(options: argparse.Namespace) -> Converter:
    return Converter(
        input_shape=dict(options.input_shape),
        convert_version=options.convert_version,
        precision=options.precision,
        fp16_skip_op_types=_split(options.fp16_skip_op_types),
        fp16_skip_op_names=_split(options.fp16_skip_op_names),
        fp8_params=options.fp8_params,
        fp8_skip_op_names=_split(options.fp8_skip_op_names),
        batch_size=options.batch_size,
        batch_axis=options.batch_axis,
        remove_outputs=_split(options.remove_outputs),
        fix_inputs=dict(options.fix_input),
    )


def _compiler_options(options: argparse.Namespace) -> CompilerOptions:
    values: dict[str, Any] = dict(options.compiler_options)
    named = {
        "ipu_version": options.ipu_version,
        "available_memory_proportion": options.available_memory_proportion,
        "batches_per_step": options.batches_per_step,
        "num_io_tiles": options.num_io_tiles,
        "allow_out_of_memory": options.allow_out_of_memory or None,
        "only_ipu_operators": options.only_ipu_operators or None,
    }
    for name, value in named.items():
        if value is not None:
            values.setdefault(name, value)
    try:
        return CompilerOptions.from_dict(values)
    except CompileError as error:
        raise UsageError(str(error)) from error


def _pair(text: str) -> tuple[str, str]:
    """NAME=VALUE, where the name may hold another =."""
    name, separator, value = text.rpartition("=")
    return _check_pair(name, separator, value, text)


def _option(text: str) -> tuple[str, str]:
    """KEY=VALUE, where the value may hold another =."""
    return _check_pair(*text.partition("="), text)


def _check_pair(name: str, separator: str, value: str, text: str) -> tuple[str, str]:
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found {text!r}")
    return name, value


def _split(texts: Sequence[str]) -> list[str]:
    """Names given as several words, comma separated, or both."""
    return [name for text in texts for name in text.split(",") if name]


class _ListPasses(argparse.Action):
    """Ends the command, as --help does: no model is needed."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **settings)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the names, one a line, as the real tool does."""
        for name in sorted(get_registered_passes()):
            print_line(name)
        parser.exit()


def _parser() -> Parser:
    parser = Parser(
        prog="poprt",
        description="Compile an ONNX model to PopEF for the simulated IPU.",
        version=f"PopRT {poprt.__version__} (simulated IPU, package hash {package_hash()})",
        examples=_EXAMPLES,
    )
    parser.set_defaults(run=supervised(_run))
    add, add_path = parser.add_argument, parser.add_path
    add_path(
        "-i",
        "--input_model",
        type=Path,
        required=True,
        metavar="PATH",
        help="ONNX file, or a folder that holds exactly one",
    )
    add("--framework", default="onnx", help="front end; only onnx is built in (default: %(default)s)")
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
    add(
        "--precision",
        choices=PRECISIONS,
        default="fp32",
        help="type of weights and arithmetic (default: %(default)s)",
    )
    add(
        "--fp16_skip_op_types",
        nargs="+",
        default=[],
        metavar="OP",
        help="operators that stay fp32 in an fp16 model",
    )
    add(
        "--fp16_skip_op_names",
        nargs="+",
        default=[],
        metavar="NODE",
        help="nodes that stay fp32 in an fp16 model (ours)",
    )
    add(
        "--fp8_params",
        default="F143,F143,-1,-1",
        metavar="FORMAT,FORMAT,SCALE,SCALE",
        help="format (F143, F152) of inputs and weights and their scales, powers of two (default: "
        "%(default)s)",
    )
    add(
        "--fp8_skip_op_names",
        nargs="+",
        default=[],
        metavar="NODE",
        help="products that stay fp16 in an fp8 model",
    )
    data_help = (
        "inputs by name to look for overflow with in a model in half: .npz, a folder of "
        ".npy, or a pickled dict"
    )
    add_path("--data_preprocess", type=Path, metavar="PATH", help=data_help)
    add("--remove_outputs", nargs="+", default=[], metavar="NAME", help="outputs to drop")
    fix_help = (
        "inputs that become constants, as sr=16000 or sizes=2,3: only the branch of an If "
        "that they choose is compiled (ours)"
    )
    add("--fix_input", type=_pair, nargs="+", default=[], metavar="NAME=VALUE", help=fix_help)
    add("--convert_version", type=positive, metavar="N", help="target opset (default: the model's own)")
    add(
        "--ipu_version",
        choices=("ipu1", "ipu2", "ipu21", "bow"),
        help="ipu2: M2000; bow: Bow-2000; ipu21: C600 (default: ipu2)",
    )
    add(
        "--available_memory_proportion",
        type=proportion,
        help="share of tile memory for products (default: 0.6)",
    )
    add("--batches_per_step", type=positive, help="batches run per return to the host (default: 1)")
    add("--num_io_tiles", type=count, help="tiles that only do I/O (default: 0)")
    add(
        "--allow_out_of_memory",
        action="store_true",
        help="compile what, as modelled, does not fit into the chip's memory",
    )
    only_help = "refuse operators that the IPU's own compiler lacks, instead of a warning (ours)"
    add("--only_ipu_operators", action="store_true", help=only_help)
    add(
        "--compiler_options",
        type=_option,
        nargs="+",
        default=[],
        metavar="KEY=VAL",
        help="further CompilerOptions",
    )
    add(
        "--export_popef",
        action="store_true",
        help="write executable.popef (and weights.popef) into output_dir",
    )
    add_path(
        "--output_dir",
        folder=True,
        type=Path,
        default="./",
        metavar="DIR",
        help="folder for all output (default: %(default)s)",
    )
    add("--output_model", metavar="NAME", help="file name of the converted ONNX model inside output_dir")
    add_path(
        "--triton_model_dir",
        folder=True,
        type=Path,
        metavar="DIR",
        help="write a whole Triton model folder; its config.pbtxt and name_map.json are kept, and "
        "must fit the executable",
    )
    version_help = (
        "put the model into that folder as a new version, of the next number, beside those that are served "
        "(ours)"
    )
    add("--new_version", action="store_true", help=version_help)
    add(
        "--overwrite_config",
        action="store_true",
        help="write config.pbtxt and name_map.json of that folder anew (ours)",
    )
    add("--show", action="store_true", help="print the model's inputs and outputs")
    add("--list_all_passes", action=_ListPasses, help="print the names of all passes and end")
    add(
        "--show_profile",
        action="store_true",
        help="print what a batch would take on the chip, and where (modelled)",
    )
    add("--disable_compilation_progress_bar", action="store_true", help="no progress bar")
    levels = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    add_limits(parser)
    add("--logging_level", choices=levels, default="WARNING", help="log level (default: %(default)s)")
    return parser
