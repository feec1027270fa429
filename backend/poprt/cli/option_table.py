"""Table of the options of `poprt`: one entry each, in the order of the help.

The parser, the help, the shell's completion, docs/poprt-options.md, the keys of a YAML file, the
call of Converter and the fields of CompilerOptions follow from the entries. An option that a
conversion reads is an argument of Converter and a field of ConverterOptions as well.
"""

from __future__ import annotations

from collections.abc import Mapping

from simipu.target import known_chips

from popef._tools.arguments import count, positive, proportion
from poprt.cli.arguments import (
    read_chip,
    read_group,
    read_library,
    read_named,
    read_option,
    read_serialised,
    read_shape,
)
from poprt.cli.entry import Form, Option
from poprt.cli.supervision import LIMITS
from poprt.options import IO_PRECISIONS, PRECISIONS

_MODEL = (
    Option(
        "input_model",
        "ONNX file, or a folder that contains one; for TensorFlow, a SavedModel or a frozen graph",
        Form.PATH,
        metavar="PATH",
        aliases=("-i",),
        per_model=True,
    ),
    Option(
        "config_yaml",
        "YAML file of options by long name; the command line takes precedence; model_fusion lists "
        "models",
        Form.PATH,
        metavar="FILE",
    ),
    Option(
        "framework",
        "framework; tensorflow requires the extra poplar-triton[tensorflow] (default: %(default)s)",
        choices=("onnx", "tensorflow"),
        default="onnx",
        per_model=True,
    ),
    Option(
        "input_shape",
        "shapes of inputs with variable dimensions",
        Form.PAIRS,
        type=read_shape,
        metavar="NAME=d0,d1",
        converter=True,
        in_recipe=True,
    ),
    Option(
        "batch_size",
        "batch size of all inputs",
        type=positive,
        metavar="N",
        converter=True,
        in_recipe=True,
    ),
    Option(
        "batch_axis",
        "axis of the batch (default: 0)",
        type=int,
        metavar="N",
        converter=True,
        in_recipe=True,
    ),
    Option(
        "fix_input",
        "inputs that become constants, such as sr=16000; unused branches of an If are not compiled",
        Form.PAIRS,
        type=read_named,
        metavar="NAME=VALUE",
        converter="fix_inputs",
        in_recipe=True,
        ours=True,
    ),
    Option(
        "convert_version",
        "target opset (default: the model's own)",
        type=positive,
        metavar="N",
        converter=True,
        in_recipe=True,
    ),
    Option(
        "infer_shape_ahead",
        "fold constants and infer shapes before all other passes",
        Form.FLAG,
        converter=True,
    ),
    Option(
        "max_tensor_size",
        "size limit of tensors that constant folding creates; -1: no limit (default: %(default)s)",
        type=int,
        metavar="BYTES",
        default=-1,
        converter=True,
    ),
    Option(
        "checkpoints",
        "inner tensors that become additional outputs",
        Form.NAMES,
        metavar="NAME",
        converter=True,
    ),
    Option(
        "remove_outputs",
        "outputs to remove, with the nodes that only they need",
        Form.NAMES,
        metavar="NAME",
        converter=True,
        in_recipe=True,
    ),
    Option(
        "check",
        "compare the converted model with the original one on random inputs",
        Form.FLAG,
        converter=True,
    ),
)

_PRECISION = (
    Option(
        "precision",
        "type of weights and arithmetic (default: %(default)s)",
        choices=PRECISIONS,
        default="fp32",
        converter=True,
        in_recipe=True,
    ),
    Option(
        "io_precision",
        "type of the inputs and outputs of floats: model, those of the converted model; fp32, "
        "which JSON requests can carry; fp16 (default: model)",
        choices=IO_PRECISIONS,
        converter=True,
        in_recipe=True,
        in_profile=True,
        ours=True,
    ),
    Option(
        "fp16_skip_op_names",
        "names of nodes that stay fp32 in an fp16 model",
        Form.NAMES,
        metavar="NODE",
        converter=True,
        in_recipe=True,
        ours=True,
    ),
    Option(
        "enable_avoid_overflow_patterns",
        "keep operators that typically overflow in fp32, in an fp16 model",
        Form.FLAG,
        converter=True,
    ),
    Option(
        "fp8_params",
        "formats (F143, F152), then power-of-two scales, of activations and weights (default: "
        "%(default)s)",
        metavar="FORMAT,FORMAT,SCALE,SCALE",
        default="F143,F143,-1,-1",
        converter=True,
        in_recipe=True,
    ),
    Option(
        "fp8_skip_op_names",
        "names of products that stay fp16 in an fp8 model",
        Form.NAMES,
        metavar="NODE",
        converter=True,
        in_recipe=True,
    ),
    Option(
        "data_preprocess",
        "samples by input name, along the first axis: an .npz file, a folder of .npy files, or a "
        "pickled dict; used to calibrate fp8 and to check a half-precision model for overflow",
        Form.PATH,
        metavar="PATH",
    ),
    Option(
        "calibration_with_data",
        "choose formats and scales of an fp8 model by their loss on --data_preprocess",
        Form.FLAG,
        aliases=("--quantize",),
        converter="quantize",
        per_model=False,
    ),
    Option(
        "calibration_loss_type",
        "calibration loss, see docs/precision.md; gptq is for fp8_weight (default: %(default)s)",
        choices=("mse", "mae", "snr", "kld", "cos_dist", "gptq"),
        default="kld",
        aliases=("--quantize_loss_type",),
    ),
    Option(
        "num_of_layers_keep_fp16",
        "number of products with the largest loss that stay fp16, with --calibration_with_data",
        type=count,
        metavar="N",
        default=0,
    ),
    Option(
        "precision_compare",
        "write a log that compares Conv, Gemm and MatMul of an fp8 model with the original ones",
        Form.FLAG,
    ),
)

_GRAPH = (
    Option(
        "enable_compress_pattern",
        form=Form.FLAG,
        converter=True,
        refused="the pattern that it matches is not public",
    ),
    Option(
        "merge_if_with_same_cond", "merge Ifs with the same condition", Form.FLAG, converter=True
    ),
    Option(
        "fold_periodic_initializer",
        "store one period of weights that repeat",
        Form.FLAG,
        converter=True,
    ),
    Option(
        "eightbitsio",
        "inputs are images in bytes, which the chip scales",
        Form.FLAG,
        converter=True,
    ),
    Option(
        "merge_moe",
        "merge two experts, given by their first and last nodes",
        metavar="B1,E1,B2,E2",
        converter=True,
    ),
    Option(
        "apply_hcsr",
        "merge inputs of this type and shape; the host concatenates them",
        Form.VALUES,
        type=read_group,
        metavar="DTYPE,[SHAPE][,N]",
        converter=True,
    ),
    Option(
        "pack_args",
        "pack samples end to end: max_valid_num=N segment_max_size=N, see PackArgs",
        Form.PAIRS,
        type=read_option,
        metavar="KEY=VAL",
        converter=True,
    ),
)

_PASSES = (
    Option(
        "passes",
        "more passes, run in this order after the others",
        Form.NAMES,
        metavar="PASS",
        converter="used_passes",
        in_profile=True,
        in_recipe=True,
    ),
    Option(
        "skip_passes",
        "passes to skip",
        Form.NAMES,
        metavar="PASS",
        converter=True,
        in_profile=True,
        in_recipe=True,
    ),
    Option(
        "fp16_skip_op_types",
        "operators that stay fp32 in an fp16 model",
        Form.NAMES,
        metavar="OP",
        converter=True,
        in_profile=True,
        in_recipe=True,
    ),
    Option(
        "enable_erf_gelu",
        "also replace GELUs with Erf by the chip's Gelu",
        Form.FLAG,
        converter=True,
        in_profile=True,
        in_recipe=True,
    ),
    Option(
        "disable_fast_norm",
        "keep layer norms as GroupNormalization",
        Form.FLAG,
        converter=True,
        in_profile=True,
        in_recipe=True,
    ),
    Option(
        "enable_insert_remap",
        "insert operators that change the tensor layout, see --remap_mode",
        Form.FLAG,
        converter=True,
        in_profile=True,
    ),
    Option(
        "remap_mode",
        "position: before_ or after_ and an operator (default: after_matmul)",
        Form.NAMES,
        metavar="MODE",
        converter=True,
        in_profile=True,
    ),
    Option(
        "serialize_matmul",
        "split matrix products into FACTOR parts, computed one after the other",
        Form.PAIRS,
        type=read_serialised,
        metavar="OP=FACTOR[/MODE[/KEEP]]",
        converter=True,
        in_profile=True,
    ),
    Option(
        "serialize_matmul_add",
        "split matrix products with the following addition into FACTOR parts",
        Form.PAIRS,
        type=read_named,
        metavar="MATMUL/ADD=FACTOR",
        converter=True,
        in_profile=True,
    ),
    Option(
        "merge_matmul",
        "merge two matrix products that share an input",
        metavar="A,B",
        converter=True,
        in_profile=True,
    ),
    Option(
        "merge_matmul_add",
        "merge two matrix products that share an input, with the following additions",
        metavar="M1,A1,M2,A2",
        converter=True,
        in_profile=True,
    ),
    Option("custom_pass_config", "Python files that register passes", Form.NAMES, metavar="FILE"),
    Option(
        "custom_shape_inference",
        "Python files that register shape functions",
        Form.NAMES,
        metavar="FILE",
    ),
    Option(
        "custom_ort_library",
        "custom-operator libraries of ONNX Runtime; CYCLES is the cost per tile and result element",
        Form.VALUES,
        type=read_library,
        metavar="DOMAIN=FILE[,CYCLES]",
        ours=True,
    ),
    Option(
        "custom_library_so_paths",
        form=Form.VALUES,
        metavar="FILE",
        refused="libraries for PopART are code for the real compiler and cannot be loaded; "
        "describe the "
        "operator in Python (register_op_body) in a file for --custom_shape_inference, or use a "
        "custom-operator library of ONNX Runtime with --custom_ort_library",
    ),
    Option("list_all_passes", "print the names of all passes and exit", Form.FLAG),
)

_CHIP = (
    Option(
        "ipu_version",
        f"chip: {known_chips()} (default: c600, Poplar's ipu21)",
        type=read_chip,
        metavar="NAME",
        compiler=True,
        in_recipe=True,
    ),
    Option(
        "available_memory_proportion",
        "proportion of tile memory for products (default: 0.6)",
        type=proportion,
        metavar="F",
        compiler=True,
        in_recipe=True,
    ),
    Option(
        "batches_per_step",
        "batches per return to the host (default: 1)",
        type=positive,
        metavar="N",
        compiler=True,
        in_recipe=True,
    ),
    Option(
        "num_io_tiles",
        "number of tiles that only do I/O, in parallel with the computation (default: 0)",
        type=count,
        metavar="N",
        compiler=True,
        in_recipe=True,
    ),
    Option(
        "allow_out_of_memory",
        "compile models estimated not to fit into the chip's memory",
        Form.FLAG,
        compiler=True,
        in_recipe=True,
        ours=True,
    ),
    Option(
        "only_ipu_operators",
        "reject operators that the IPU's own compiler does not support, instead of a warning",
        Form.FLAG,
        compiler=True,
        in_recipe=True,
        ours=True,
    ),
    Option(
        "skip_dry_run",
        "skip the dry run: do not load and run the compiled model once",
        Form.FLAG,
        compiler=True,
        ours=True,
    ),
    Option(
        "compiler_options",
        "more CompilerOptions",
        Form.PAIRS,
        type=read_option,
        metavar="KEY=VAL",
        in_recipe=True,
    ),
    Option(
        "popart_options",
        "more SessionOptions of PopART (no effect)",
        Form.VALUES,
        type=read_option,
        metavar="KEY=VAL",
    ),
    Option(
        "optimize_internal_exchange_code",
        "no effect: the chip's exchange code is not modelled",
        Form.FLAG,
    ),
    Option(
        "manual_sharding_config",
        "YAML list of node, device and stage: which IPU runs what (compile with num_ipus and "
        "virtual_graph_mode=manual)",
        Form.PATH,
        metavar="FILE",
    ),
    Option("only_manual_sharding", "only shard the model, without a conversion", Form.FLAG),
    Option("perf_tuner", form=Form.FLAG, refused="not implemented in the real tool either"),
)

_OUTPUT = (
    Option("export_popef", "write executable.popef (and weights.popef) into output_dir", Form.FLAG),
    Option(
        "output_dir",
        "output folder (default: %(default)s)",
        Form.FOLDER,
        metavar="DIR",
        default="./",
    ),
    Option("output_model", "file name of the converted ONNX model in output_dir", metavar="NAME"),
    Option(
        "triton_model_dir",
        "write a Triton model folder; existing config.pbtxt and name_map.json are kept and must "
        "match",
        Form.FOLDER,
        metavar="DIR",
        ours=True,
    ),
    Option(
        "new_version",
        "publish the model in that folder as a new version with the next number",
        Form.FLAG,
        ours=True,
    ),
    Option(
        "overwrite_config",
        "overwrite config.pbtxt and name_map.json of that folder",
        Form.FLAG,
        ours=True,
    ),
    Option(
        "queue_timeout_ms",
        "limit in ms of a request's wait in Triton's queue; a shorter own timeout wins (default: "
        "no limit)",
        type=positive,
        metavar="N",
        ours=True,
    ),
    Option(
        "run",
        "compile, run on random inputs, and print batch size, latency and throughput of this CPU",
        Form.FLAG,
        dest="run_model",
    ),
)

_REPORTS = (
    Option("show", "print the model's inputs and outputs and exit", Form.FLAG),
    Option(
        "show_io_stat",
        "print the number of inputs and outputs per type and shape",
        Form.FLAG,
        per_model=True,
    ),
    Option(
        "show_profile",
        "print the estimated time and memory of a batch on the chip (modelled)",
        Form.FLAG,
        ours=True,
    ),
    Option(
        "disable_compilation_progress_bar",
        "hide progress bars",
        Form.FLAG,
        converter="disable_progress_bar",
        turns_off="show_compilation_progress_bar",
        per_model=False,
    ),
    Option(
        "logging_level",
        "log level (default: %(default)s)",
        choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
        default="WARNING",
    ),
)

OPTIONS: Mapping[str, Option] = {
    each.name: each
    for each in (*_MODEL, *_PRECISION, *_GRAPH, *_PASSES, *_CHIP, *_OUTPUT, *_REPORTS, *LIMITS)
}
"""All options of `poprt` by name, but those that every command has."""


def iter_profile_options() -> list[Option]:
    """Return the options that `poplar-triton profile` passes to Converter, too."""
    return [each for each in OPTIONS.values() if each.in_profile]
