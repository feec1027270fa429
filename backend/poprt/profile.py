"""FLOPs of models and nodes, under the real tool's names."""

from poprt.profiling.flops import Profiler, get_model_flops

__all__ = [
    "Profiler",
    "get_model_flops",
]
