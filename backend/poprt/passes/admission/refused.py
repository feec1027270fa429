"""Passes of the real tool that are unsupported here, each with the reason."""

from poprt.rewrite.base import Stage, refuse_pass

_UNKNOWN = "what it looks for, or what it makes of it, is not public"

for _name in (
    "batchnorm_workaround",
    "cumsum_workaround",
    "expand_if",
    "float_to_mixed",
    "merge_variant_if",
    "trace_folding",
):
    refuse_pass(_name, _UNKNOWN)
refuse_pass("compress_pattern", _UNKNOWN, stage=Stage.CHIP, option="enable_compress_pattern")
