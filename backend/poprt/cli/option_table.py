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
from poprt.options import PRECISIONS

_MODEL = (
    Option(
        "input_model",
        "ONNX file, or a folder that holds one; of TensorFlow, a SavedModel or a frozen graph",
        Form.PATH,
        metavar="PATH",
        aliases=("-i",),
        per_model=True,
    ),
    Option(
        "config_yaml",
        "options by their long names, which win on the command line; model_fusion lists models to fuse",
        Form.PATH,
        metavar="FILE",
    ),
    Option(
        "framework",
        "front end; that of TensorFlow needs the extra poplar-triton[tensorflow] (default: %(default)s)",
        choices=("onnx", "tensorflow"),
        default="onnx",
        per_model=True,
    ),
    Option(
        "input_shape",
        "sizes for variable inputs",
        Form.PAIRS,
        type=read_shape,
        metavar="NAME=d0,d1",
        converter=True,
        in_recipe=True,
    ),
    Option(
        "batch_size", "batch size of all inputs", type=positive, metavar="N", converter=True, in_recipe=True
    ),
    Option(
        "batch_axis",
        "axis that holds the batch (default: 0)",
        type=int,
        metavar="N",
        converter=True,
        in_recipe=True,
    ),
    Option(
        "fix_input",
        "inputs that become constants, as sr=16000 or sizes=2,3: only the branch of an If that they "
        "choose is compiled",
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
    Option("infer_shape_ahead", "fold constants and infer shapes before all else", Form.FLAG, converter=True),
    Option(
        "max_tensor_size",
        "largest tensor that constant folding may make; -1: no bound (default: %(default)s)",
        type=int,
        metavar="BYTES",
        default=-1,
        converter=True,
    ),
    Option(
        "checkpoints", "inner tensors that become outputs too", Form.NAMES, metavar="NAME", converter=True
    ),
    Option(
        "remove_outputs",
        "outputs to drop, with what only they need",
        Form.NAMES,
        metavar="NAME",
        converter=True,
        in_recipe=True,
    ),
    Option(
        "check", "run the converted model beside the given one on made-up data", Form.FLAG, converter=True
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
        "fp16_skip_op_names",
        "nodes that stay fp32 in an fp16 model",
        Form.NAMES,
        metavar="NODE",
        converter=True,
        in_recipe=True,
        ours=True,
    ),
    Option(
        "enable_avoid_overflow_patterns",
        "keep what is known to overflow in fp32, in an fp16 model",
        Form.FLAG,
        converter=True,
    ),
    Option(
        "fp8_params",
        "format (F143, F152) of inputs and weights and their scales, powers of two (default: %(default)s)",
        metavar="FORMAT,FORMAT,SCALE,SCALE",
        default="F143,F143,-1,-1",
        converter=True,
        in_recipe=True,
    ),
    Option(
        "fp8_skip_op_names",
        "products that stay fp16 in an fp8 model",
        Form.NAMES,
        metavar="NODE",
        converter=True,
        in_recipe=True,
    ),
    Option(
        "data_preprocess",
        "samples by input name, along the first axis: .npz, a folder of .npy, or a pickled dict; for the "
        "calibration of fp8, and to look for overflow with in a model in half",
        Form.PATH,
        metavar="PATH",
    ),
    Option(
        "calibration_with_data",
        "choose formats and scales of an fp8 model by what it loses on --data_preprocess",
        Form.FLAG,
        aliases=("--quantize",),
        converter="quantize",
        per_model=False,
    ),
    Option(
        "calibration_loss_type",
        "what is lost: see docs/precision.md; gptq is for fp8_weight (default: %(default)s)",
        choices=("mse", "mae", "snr", "kld", "cos_dist", "gptq"),
        default="kld",
        aliases=("--quantize_loss_type",),
    ),
    Option(
        "num_of_layers_keep_fp16",
        "so many products of largest loss stay fp16, with --calibration_with_data",
        type=count,
        metavar="N",
        default=0,
    ),
    Option(
        "precision_compare",
        "compare what Conv, Gemm and MatMul of an fp8 model make with what they made, in a log",
        Form.FLAG,
    ),
)

_GRAPH = (
    Option(
        "enable_compress_pattern", form=Form.FLAG, converter=True, refused="what it looks for is not public"
    ),
    Option("merge_if_with_same_cond", "join Ifs of one condition", Form.FLAG, converter=True),
    Option("fold_periodic_initializer", "keep one period of weights that repeat", Form.FLAG, converter=True),
    Option("eightbitsio", "images come as bytes and are scaled on the chip", Form.FLAG, converter=True),
    Option(
        "merge_moe", "compute two experts, from node to node, at once", metavar="B1,E1,B2,E2", converter=True
    ),
    Option(
        "apply_hcsr",
        "join inputs of that type and shape, which the host concatenates",
        Form.VALUES,
        type=read_group,
        metavar="DTYPE,[SHAPE][,N]",
        converter=True,
    ),
    Option(
        "pack_args",
        "take samples end to end: max_valid_num=N segment_max_size=N, see PackArgs",
        Form.PAIRS,
        type=read_option,
        metavar="KEY=VAL",
        converter=True,
    ),
)

_PASSES = (
    Option(
        "passes",
        "further passes, run in that order after the others",
        Form.NAMES,
        metavar="PASS",
        converter="used_passes",
        in_profile=True,
        in_recipe=True,
    ),
    Option(
        "skip_passes",
        "passes to leave out",
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
        "put the chip's Gelu for the formula with Erf, too",
        Form.FLAG,
        converter=True,
        in_profile=True,
        in_recipe=True,
    ),
    Option(
        "disable_fast_norm",
        "leave layer norms GroupNormalization",
        Form.FLAG,
        converter=True,
        in_profile=True,
        in_recipe=True,
    ),
    Option(
        "enable_insert_remap",
        "lay tensors out anew, see --remap_mode",
        Form.FLAG,
        converter=True,
        in_profile=True,
    ),
    Option(
        "remap_mode",
        "before_ or after_ and an operator; default: after_matmul",
        Form.NAMES,
        metavar="MODE",
        converter=True,
        in_profile=True,
    ),
    Option(
        "serialize_matmul",
        "cut products into FACTOR pieces, computed one after the other",
        Form.PAIRS,
        type=read_serialised,
        metavar="OP=FACTOR[/MODE[/KEEP]]",
        converter=True,
        in_profile=True,
    ),
    Option(
        "serialize_matmul_add",
        "the same of a product and the addition behind it",
        Form.PAIRS,
        type=read_named,
        metavar="MATMUL/ADD=FACTOR",
        converter=True,
        in_profile=True,
    ),
    Option("merge_matmul", "join two products of one input", metavar="A,B", converter=True, in_profile=True),
    Option(
        "merge_matmul_add",
        "the same with the additions behind them",
        metavar="M1,A1,M2,A2",
        converter=True,
        in_profile=True,
    ),
    Option("custom_pass_config", "Python files that register passes", Form.NAMES, metavar="FILE"),
    Option(
        "custom_shape_inference", "Python files that register shape functions", Form.NAMES, metavar="FILE"
    ),
    Option(
        "custom_ort_library",
        "custom-operator libraries of ONNX Runtime with the domain of their operators, and the cycles "
        "that these take of a tile for each element of a result",
        Form.VALUES,
        type=read_library,
        metavar="DOMAIN=FILE[,CYCLES]",
        ours=True,
    ),
    Option(
        "custom_library_so_paths",
        form=Form.VALUES,
        metavar="FILE",
        refused="libraries for PopART are code for the real compiler and cannot be loaded here; say in "
        "Python what the operator computes (register_op_body) in a file for --custom_shape_inference, or "
        "name a library of ONNX Runtime's with --custom_ort_library",
    ),
    Option("list_all_passes", "print the names of all passes and end", Form.FLAG),
)

_CHIP = (
    Option(
        "ipu_version",
        f"the chip: {known_chips()} (default: c600, Poplar's ipu21)",
        type=read_chip,
        metavar="NAME",
        compiler=True,
        in_recipe=True,
    ),
    Option(
        "available_memory_proportion",
        "share of tile memory for products (default: 0.6)",
        type=proportion,
        metavar="F",
        compiler=True,
        in_recipe=True,
    ),
    Option(
        "batches_per_step",
        "batches run per return to the host (default: 1)",
        type=positive,
        metavar="N",
        compiler=True,
        in_recipe=True,
    ),
    Option(
        "num_io_tiles",
        "tiles that only do I/O, so that it overlaps (default: 0)",
        type=count,
        metavar="N",
        compiler=True,
        in_recipe=True,
    ),
    Option(
        "allow_out_of_memory",
        "compile what, as modelled, does not fit into the chip's memory",
        Form.FLAG,
        compiler=True,
        in_recipe=True,
        ours=True,
    ),
    Option(
        "only_ipu_operators",
        "refuse operators that the IPU's own compiler lacks, instead of a warning",
        Form.FLAG,
        compiler=True,
        in_recipe=True,
        ours=True,
    ),
    Option(
        "skip_dry_run",
        "compile without loading and running the result once",
        Form.FLAG,
        compiler=True,
        ours=True,
    ),
    Option(
        "compiler_options",
        "further CompilerOptions",
        Form.PAIRS,
        type=read_option,
        metavar="KEY=VAL",
        in_recipe=True,
    ),
    Option(
        "popart_options", "further SessionOptions of PopART", Form.VALUES, type=read_option, metavar="KEY=VAL"
    ),
    Option(
        "optimize_internal_exchange_code", "accepted; the chip's exchange code is not modelled", Form.FLAG
    ),
    Option(
        "manual_sharding_config",
        "YAML list of node, device and stage: which IPU runs what (compile with num_ipus and "
        "virtual_graph_mode=manual)",
        Form.PATH,
        metavar="FILE",
    ),
    Option("only_manual_sharding", "shard the model as it is, and do nothing else", Form.FLAG),
    Option("perf_tuner", form=Form.FLAG, refused="the real tool has not implemented it either"),
)

_OUTPUT = (
    Option("export_popef", "write executable.popef (and weights.popef) into output_dir", Form.FLAG),
    Option(
        "output_dir", "folder for all output (default: %(default)s)", Form.FOLDER, metavar="DIR", default="./"
    ),
    Option("output_model", "file name of the converted ONNX model inside output_dir", metavar="NAME"),
    Option(
        "triton_model_dir",
        "write a whole Triton model folder; its config.pbtxt and name_map.json are kept, and must fit the "
        "executable",
        Form.FOLDER,
        metavar="DIR",
        ours=True,
    ),
    Option(
        "new_version",
        "put the model into that folder as a new version, of the next number, beside those that are served",
        Form.FLAG,
        ours=True,
    ),
    Option(
        "overwrite_config",
        "write config.pbtxt and name_map.json of that folder anew",
        Form.FLAG,
        ours=True,
    ),
    Option(
        "queue_timeout_ms",
        "how long a request may wait in Triton's queue before it is rejected, in ms, written into "
        "config.pbtxt; a request's own timeout counts where it is shorter (default: no bound)",
        type=positive,
        metavar="N",
        ours=True,
    ),
    Option(
        "run",
        "compile, run made-up data, and print batch size, latency and throughput of this CPU",
        Form.FLAG,
        dest="run_model",
    ),
)

_REPORTS = (
    Option("show", "print the model's inputs and outputs and end", Form.FLAG),
    Option(
        "show_io_stat",
        "print how many inputs and outputs there are of which type and shape",
        Form.FLAG,
        per_model=True,
    ),
    Option(
        "show_profile",
        "print what a batch would take on the chip, and where (modelled)",
        Form.FLAG,
        ours=True,
    ),
    Option(
        "disable_compilation_progress_bar",
        "no progress bars",
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
    for each in (
        *_MODEL,
        *_PRECISION,
        *_GRAPH,
        *_PASSES,
        *_CHIP,
        *_OUTPUT,
        *_REPORTS,
        *LIMITS,
    )
}
"""All options of `poprt` by name, but those that every command has."""


def iter_profile_options() -> list[Option]:
    """Return the options that `poplar-triton profile` passes to Converter, too."""
    return [each for each in OPTIONS.values() if each.in_profile]
