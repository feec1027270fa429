"""The work of the `poprt` command: it opens the model, converts it, quantizes and shards it,
compiles it, and writes the files. What only some command lines need is imported where they need
it."""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from shlex import join
from typing import Any

import onnx
from onnxgraph import ModelWriter, find_inputs, write_with_data
from simipu import CompileError, register_library
from simipu.rows import find_noted_dependence

from popef._tools.arguments import split_names
from popef._tools.console import UsageError, print_line
from popef._tools.staging import Staging
from poprt.cli.parser import make_tf2onnx_parser
from poprt.comparing import OWN_DATA
from poprt.compile.compiler import Compiler, check_weights
from poprt.compile.converter import Converter, MFConverter, Sharder
from poprt.compile.engine_options import find_report_folder
from poprt.compile.executable import Executable
from poprt.compile.steps import cost_options
from poprt.frontend import Frontend, get_frontend
from poprt.frontend.extensions import load_extensions
from poprt.option_entry import read_compiler_fields, read_converter_arguments
from poprt.option_table import OPTIONS
from poprt.options import COMPILER_OPTIONS, CompilerOptions
from poprt.passes import get_pass, get_registered_passes
from poprt.passes.shapes.inputs import OPEN_SIZE, has_fixed_batch
from poprt.performance import describe_arithmetic, find_precision
from poprt.triton.model_folder import ModelFolder, NewVersion, write_executable

_DTYPES = {"float": "float32", "double": "float64"}
"""NumPy's type names, as the real tool prints them."""


def list_passes() -> list[str]:
    """Return the names of all passes, sorted."""
    return sorted(get_registered_passes())


def find_source(options: argparse.Namespace) -> Frontend:
    """Return the front end of the model.

    The TensorFlow front end looks for its packages and the model immediately.
    """
    if options.framework != "tensorflow":
        if options.tf2onnx is not None:
            raise UsageError(
                f"tf2onnx requires --framework tensorflow, found {options.framework!r}"
            )
        return get_frontend(options.input_model, options.framework)
    converting = options.tf2onnx or make_tf2onnx_parser().parse_args([])
    arguments = {name: value for name, value in vars(converting).items() if name != "parser"}
    # A folder can only be a SavedModel, whether the option is given or not.
    arguments["saved_model"] |= options.input_model.is_dir()
    return get_frontend(
        options.input_model, "tensorflow", input_shape=dict(options.input_shape), **arguments
    )


def _quantise(
    converted: onnx.ModelProto, whole: onnx.ModelProto | None, options: argparse.Namespace
) -> onnx.ModelProto:
    """Return the converted model after quantization and comparison, as far as the options request
    them.

    Quantization finds the formats and scales. The comparison is with the model in float.
    """
    if options.calibration_with_data:
        from poprt.quantizer.quantizer import LOG_NAME, quantize

        converted = quantize(
            converted,
            options.input_model,
            options.output_dir,
            options.data_preprocess,
            options.precision,
            options.calibration_loss_type,
            options.num_of_layers_keep_fp16,
        )
        print_line(f"wrote {options.output_dir / LOG_NAME}")
    if options.precision_compare and whole is not None:
        from poprt.passes.precision.comparison import LOG_NAME as COMPARE_LOG
        from poprt.passes.precision.comparison import layer_precision_compare

        layer_precision_compare(whole, converted, options.data_preprocess, options.output_dir)
        print_line(f"wrote {options.output_dir / COMPARE_LOG}")
    return converted


def load_own_code(options: argparse.Namespace) -> None:
    """Load the modules and libraries of passes and operators that the options name."""
    for name in ("custom_pass_config", "custom_shape_inference"):
        load_extensions(f"--{name}", split_names(getattr(options, name)))
    for library in options.custom_ort_library:
        register_library(library)


def convert(options: argparse.Namespace) -> int:
    """Do what the checked options say, and return the exit status."""
    load_own_code(options)
    options.calibration_data = None
    if options.data_preprocess is not None:
        from poprt.comparing import read_calibration_data

        options.calibration_data = read_calibration_data(options.data_preprocess)
    if options.show:
        for model_options in options.fused or [options]:
            _show(model_options.source.open_model())
        return 0
    if options.only_manual_sharding:
        _write_model(_shard(options.source.open_model(), options), options)
        return 0
    model_dir = options.triton_model_dir
    kind = NewVersion if options.new_version else ModelFolder
    settings = {name: getattr(options, name) for name in ("overwrite_config", "queue_timeout_ms")}
    with kind(model_dir, **settings) if model_dir else nullcontext() as folder:
        _convert(options, options.made_compiler_options, folder)
    return 0


def _convert(
    options: argparse.Namespace, compiler_options: CompilerOptions, folder: ModelFolder | None
) -> None:
    compiling = options.export_popef or options.run_model or folder is not None
    # First: conversion may take minutes.
    report = find_report_folder(compiler_options.engine_options) if compiling else None
    all_options = options.fused or [options]
    conversions = [
        _convert_model(model_options, compiler_options, compiling) for model_options in all_options
    ]
    converted, float_model = conversions[0]
    if options.fused:
        converted, float_model = _fuse(conversions)
    compiled = _compile(converted, float_model, options, compiler_options) if compiling else None
    options.output_dir.mkdir(parents=True, exist_ok=True)
    if options.output_model or not compiling:
        _write_model(converted, options)
    if compiled is not None:
        precision = find_precision(conversions[0][0], options.precision)
        arithmetic = describe_arithmetic(precision, compiler_options.partials_type)
        _write(compiled, arithmetic, options, folder)
    if report is not None:
        print_line(f"wrote {report / 'profile.json'} and profile.pop")
    if options.show_profile:
        from poprt.performance import make_profile, print_profile
        from poprt.terminal import make_console

        for model_options, (model, _) in zip(all_options, conversions, strict=True):
            how = compiler_options.target(), cost_options(compiler_options)
            profile = make_profile(
                model_options.input_model.stem, model_options.precision, model, *how
            )
            print_profile(profile, make_console())


def _convert_model(
    options: argparse.Namespace, compiler_options: CompilerOptions, compiling: bool
) -> tuple[onnx.ModelProto, onnx.ModelProto | None]:
    """Return the converted model, and the model before its precision was converted.

    The second is None if the precision was not converted.
    """
    model = options.source.open_model()
    options.has_fixed_batch = has_fixed_batch(model, options.batch_axis or 0)
    if options.show_io_stat:
        get_pass("model_io_info_stat")(model)
    if compiling and not options.remove_outputs:
        allowed = compiler_options.allow_out_of_memory
        target = compiler_options.target()
        check_weights(model.graph, target, options.precision, allow_out_of_memory=allowed)
    beside = compiling or options.precision_compare
    converter = Converter(**read_converter_arguments(OPTIONS.values(), options))
    converted, float_model = converter.convert_beside_float(model, beside=beside)
    converted = _quantise(converted, float_model, options)
    options.has_noted_dependence = bool(find_noted_dependence(converted))
    return _shard(converted, options) if options.manual_sharding_config else converted, float_model


def _fuse(
    conversions: Sequence[tuple[onnx.ModelProto, onnx.ModelProto | None]],
) -> tuple[onnx.ModelProto, onnx.ModelProto | None]:
    fused = MFConverter().convert([converted for converted, _ in conversions])
    if all(float_model is None for _, float_model in conversions):
        return fused, None
    return fused, MFConverter().convert(
        [float_model or converted for converted, float_model in conversions]
    )


def _shard(model: onnx.ModelProto, options: argparse.Namespace) -> onnx.ModelProto:
    return Sharder(*options.sharding).run(model)


def _write_model(model: onnx.ModelProto, options: argparse.Namespace) -> None:
    options.output_dir.mkdir(parents=True, exist_ok=True)
    default = "model_fusion.onnx" if options.fused else f"{options.input_model.name}.optimized.onnx"
    path = options.output_dir / (options.output_model or default)
    _save(model, path)
    print_line(f"wrote {path}")


def _save(model: onnx.ModelProto, path: Path) -> None:
    """Write the model to `path`.

    If the model is larger than protobuf allows, its weights are written to a second file next to
    it. Each weight is loaded only when it is written.
    """
    writer = ModelWriter(model)
    with Staging() as staging:
        if writer.size <= onnx.checker.MAXIMUM_PROTOBUF:
            writer.write(staging.open(path))
            return
        data = path.with_name(f"{path.name}.data")
        beside = staging.open(data)  # it must exist before the file that refers to it
        write_with_data(model, staging.open(path), beside, data.name)


def _compile(
    converted: onnx.ModelProto,
    whole: onnx.ModelProto | None,
    options: argparse.Namespace,
    compiler_options: CompilerOptions,
) -> Executable:
    return Compiler.compile(
        converted,
        None,
        compiler_options,
        batch_axis=options.batch_axis or 0,
        float_model=whole,
        calibration_data=options.calibration_data,
    )


def _write(
    compiled: Executable, arithmetic: str, options: argparse.Namespace, folder: ModelFolder | None
) -> None:
    lines = []
    if options.export_popef:
        lines += write_executable(compiled, options.output_dir)
    if folder is not None:
        lines += folder.write(compiled)
    lines.append(_describe_time(compiled, arithmetic))
    if (comparison := compiled.findings.comparison) is not None:
        # A warning has it already.
        is_new = comparison.drawn is not None and not comparison.is_bad
        advice = f". {OWN_DATA}" if is_new else ""
        lines.append(f"{comparison.describe()}{advice}")
    if compiled.rows.dependence and not options.fused:
        lines.append(_describe_dependence(compiled, options))
    if options.run_model:
        from poprt.cli.exec_command import time_runs

        lines += [*time_runs(compiled), "(on this machine's CPU; the chip is modelled above)"]
    if folder is not None:
        lines += folder.describe_use()
    for line in lines:
        print_line(line)


def _describe_time(compiled: Executable, arithmetic: str) -> str:
    """Return the chip's time of a batch and the time of a whole call, which `poplar-triton profile`
    calls latency."""
    target = compiled.executable.target
    return (
        f"one batch on {target.title}, {arithmetic} (modelled): {compiled.cycles} cycles, "
        f"{target.seconds(compiled.cycles) * 1e6:.1f} us on the chip alone; a whole call, with the "
        f"host and its link, {compiled.call_seconds * 1e6:.1f} us"
    )


def _describe_dependence(compiled: Executable, options: argparse.Namespace) -> str:
    """Return why rows are not joined, and how requests get any number of rows, if they can: a
    compiled batch of 1 has no other rows on which one could depend."""
    reason = f"the rows of a batch are not proven to be independent: {compiled.rows.dependence}. "
    if compiled.batch_size <= 1 or options.has_noted_dependence:
        return f"{reason}Each request has the compiled shapes, and is computed alone"
    reason += "The whole compiled batch is always computed, for one request at a time; "
    if options.has_fixed_batch:
        return (
            f"{reason}export the model with a variable batch and compile it with --batch_size 1 "
            "for requests with any number of rows"
        )
    shapes = [
        f"{name}={','.join(map(str, _open_batch(sizes, options.batch_axis or 0)))}"
        for name, sizes in options.input_shape
    ]
    shown = f"--input_shape {join(shapes)} " if shapes else ""
    return f"{reason}with {shown}--batch_size 1 requests can have any number of rows"


def _open_batch(sizes: Sequence[int], axis: int) -> list[int]:
    return [OPEN_SIZE if place == axis else size for place, size in enumerate(sizes)]


def _show(model: onnx.ModelProto) -> None:
    for kind, values in (("Input", find_inputs(model.graph)), ("Output", model.graph.output)):
        for value in values:
            tensor = value.type.tensor_type
            dtype = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
            sizes = ", ".join(str(dim.dim_value) for dim in tensor.shape.dim)
            print_line(
                f"{kind} {value.name}: dtype - {_DTYPES.get(dtype, dtype)}, shape - [{sizes}]"
            )


def read_compiler_options(options: argparse.Namespace) -> CompilerOptions:
    """Return the options of the compilation. Raises UsageError for a value that one cannot have."""
    values: dict[str, Any] = {**_popart_options(options), **dict(options.compiler_options)}
    for name, value in read_compiler_fields(OPTIONS.values(), options).items():
        values.setdefault(name, value)
    try:
        return CompilerOptions.from_dict(values)
    except CompileError as error:
        raise UsageError(str(error)) from error


def _popart_options(options: argparse.Namespace) -> dict[str, str]:
    """Return the PopART SessionOptions that CompilerOptions also has; warn of the others."""
    values = {}
    for name, value in options.popart_options:
        snake = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
        if snake in COMPILER_OPTIONS:
            values[snake] = value
        else:
            logging.getLogger("poprt").warning("--popart_options %s has no effect", name)
    return values
