"""Names and limits that several parts of the tool share. Nothing is imported here, because the
parser of the command needs them, and `--help` answers at once."""

sHostConcatRunnerConfig = "sHostConcatRunnerConfig"
"""Name of the metadata property, and of the opaque blob made from it, in which
apply_host_concat_split records what the host concatenates."""
PRECISIONS = ("fp32", "fp16", "fp8", "fp8_weight")
IO_PRECISIONS = ("model", "fp32", "fp16")
QUANTISED_PRECISIONS = ("fp8", "fp8_weight")
"""Precisions that calibration finds formats and scales for."""
MAX_MODELS = 1024
"""Maximum number of models in one executable; no chip's memory holds the code of so many."""
