"""The passes of the real tool that do not run here, each with the reason."""

from poprt.passes.base_pass import refuse_passes

_UNKNOWN = "what it looks for, or what it makes of it, is not public"
_LATER = "the runtime that goes with it does not exist here"

refuse_passes(
    {
        "attention_padding": _UNKNOWN,
        "batchnorm_workaround": _UNKNOWN,
        "compress_pattern": _UNKNOWN,
        "cumsum_workaround": _UNKNOWN,
        "float_to_mixed": _UNKNOWN,
        "merge_moe": _UNKNOWN,
        "trace_folding": _UNKNOWN,
        "manual_sharding": _LATER,
        "overlap_io": _LATER,
        "packed_transformer": _LATER,
    }
)
