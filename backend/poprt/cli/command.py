"""The `poprt` command: the real tool's options, and our own `--triton_model_dir`.

The options are read and checked here. `conversion` does the work. It is imported when there is
some, because that takes most of the time of a small model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from simipu.errors import SimIpuError

from popef._tools.console import UsageError, print_line, run
from popef._tools.lazy import importing, leave_out_protobuf
from popef._tools.paths import check_input
from poprt._names import QUANTISED_PRECISIONS
from poprt.cli.parser import make_parser, make_tf2onnx_parser, read_arguments, read_sharding
from poprt.cli.supervision import supervised
from poprt.option_table import OPTIONS
from poprt.terminal import configure_logging

_TF2ONNX = "tf2onnx"
"""Name of the real tool's sub-command, which comes last on the command line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 for success, 1 for bad input, 2 for wrong usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = make_parser()
    parser.set_defaults(
        run=_begin, own_process=arguments is None, given=words, tf2onnx=None, fused=[]
    )
    if _TF2ONNX in words:
        place = words.index(_TF2ONNX)
        converting, words = words[place + 1 :], words[:place]
        parser.set_defaults(tf2onnx=make_tf2onnx_parser().parse_args(converting), given=words)
    return run(parser, words, (SimIpuError,))


def _begin(options: argparse.Namespace) -> int:
    """Complete and check the options, then run the command."""
    if options.config_yaml is not None:
        check_input(options.config_yaml, "file")
        words, models = read_arguments(options.config_yaml, options.parser)
        guard, own_process, words_given = options.guard, options.own_process, options.given
        options = options.parser.parse_args([*words, *words_given])
        options.guard, options.own_process = guard, own_process
        options.fused = [
            options.parser.parse_args([*words, *model, *words_given]) for model in models
        ]
    configure_logging("poprt", options.logging_level)
    for model_options in (options, *options.fused):
        _refuse(model_options)
    if not options.list_all_passes:
        _check(options)
    for model_options in (options, *options.fused):
        model_options.parser.check_paths(model_options)
    with importing():
        leave_out_protobuf()
        from poprt.cli import conversion

    if options.list_all_passes:
        conversion.load_own_code(options)
        for name in conversion.list_passes():
            print_line(name)
        return 0
    if options.manual_sharding_config is not None:
        options.sharding = read_sharding(options.manual_sharding_config)
    options.made_compiler_options = conversion.read_compiler_options(options)
    for model_options in options.fused or [options]:
        model_options.source = conversion.find_source(model_options)
    return supervised(conversion.convert)(options)


def _check(options: argparse.Namespace) -> None:
    """Raise UsageError if options contradict or require each other."""
    if options.input_model is None and not options.fused:
        raise UsageError("the following arguments are required: -i/--input_model")
    if options.only_manual_sharding and options.manual_sharding_config is None:
        raise UsageError("--only_manual_sharding requires --manual_sharding_config, a YAML file")
    if options.new_version and not options.triton_model_dir:
        raise UsageError(
            "--new_version requires --triton_model_dir, the model folder of the new version"
        )
    if options.queue_timeout_ms is not None and not options.triton_model_dir:
        raise UsageError(
            "--queue_timeout_ms requires --triton_model_dir, because it is written into that "
            "folder's config.pbtxt"
        )
    _check_calibration(options)

    if options.fused and not options.export_popef and not options.triton_model_dir:
        raise UsageError(
            "model_fusion requires export_popef: True, because a fused model is run from its PopEF "
            "file"
        )
    if options.fused and options.manual_sharding_config is not None:
        raise UsageError(
            "model_fusion and manual_sharding_config cannot be combined: shard the models first"
        )


def _refuse(options: argparse.Namespace) -> None:
    """Raise UsageError, naming the option, for options that are not supported here."""
    for option in OPTIONS.values():
        if option.refused and getattr(options, option.attribute):
            raise UsageError(f"{option.long_name} is not supported: {option.refused}")


def _check_calibration(options: argparse.Namespace) -> None:
    """Raise UsageError for 8-bit options with other precisions, or calibration without data."""
    for name in ("calibration_with_data", "precision_compare"):
        if getattr(options, name) and options.precision not in QUANTISED_PRECISIONS:
            expected = " or ".join(QUANTISED_PRECISIONS)
            raise UsageError(f"--{name} requires --precision {expected}, found {options.precision}")
    if options.calibration_with_data and options.data_preprocess is None:
        raise UsageError(
            "--calibration_with_data requires --data_preprocess, samples of the model's inputs"
        )
    if options.num_of_layers_keep_fp16 and not options.calibration_with_data:
        raise UsageError(
            "--num_of_layers_keep_fp16 requires --calibration_with_data, which computes the losses"
        )


if __name__ == "__main__":  # older scripts call `python -m poprt.cli.command`
    sys.exit(main())
