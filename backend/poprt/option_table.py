"""Table of the options of `poprt`: one entry each, in the order of the help.

The parser, the help, the shell's completion, docs/poprt-options.md, the keys of a YAML file, the
call of Converter, ConverterOptions and the fields of CompilerOptions follow from the entries. An
option that a conversion reads is an argument in the signature of Converter as well.
"""

from __future__ import annotations

from simipu.chip.target import known_chips

from popef._tools.arguments import positive, proportion, whole_number
from popef._tools.options import make_table
from poprt._names import IO_PRECISIONS, PRECISIONS
from poprt.option_entry import (
    COUNT,
    FILE,
    FILES,
    FLAG,
    FOLDER,
    FP8,
    GROUPS,
    INTEGER,
    MAPPING,
    NAME_LIST,
    NAME_SET,
    NAMES,
    NODES,
    NUMBER,
    PACKING,
    PASSES,
    Form,
    Option,
    Takes,
    Use,
    read_chip,
    read_group,
    read_library,
    read_named,
    read_option,
    read_serialised,
    read_shape,
    word_argument,
)

CONVERTER, COMPILER, PROFILE, RECIPE, MODEL, ONCE, OURS = Use
SETTINGS = Takes(Form.PAIRS, "KEY=VAL", read_option)

_MODEL = (
    Option(
        "input_model",
        "ONNX file, or a folder that contains one; for TensorFlow, a SavedModel or a frozen graph",
        Takes(Form.PATH, "PATH"),
        MODEL,
        aliases=("-i",),
        synonyms=("--model", "--onnx"),
        reads="path",
    ),
    Option(
        "config_yaml",
        "YAML file of options by long name; the command line takes precedence; model_fusion lists "
        "models",
        FILE,
        reads="file",
    ),
    Option(
        "framework",
        "framework; tensorflow requires the extra poplar-triton[tensorflow] (default: %(default)s)",
        use=MODEL,
        choices=("onnx", "tensorflow"),
        default="onnx",
    ),
    Option(
        "input_shape",
        "shapes of inputs with variable dimensions; -1 leaves the batch to --batch_size",
        Takes(Form.PAIRS, "NAME=d0,d1", read_shape),
        CONVERTER | RECIPE,
        kind=MAPPING,
    ),
    Option("batch_size", "batch size of all inputs", NUMBER, CONVERTER | RECIPE),
    Option("batch_axis", "axis of the batch (default: 0)", INTEGER, CONVERTER | RECIPE),
    Option(
        "fix_input",
        "inputs that become constants, such as sr=16000; unused branches of an If are not compiled",
        Takes(Form.PAIRS, "NAME=VALUE", read_named),
        CONVERTER | RECIPE | OURS,
        passed_as="fix_inputs",
        kind=MAPPING,
    ),
    Option(
        "convert_version", "target opset (default: the model's own)", NUMBER, CONVERTER | RECIPE
    ),
    Option(
        "infer_shape_ahead",
        "fold constants and infer shapes before all other passes",
        FLAG,
        CONVERTER,
    ),
    Option(
        "max_tensor_size",
        "size limit of tensors that constant folding creates; -1: no limit (default: %(default)s)",
        Takes(Form.VALUE, "BYTES", whole_number(-1, 1 << 62)),
        CONVERTER,
        default=-1,
    ),
    Option(
        "checkpoints",
        "inner tensors that become additional outputs",
        NAMES,
        CONVERTER,
        kind=NAME_LIST,
    ),
    Option(
        "remove_outputs",
        "outputs to remove, with the nodes that only they need",
        NAMES,
        CONVERTER | RECIPE,
        kind=NAME_SET,
    ),
    Option(
        "check",
        "compare the converted model with the original one on random inputs",
        FLAG,
        CONVERTER,
    ),
)

_PRECISION = (
    Option(
        "precision",
        "type of weights and arithmetic; fp32 keeps the model's own types (default: %(default)s)",
        use=CONVERTER | RECIPE,
        choices=PRECISIONS,
        default="fp32",
        kind=word_argument(*PRECISIONS),
    ),
    Option(
        "io_precision",
        "type of the inputs and outputs of floats: model, those of the converted model; fp32, "
        "which JSON requests can carry; fp16 (default: model)",
        use=CONVERTER | PROFILE | RECIPE | OURS,
        choices=IO_PRECISIONS,
        kind=word_argument(*IO_PRECISIONS),
    ),
    Option(
        "fp16_skip_op_names",
        "names of nodes that stay fp32 in an fp16 model",
        NODES,
        CONVERTER | RECIPE | OURS,
        kind=NAME_SET,
    ),
    Option(
        "enable_avoid_overflow_patterns",
        "keep operators that typically overflow in fp32, in an fp16 model",
        FLAG,
        CONVERTER,
    ),
    Option(
        "fp8_params",
        "formats (F143, F152), then power-of-two scales, of activations and weights (default: "
        "%(default)s)",
        Takes(Form.VALUE, "FORMAT,FORMAT,SCALE,SCALE"),
        CONVERTER | RECIPE,
        # Two defaults, as in the real tool: its command's parser has scales of -1, its Converter 0.
        default="F143,F143,-1,-1",
        converter_default="F143,F143,0,0",
        kind=FP8,
    ),
    Option(
        "fp8_skip_op_names",
        "names of products that stay fp16 in an fp8 model",
        NODES,
        CONVERTER | RECIPE,
        kind=NAME_SET,
    ),
    Option(
        "data_preprocess",
        "samples by input name, along the first axis: an .npz file, a folder of .npy files, or a "
        "pickled dict; used to calibrate fp8 and to check a half-precision model for overflow",
        Takes(Form.PATH, "PATH"),
        reads="path",
    ),
    Option(
        "calibration_with_data",
        "choose formats and scales of an fp8 model by their loss on --data_preprocess",
        FLAG,
        CONVERTER | ONCE,
        passed_as="quantize",
        aliases=("--quantize",),
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
        COUNT,
        default=0,
    ),
    Option(
        "precision_compare",
        "write a log that compares Conv, Gemm and MatMul of an fp8 model with the original ones",
        FLAG,
    ),
)

_GRAPH = (
    Option(
        "enable_compress_pattern",
        "",
        FLAG,
        CONVERTER,
        refused="the pattern that it matches is not public",
    ),
    Option("merge_if_with_same_cond", "merge Ifs with the same condition", FLAG, CONVERTER),
    Option("fold_periodic_initializer", "store one period of weights that repeat", FLAG, CONVERTER),
    Option("eightbitsio", "inputs are images in bytes, which the chip scales", FLAG, CONVERTER),
    Option(
        "merge_moe",
        "merge two experts, given by their first and last nodes",
        Takes(Form.VALUE, "B1,E1,B2,E2"),
        CONVERTER,
    ),
    Option(
        "apply_hcsr",
        "merge inputs of this type and shape; the host concatenates them",
        Takes(Form.VALUES, "DTYPE,[SHAPE][,N]", read_group),
        CONVERTER,
        kind=GROUPS,
    ),
    Option(
        "pack_args",
        "pack samples end to end: max_valid_num=N segment_max_size=N, see PackArgs",
        SETTINGS,
        CONVERTER,
        kind=PACKING,
    ),
)

_PASSES = (
    Option(
        "passes",
        "more passes, run in this order after the others",
        PASSES,
        CONVERTER | PROFILE | RECIPE,
        passed_as="used_passes",
        kind=NAME_LIST,
    ),
    Option("skip_passes", "passes to skip", PASSES, CONVERTER | PROFILE | RECIPE, kind=NAME_SET),
    Option(
        "fp16_skip_op_types",
        "operators that stay fp32 in an fp16 model",
        Takes(Form.NAMES, "OP"),
        CONVERTER | PROFILE | RECIPE,
        kind=NAME_SET,
    ),
    Option(
        "enable_erf_gelu",
        "also replace GELUs with Erf by the chip's Gelu",
        FLAG,
        CONVERTER | PROFILE | RECIPE,
    ),
    Option(
        "disable_fast_norm",
        "keep layer norms as GroupNormalization",
        FLAG,
        CONVERTER | PROFILE | RECIPE,
    ),
    Option(
        "enable_insert_remap",
        "insert operators that change the tensor layout, see --remap_mode",
        FLAG,
        CONVERTER | PROFILE,
    ),
    Option(
        "remap_mode",
        "position: before_ or after_ and an operator (default: after_matmul)",
        Takes(Form.NAMES, "MODE"),
        CONVERTER | PROFILE,
        kind=NAME_LIST,
        converter_default=("after_matmul",),
    ),
    Option(
        "serialize_matmul",
        "split matrix products into FACTOR parts, computed one after the other",
        Takes(Form.PAIRS, "OP=FACTOR[/MODE[/KEEP]]", read_serialised),
        CONVERTER | PROFILE,
    ),
    Option(
        "serialize_matmul_add",
        "split matrix products with the following addition into FACTOR parts",
        Takes(Form.PAIRS, "MATMUL/ADD=FACTOR", read_named),
        CONVERTER | PROFILE,
    ),
    Option(
        "merge_matmul",
        "merge two matrix products that share an input",
        Takes(Form.VALUE, "A,B"),
        CONVERTER | PROFILE,
    ),
    Option(
        "merge_matmul_add",
        "merge two matrix products that share an input, with the following additions",
        Takes(Form.VALUE, "M1,A1,M2,A2"),
        CONVERTER | PROFILE,
    ),
    Option("custom_pass_config", "Python files that register passes", FILES),
    Option("custom_shape_inference", "Python files that register shape functions", FILES),
    Option(
        "custom_ort_library",
        "custom-operator libraries of ONNX Runtime; CYCLES is the cost per tile and result element",
        Takes(Form.VALUES, "DOMAIN=FILE[,CYCLES]", read_library),
        OURS,
    ),
    Option(
        "custom_library_so_paths",
        "",
        Takes(Form.VALUES, "FILE"),
        refused="libraries for PopART are code for the real compiler and cannot be loaded; "
        "describe the operator in Python (register_op_body) in a file for "
        "--custom_shape_inference, or use a custom-operator library of ONNX Runtime with "
        "--custom_ort_library",
    ),
    Option("list_all_passes", "print the names of all passes and exit", FLAG),
)

_CHIP = (
    Option(
        "ipu_version",
        f"chip: {known_chips()} (default: c600, Poplar's ipu21)",
        Takes(Form.VALUE, "NAME", read_chip),
        COMPILER | RECIPE,
        synonyms=("--target", "--chip", "--device"),
    ),
    Option(
        "available_memory_proportion",
        "proportion of tile memory for products (default: 0.6)",
        Takes(Form.VALUE, "F", proportion),
        COMPILER | RECIPE,
    ),
    Option(
        "batches_per_step", "batches per return to the host (default: 1)", NUMBER, COMPILER | RECIPE
    ),
    Option(
        "num_io_tiles",
        "number of tiles that only do I/O, in parallel with the computation (default: 0)",
        COUNT,
        COMPILER | RECIPE,
    ),
    Option(
        "allow_out_of_memory",
        "compile models estimated not to fit into the chip's memory",
        FLAG,
        COMPILER | RECIPE | OURS,
    ),
    Option(
        "only_ipu_operators",
        "reject operators that the IPU's own compiler does not support, instead of a warning",
        FLAG,
        COMPILER | RECIPE | OURS,
    ),
    Option(
        "skip_dry_run",
        "skip the dry run: do not load and run the compiled model once",
        FLAG,
        COMPILER | OURS,
    ),
    Option("compiler_options", "more CompilerOptions", SETTINGS, RECIPE),
    Option(
        "popart_options",
        "more SessionOptions of PopART (no effect)",
        Takes(Form.VALUES, "KEY=VAL", read_option),
    ),
    Option(
        "optimize_internal_exchange_code",
        "no effect: the chip's exchange code is not modelled",
        FLAG,
    ),
    Option(
        "manual_sharding_config",
        "YAML list of node, device and stage: which IPU runs what (compile with num_ipus and "
        "virtual_graph_mode=manual)",
        FILE,
        reads="file",
    ),
    Option("only_manual_sharding", "only shard the model, without a conversion", FLAG),
    Option("perf_tuner", "", FLAG, refused="not implemented in the real tool either"),
)

_OUTPUT = (
    Option("export_popef", "write executable.popef (and weights.popef) into output_dir", FLAG),
    Option(
        "output_dir",
        "output folder (default: %(default)s)",
        FOLDER,
        default="./",
        synonyms=("-o",),
        writes="folder",
    ),
    Option(
        "output_model",
        "file name of the converted ONNX model in output_dir",
        Takes(Form.VALUE, "NAME"),
    ),
    Option(
        "triton_model_dir",
        "write a Triton model folder; existing config.pbtxt and name_map.json are kept and must "
        "match",
        FOLDER,
        OURS,
        writes="folder",
    ),
    Option(
        "new_version",
        "publish the model in that folder as a new version with the next number",
        FLAG,
        OURS,
    ),
    Option(
        "overwrite_config", "overwrite config.pbtxt and name_map.json of that folder", FLAG, OURS
    ),
    Option(
        "queue_timeout_ms",
        "limit in ms of a request's wait in Triton's queue; a shorter own timeout wins (default: "
        "no limit)",
        NUMBER,
        OURS,
    ),
    Option(
        "run",
        "compile, run on random inputs, and print batch size, latency and throughput of this CPU",
        FLAG,
        dest="run_model",
    ),
)

_REPORTS = (
    Option("show", "print the model's inputs and outputs and exit", FLAG),
    Option(
        "show_io_stat", "print the number of inputs and outputs per type and shape", FLAG, MODEL
    ),
    Option(
        "show_profile",
        "print the estimated time and memory of a batch on the chip (modelled)",
        FLAG,
        OURS,
    ),
    Option(
        "disable_compilation_progress_bar",
        "hide progress bars",
        FLAG,
        CONVERTER | ONCE,
        passed_as="disable_progress_bar",
        turns_off="show_compilation_progress_bar",
    ),
    Option(
        "logging_level",
        "log level (default: %(default)s)",
        choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
        default="WARNING",
    ),
)

LIMITS = (
    Option(
        "time_limit",
        "end the work when it takes longer (default: %(default)s)",
        Takes(Form.VALUE, "SECONDS", positive),
        OURS,
        default=3_600,
    ),
    Option(
        "memory_limit",
        "memory that the work may take (default: what is free)",
        Takes(Form.VALUE, "MIB", positive),
        OURS,
    ),
)
"""Options of every command whose work runs `supervised`."""

OPTIONS = make_table(*_MODEL, *_PRECISION, *_GRAPH, *_PASSES, *_CHIP, *_OUTPUT, *_REPORTS, *LIMITS)
"""All options of `poprt` by name, but those that every command has."""


def iter_profile_options() -> list[Option]:
    """Return the options that `poplar-triton profile` passes to Converter, too."""
    return [option for option in OPTIONS.values() if PROFILE in option.use]
